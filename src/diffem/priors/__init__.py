"""Priors: denoisers that can be sampled and conditioned."""

from typing import TYPE_CHECKING

from ..core.lazy import exports

if TYPE_CHECKING:
    from .base import Prior
    from .calibration import Calibration, calibrate
    from .diffusion import DiffusionPrior
    from .fit import fit_gaussian
    from .fit_channel import fit_channel_gaussian
    from .gaussian import GaussianPrior
    from .guided import GuidedPrior
    from .levels import NoiseLevels
    from .mixture import MixturePrior
    from .parameters import OperatorParameters
    from .rounds import FitHistory, FitState

__all__ = [
    "Calibration",
    "DiffusionPrior",
    "FitHistory",
    "FitState",
    "GaussianPrior",
    "GuidedPrior",
    "MixturePrior",
    "NoiseLevels",
    "OperatorParameters",
    "Prior",
    "calibrate",
    "fit_channel_gaussian",
    "fit_gaussian",
]

__getattr__ = exports(
    __name__,
    {
        "base": ["Prior"],
        "calibration": ["Calibration", "calibrate"],
        "diffusion": ["DiffusionPrior"],
        "fit": ["fit_gaussian"],
        "fit_channel": ["fit_channel_gaussian"],
        "gaussian": ["GaussianPrior"],
        "guided": ["GuidedPrior"],
        "levels": ["NoiseLevels"],
        "mixture": ["MixturePrior"],
        "parameters": ["OperatorParameters"],
        "rounds": ["FitHistory", "FitState"],
    },
)


def __dir__() -> list[str]:
    return __all__
