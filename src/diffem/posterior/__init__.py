"""Posterior methods: prior × observations → denoiser. A new method is a file and a line in `METHODS`."""

from ..observations import Observations
from ..priors.base import Prior
from ..priors.methods import METHODS
from .base import Posterior
from .conditional import Conditional
from .diffpir import DiffPIR
from .dps import DPS
from .evaluation import Evaluation, Statistics
from .exact import Exact
from .gaussian import GaussianPosterior
from .heuristic import Identity, SigmaT, SigmaX
from .isotropic import IsotropicInformation
from .mmps import MMPS
from .pigdm import PiGDM
from .pivot import Pivot
from .tmpd import TMPD

# Posteriors with a closed form; any other prior has one if AᵀΣ_y⁻¹A is proportional to I.
CLOSED_FORMS: tuple[type[GaussianPosterior | Exact], ...] = (GaussianPosterior, Exact)


def exact(prior: Prior, obs: Observations) -> Posterior:
    """Make the exact posterior: in closed form, or by one denoising if AᵀΣ_y⁻¹A is proportional to I."""
    return next((kind for kind in CLOSED_FORMS if kind.applies(prior, obs)), IsotropicInformation)(prior, obs)


METHODS |= {
    method.method: method for method in (Conditional, MMPS, SigmaT, SigmaX, Identity, DPS, PiGDM, TMPD, DiffPIR)
}
METHODS["exact"] = exact

__all__ = [
    "DPS",
    "METHODS",
    "MMPS",
    "TMPD",
    "Conditional",
    "DiffPIR",
    "Evaluation",
    "Exact",
    "GaussianPosterior",
    "Identity",
    "IsotropicInformation",
    "PiGDM",
    "Pivot",
    "Posterior",
    "SigmaT",
    "SigmaX",
    "Statistics",
]
