"""diffem: learn a diffusion prior from incomplete, noisy observations alone, then sample it or any posterior."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import linalg, nn, operators, posterior, priors, samplers
from .core.errors import CastWarning, InputError, RunWarning
from .core.version import __version__
from .observations import Observations

if TYPE_CHECKING:
    from . import metrics
    from .api import fit
    from .em.run import Run, load

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


def __getattr__(name: str) -> Any:
    # the loop imports pydantic, and few programs use the metrics: both are imported when they are used
    if name == "metrics":
        return import_module(f"{__name__}.{name}")
    if name == "fit":
        from .api import fit

        return fit
    if name in ("Run", "load"):
        from .em import run

        return getattr(run, name)
    raise AttributeError(f"module 'diffem' has no attribute {name!r}")
