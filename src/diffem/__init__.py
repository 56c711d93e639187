"""diffem: learn a diffusion prior from incomplete, noisy observations alone, then sample it or any posterior."""

from . import linalg, nn, operators, posterior, priors, samplers
from .data import Observations
from .errors import InputError

__version__ = "0.1.0"

__all__ = ["InputError", "Observations", "__version__", "linalg", "nn", "operators", "posterior", "priors", "samplers"]
