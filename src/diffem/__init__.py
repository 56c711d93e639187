"""diffem: learn a diffusion prior from incomplete, noisy observations alone, then sample it or any posterior."""

from typing import TYPE_CHECKING

from . import posterior as _posterior  # noqa: F401  # adds the posterior methods that `Prior.posterior` finds by name
from .core.errors import CastWarning, InputError, RunWarning
from .core.lazy import exports
from .core.version import __version__

if TYPE_CHECKING:
    from . import linalg, metrics, nn, operators, posterior, priors, samplers
    from .api import fit
    from .em.run import Run, load
    from .observations import Observations

__all__ = [
    "CastWarning",
    "InputError",
    "Observations",
    "Run",
    "RunWarning",
    "__version__",
    "fit",
    "linalg",
    "load",
    "metrics",
    "nn",
    "operators",
    "posterior",
    "priors",
    "samplers",
]

__getattr__ = exports(
    __name__,
    {
        "api": ["fit"],
        "em.run": ["Run", "load"],
        "linalg": [],
        "metrics": [],
        "nn": [],
        "observations": ["Observations"],
        "operators": [],
        "posterior": [],
        "priors": [],
        "samplers": [],
    },
)


def __dir__() -> list[str]:
    return __all__
