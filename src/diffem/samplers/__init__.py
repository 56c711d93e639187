"""Samplers. Every sampler works with every denoiser; a new sampler is a file and a line in `run.SAMPLERS`."""

from .base import Sampler, Target
from .ddim import DDIM
from .heun import Heun
from .pc import PredictorCorrector
from .run import DEFAULT_SAMPLER, DEFAULT_STEPS, SAMPLERS, draw, get_sampler
from .schedule import SIGMA_MAX, SIGMA_MIN, schedule
from .tds import TDS

__all__ = [
    "DDIM",
    "DEFAULT_SAMPLER",
    "DEFAULT_STEPS",
    "SAMPLERS",
    "SIGMA_MAX",
    "SIGMA_MIN",
    "TDS",
    "Heun",
    "PredictorCorrector",
    "Sampler",
    "Target",
    "draw",
    "get_sampler",
    "schedule",
]
