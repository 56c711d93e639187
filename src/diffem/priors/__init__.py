"""Priors: denoisers that can be sampled and conditioned."""

from .base import Prior
from .diffusion import DiffusionPrior
from .fit import FitHistory, FitState, fit_gaussian
from .gaussian import GaussianPrior
from .mixture import MixturePrior

__all__ = ["DiffusionPrior", "FitHistory", "FitState", "GaussianPrior", "MixturePrior", "Prior", "fit_gaussian"]
