"""Posterior methods: prior × observations → denoiser. A new method is a file and a line in `METHODS`."""

from typing import TYPE_CHECKING

from ..core.lazy import exports
from ..priors.methods import METHODS

if TYPE_CHECKING:
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

METHODS.add_lazy(
    {
        "conditional": "diffem.posterior.conditional:Conditional",
        "mmps": "diffem.posterior.mmps:MMPS",
        "sigma_t": "diffem.posterior.heuristic:SigmaT",
        "sigma_x": "diffem.posterior.heuristic:SigmaX",
        "identity": "diffem.posterior.heuristic:Identity",
        "dps": "diffem.posterior.dps:DPS",
        "pigdm": "diffem.posterior.pigdm:PiGDM",
        "tmpd": "diffem.posterior.tmpd:TMPD",
        "diffpir": "diffem.posterior.diffpir:DiffPIR",
        "exact": "diffem.posterior.closed_form:exact",
    }
)

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

__getattr__ = exports(
    __name__,
    {
        "base": ["Posterior"],
        "conditional": ["Conditional"],
        "diffpir": ["DiffPIR"],
        "dps": ["DPS"],
        "evaluation": ["Evaluation", "Statistics"],
        "exact": ["Exact"],
        "gaussian": ["GaussianPosterior"],
        "heuristic": ["Identity", "SigmaT", "SigmaX"],
        "isotropic": ["IsotropicInformation"],
        "mmps": ["MMPS"],
        "pigdm": ["PiGDM"],
        "pivot": ["Pivot"],
        "tmpd": ["TMPD"],
    },
)


def __dir__() -> list[str]:
    return __all__
