"""Posterior methods: prior × observations → denoiser; a new one is a file and a line in `METHODS`."""

from ..linalg import Isotropic
from ..observations import Observations
from ..observations.information import information_of
from ..priors.base import Prior, condition
from ..priors.diffusion import DiffusionPrior
from ..priors.methods import CHOOSERS, METHODS
from ..priors.mixture import MixturePrior
from ..samplers import TDS
from .base import WEIGHTED, Evaluation, Posterior, Statistics
from .conditional import Conditional
from .diffpir import DiffPIR
from .dps import DPS
from .exact import Exact
from .heuristic import Identity, SigmaT, SigmaX
from .isotropic import IsotropicInformation
from .mmps import MMPS
from .pigdm import PiGDM
from .pivot import Pivot
from .tmpd import TMPD
from .twisted import sample_twisted


def exact(prior: Prior, obs: Observations) -> Posterior:
    """The exact posterior: of a mixture by dense algebra, of any other prior where AᵀΣ_y⁻¹A is proportional to I."""
    dense = isinstance(prior, MixturePrior) and isinstance(obs.cov, Isotropic)
    return Exact(prior, obs) if dense else IsotropicInformation(prior, obs)


METHODS |= {
    method.method: method for method in (Conditional, MMPS, SigmaT, SigmaX, Identity, DPS, PiGDM, TMPD, DiffPIR)
}
METHODS["exact"] = exact


def choose_method(prior: Prior, obs: Observations) -> tuple[str, str]:
    """The best method for this prior and these observations, and why."""
    if not isinstance(prior, DiffusionPrior):
        return "mmps", "it is exact for a Gaussian prior, and works with every other"
    information = information_of(obs)
    if information.isotropic() is not None:
        return "exact", "every entry is measured equally well, so one denoising is exact"
    if prior.family is None:
        return "mmps", "the prior has no conditional network"
    if (why := prior.family.outside(information.scaled(prior.scale))) is not None:
        return "mmps", why
    return "conditional", f"the prior was trained for such operators ({prior.family.operator})"


CHOOSERS.append(choose_method)
WEIGHTED[TDS] = sample_twisted

__all__ = [
    "DPS",
    "METHODS",
    "MMPS",
    "TMPD",
    "Conditional",
    "DiffPIR",
    "Evaluation",
    "Exact",
    "Identity",
    "IsotropicInformation",
    "PiGDM",
    "Pivot",
    "Posterior",
    "SigmaT",
    "SigmaX",
    "Statistics",
    "condition",
]
