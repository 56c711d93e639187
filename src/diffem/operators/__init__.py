"""Measurement operators; a new linear family is a file and a line in `OPERATORS`."""

from .base import Operator
from .blur import Blur
from .channel import Channel
from .check import OperatorError, Verdict, check
from .compose import Compose, Stack
from .crop import Crop
from .dense import Dense
from .fourier import Fourier
from .function import Function
from .identity import Identity
from .mask import Mask
from .resample import Downsample

OPERATORS: dict[str, type[Operator]] = {
    operator.__name__: operator for operator in (Identity, Mask, Dense, Fourier, Blur, Downsample, Crop, Compose, Stack)
}

__all__ = [
    "OPERATORS",
    "Blur",
    "Channel",
    "Compose",
    "Crop",
    "Dense",
    "Downsample",
    "Fourier",
    "Function",
    "Identity",
    "Mask",
    "Operator",
    "OperatorError",
    "Stack",
    "Verdict",
    "check",
]
