"""Posterior methods: prior × observations → denoiser; a new one is a file and a line in `METHODS`."""

import logging
from collections.abc import Callable
from typing import Any

from ..core.errors import InputError
from ..core.modes import in_own_modes
from ..linalg import Isotropic
from ..observations import Observations
from ..observations.information import information_of
from ..priors.base import Prior
from ..priors.diffusion import DiffusionPrior
from ..priors.mixture import MixturePrior
from .base import Posterior
from .conditional import Conditional
from .diffpir import DiffPIR
from .dps import DPS
from .evaluation import Evaluation, Statistics
from .exact import Exact
from .heuristic import Identity, SigmaT, SigmaX
from .isotropic import IsotropicInformation
from .mmps import MMPS
from .pigdm import PiGDM
from .pivot import Pivot
from .tmpd import TMPD

logger = logging.getLogger("diffem")


def exact(prior: Prior, obs: Observations) -> Posterior:
    """The exact posterior: of a mixture by dense algebra, of any other prior where AᵀΣ_y⁻¹A is proportional to I."""
    dense = isinstance(prior, MixturePrior) and isinstance(obs.cov, Isotropic)
    return Exact(prior, obs) if dense else IsotropicInformation(prior, obs)


METHODS: dict[str, Callable[..., Posterior]] = {
    method.method: method for method in (Conditional, MMPS, SigmaT, SigmaX, Identity, DPS, PiGDM, TMPD, DiffPIR)
} | {"exact": exact}


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


@in_own_modes
def condition(prior: Prior, obs: Observations, method: str | None = None, **options: Any) -> Posterior:
    """The posterior of `prior` given `obs` by a method's name, or by the best one that applies; `options` are the method's."""
    if not isinstance(obs, Observations):
        raise InputError(f"obs must be diffem.Observations, got {type(obs).__name__}: Observations(y, A, sigma=...)")
    if method is None:
        method, why = choose_method(prior, obs) if not options else ("mmps", "its options were given")
        logger.info("posterior method %r: %s", method, why)
    if method not in METHODS:
        raise InputError(f"unknown posterior method {method!r}; known: {', '.join(METHODS)}")
    try:
        return METHODS[method](prior, obs, **options)
    except TypeError as error:
        raise InputError(f"method {method!r} does not take these options: {options} ({error})") from None


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
