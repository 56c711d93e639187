"""A = I: noisy observations of x itself."""

import torch
from torch import Tensor

from .base import Operator
from .spectrum import Spectrum


class Identity(Operator):
    """y = x: every entry of x `(n, *event)` is measured."""

    def _forward(self, x: Tensor) -> Tensor:
        return x

    def _adjoint(self, y: Tensor) -> Tensor:
        return y

    def gram_diagonal(self, y: Tensor) -> Tensor:
        return torch.ones_like(y[:1])

    def spectrum(self, precision: Tensor) -> Spectrum:
        return Spectrum(precision)

    def measured_outputs(self, measured: Tensor) -> Tensor:
        return measured
