"""A = I: everything is measured, with noise."""

from torch import Tensor

from .base import Operator


class Identity(Operator):
    def _forward(self, x: Tensor) -> Tensor:
        return x

    def _adjoint(self, y: Tensor) -> Tensor:
        return y

    def keeps(self, measured: Tensor) -> Tensor:
        return measured
