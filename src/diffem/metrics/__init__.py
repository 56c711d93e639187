"""Metrics: distances between sets, image quality, errors, calibration, and evidence without the truth."""

from .calibration import coverage, crps, ranks
from .distances import frechet, sliced_wasserstein
from .estimate import Estimate
from .evidence import (
    exact_predictive_log_likelihood,
    hidden_coverage,
    hide,
    observation_distance,
    predictive_log_likelihood,
    simulate,
)
from .fid import (
    Reference,
    frechet_distance,
    image_quality,
    inception_score,
    kernel_distance,
    make_reference,
)
from .images import mse, mse_unmeasured, psnr
from .inception import Extractor, features, load_extractor, to_uint8
from .lpips import LPIPS, load_lpips
from .simulated import Fit, simulated_distance, simulated_fit, simulation_score
from .transport import sinkhorn

__all__ = [
    "LPIPS",
    "Estimate",
    "Extractor",
    "Fit",
    "Reference",
    "coverage",
    "crps",
    "exact_predictive_log_likelihood",
    "features",
    "frechet",
    "frechet_distance",
    "hidden_coverage",
    "hide",
    "image_quality",
    "inception_score",
    "kernel_distance",
    "load_extractor",
    "load_lpips",
    "make_reference",
    "mse",
    "mse_unmeasured",
    "observation_distance",
    "predictive_log_likelihood",
    "psnr",
    "ranks",
    "simulate",
    "simulated_distance",
    "simulated_fit",
    "simulation_score",
    "sinkhorn",
    "sliced_wasserstein",
    "to_uint8",
]
