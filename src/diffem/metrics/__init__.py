"""Measures: distances between sets, errors against a truth, calibration, and evidence that needs no truth."""

from .calibration import coverage, ranks
from .distances import frechet, sinkhorn, sliced_wasserstein
from .evidence import hide, observation_distance, predictive_log_likelihood, simulate
from .images import mse, mse_unmeasured, psnr

__all__ = [
    "coverage",
    "frechet",
    "hide",
    "mse",
    "mse_unmeasured",
    "observation_distance",
    "predictive_log_likelihood",
    "psnr",
    "ranks",
    "simulate",
    "sinkhorn",
    "sliced_wasserstein",
]
