r"""Linear measurement operators: immutable values y = A x with a batch axis.

`A(x)` maps `(n, *event)` to `(n, *measurement)`, `A.adjoint(y)` back, with ⟨Ax, y⟩ = ⟨x, Aᵀy⟩ in the *real* inner product:
complex measurements travel as a real view whose last axis is (re, im). Parameters (masks, kernels, coil maps) are shared or
carry the observation axis first; `A[i:j]` takes observations, `A.to(...)` moves. Calling changes nothing.

Where an observation does not measure an entry of y, `A` writes 0 there, `A.adjoint` ignores what it finds there (NaN
included) and `A.measured(y)` says which entries those are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..core.batched import Batched
from ..core.errors import InputError
from ..core.modes import in_own_modes
from ..core.shapes import require_batch
from .spectrum import Spectrum


class Operator(Batched):
    composition: ClassVar[Callable[[Operator, Operator], Operator]]  # what `A2 @ A1` makes; `compose.py` sets it
    complex_output = False  # whether y is a real view of complex numbers, last axis (re, im)

    @in_own_modes
    def __call__(self, x: Tensor) -> Tensor:
        self._check_batch(require_batch(x, "x"), "x")
        return self._forward(x)

    @in_own_modes
    def adjoint(self, y: Tensor) -> Tensor:
        self._check_batch(require_batch(y, "y"), "y")
        return self._adjoint(y)

    def _forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _adjoint(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def measured(self, y: Tensor) -> Tensor | None:
        """Which entries of y are measured, broadcastable to y `(n, *measurement)`; None: all of them."""
        return None

    def keeps(self, measured: Tensor) -> Tensor | None:
        """Which outputs are measured when only the inputs `measured` `(1 or n, *event)` are; None: all.

        An operator that mixes entries leaves every output measured; one that selects entries overrides this.
        """
        return None

    def gram_diagonal(self, y: Tensor) -> Tensor | None:
        """The diagonal of AAᵀ, broadcastable to y `(n, *measurement)`, when AAᵀ is exactly diagonal; None when it is not."""
        return None

    def spectrum(self, precision: Tensor) -> Spectrum | None:
        """AᵀPA where it is diagonal in a known basis (`spectrum.py`); None where it is not.

        Args:
            precision: The diagonal of P, `(1 or n, *measurement)`; 0 on entries that are not measured.
        """
        return None

    def reduced(self, y: Tensor) -> tuple[Operator, Tensor, Tensor] | None:
        """A measurement that says the same about x in orthonormal rows, for noise that is alike and independent on all entries.

        The operator, its measurements, and their variances in units of y's, broadcastable to them; None where there is none.
        """
        return None

    def bound(self, x: Tensor) -> Self:
        """The operator with undecided parameters settled, for samples like that of `x` `(1, *event)`."""
        return self

    def children(self) -> tuple[Operator, ...]:
        """The operators this one is made of."""
        return ()

    def tensors(self) -> dict[str, Tensor]:
        """The constructor's tensor arguments, by name."""
        return dict(self._tensors)

    def _check_batch(self, data: Tensor, name: str) -> None:
        batch = self.batch
        if batch is not None and batch != len(data):
            raise InputError(
                f"{type(self).__name__} holds parameters for {batch} observations, {name} has {len(data)} samples "
                f"(shape {tuple(data.shape)})"
            )
        for key, tensor in self._tensors.items():
            if tensor.is_floating_point() and tensor.dtype != data.dtype:
                raise InputError(
                    f"dtype mismatch: {name} is {data.dtype}, {key} of {type(self).__name__} is {tensor.dtype}; "
                    "convert one with .to(...)"
                )
            if tensor.device != data.device:
                raise InputError(
                    f"device mismatch: {name} is on {data.device}, {key} of {type(self).__name__} is on {tensor.device}"
                )

    def __matmul__(self, other: Operator) -> Operator:
        return type(self).composition(self, other)


def image_axes(data: Tensor, name: str, owner: str, axes: int = 2) -> Tensor:
    """Check that samples of `data` have at least `axes` axes."""
    if data.ndim < axes + 1:
        raise InputError(f"{owner} needs {name} of shape (n, ..., height, width), got {tuple(data.shape)}")
    return data


def lift(parameter: Tensor, data: Tensor, image_ndim: int) -> Tensor:
    """Insert axes after the first so that `(1 or n, *image)` broadcasts over `(n, ..., *image)`."""
    extra = data.ndim - 1 - image_ndim
    return parameter.reshape(len(parameter), *(1,) * extra, *parameter.shape[1:])


def boolean(mask: Any, owner: str) -> Tensor:
    """A mask of booleans, or of exact zeros and ones; a tensor or a NumPy array."""
    if isinstance(mask, np.ndarray) and mask.dtype.kind in "biuf":
        mask = torch.from_numpy(np.ascontiguousarray(mask))
    if not isinstance(mask, Tensor):
        raise InputError(f"{owner}: mask must be a torch.Tensor or a NumPy array, got {type(mask).__name__}")
    if mask.dtype == torch.bool:
        return mask
    if not ((mask == 0) | (mask == 1)).all():
        raise InputError(f"{owner}: a mask holds only 0 and 1 (or booleans), got {mask.dtype} with other values")
    return mask.bool()


def numeric(parameter: Any) -> Any:
    """A NumPy array of floating-point or complex numbers as a tensor of the same type; anything else as it is."""
    if isinstance(parameter, np.ndarray) and parameter.dtype.kind in "fc":
        return torch.from_numpy(np.ascontiguousarray(parameter))
    return parameter
