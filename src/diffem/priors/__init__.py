"""Priors: denoisers that can be sampled and conditioned."""

from .base import Prior
from .diffusion import DiffusionPrior
from .fit import fit_gaussian
from .gaussian import GaussianPrior
from .mixture import MixturePrior
from .rounds import FitHistory, FitState

__all__ = ["DiffusionPrior", "FitHistory", "FitState", "GaussianPrior", "MixturePrior", "Prior", "fit_gaussian"]
