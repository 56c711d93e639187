"""Posterior methods: prior × observations → denoiser; a new one is a file and a line in `METHODS`."""

from collections.abc import Callable
from typing import Any

from ..data import Observations
from ..errors import InputError
from ..linalg import Isotropic
from ..modes import in_own_modes
from ..priors.base import Prior
from ..priors.mixture import MixturePrior
from .base import Evaluation, Posterior, Statistics
from .diffpir import DiffPIR
from .dps import DPS
from .exact import Exact
from .heuristic import Identity, SigmaT, SigmaX
from .isotropic import IsotropicInformation
from .mmps import MMPS
from .pigdm import PiGDM
from .pivot import Pivot
from .tmpd import TMPD


def exact(prior: Prior, obs: Observations) -> Posterior:
    """The exact posterior: of a mixture by dense algebra, of any other prior where AᵀΣ_y⁻¹A is proportional to I."""
    dense = isinstance(prior, MixturePrior) and isinstance(obs.cov, Isotropic)
    return Exact(prior, obs) if dense else IsotropicInformation(prior, obs)


METHODS: dict[str, Callable[..., Posterior]] = {
    method.method: method for method in (MMPS, SigmaT, SigmaX, Identity, DPS, PiGDM, TMPD, DiffPIR)
} | {"exact": exact}


@in_own_modes
def condition(prior: Prior, obs: Observations, method: str = "mmps", **options: Any) -> Posterior:
    """The posterior of `prior` given `obs` by a method's name; `options` are the method's."""
    if not isinstance(obs, Observations):
        raise InputError(f"obs must be diffem.Observations, got {type(obs).__name__}")
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
