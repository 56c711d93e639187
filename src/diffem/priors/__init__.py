"""Priors: denoisers that can be sampled and conditioned."""

from .base import Prior
from .calibration import Calibration, calibrate
from .diffusion import DiffusionPrior
from .fit import fit_gaussian
from .fit_channel import fit_channel_gaussian
from .gaussian import GaussianPrior
from .levels import NoiseLevels
from .mixture import MixturePrior
from .parameters import OperatorParameters
from .rounds import FitHistory, FitState

__all__ = [
    "Calibration",
    "DiffusionPrior",
    "FitHistory",
    "FitState",
    "GaussianPrior",
    "MixturePrior",
    "NoiseLevels",
    "OperatorParameters",
    "Prior",
    "calibrate",
    "fit_channel_gaussian",
    "fit_gaussian",
]
