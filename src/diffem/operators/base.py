r"""Linear measurement operators: immutable values y = A x with a batch axis.

`A(x)` maps `(n, *event)` to `(n, *measurement)`, `A.adjoint(y)` back, with ⟨Ax, y⟩ = ⟨x, Aᵀy⟩ in the *real* inner
product: complex measurements are a real view whose last axis is (re, im). Parameters (masks, kernels, coil maps) are
shared or have a leading observation axis. `A[i:j]` selects observations, `A.to(...)` moves them. Calls have no side
effects.

If an observation does not measure an entry of y, `A` writes 0 there and `A.adjoint` ignores the value there, even NaN.
`A.measured(y)` is False at these entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..core.arrays import from_array
from ..core.batched import BatchedValue
from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.shapes import CONVERT, require_batch
from .spectrum import Spectrum


class Operator(BatchedValue):
    """Base of the operators: an immutable linear map from samples `(n, *event)` to measurements `(n, *measurement)`.

    `A(x)` applies it, `A.adjoint(y)` its transpose, `A[i:j]` selects the parameters of some observations, `A.to(...)`
    moves it, and `A2 @ A1` is A1 followed by A2. A subclass implements `_forward` and `_adjoint`.
    """

    composition: ClassVar[Callable[[Operator, Operator], Operator]]  # the class of `A2 @ A1`; set by `compose.py`
    any_dtype: frozenset[str] = frozenset()  # tensors that are converted to the dtype of the data when they are used
    complex_output = False  # whether y is a real view of complex numbers, last axis (re, im)

    @in_default_modes
    def __call__(self, x: Tensor) -> Tensor:
        """Compute Ax, `(n, *measurement)`, for x `(n, *event)`. Values that are not measured are 0."""
        self._check_batch(require_batch(x, "x"), "x")
        return self._forward(x)

    @in_default_modes
    def adjoint(self, y: Tensor) -> Tensor:
        """Compute Aᵀy, `(n, *event)`, for y `(n, *measurement)`. Values that are not measured are ignored."""
        self._check_batch(require_batch(y, "y"), "y")
        return self._adjoint(y)

    def _forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _adjoint(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def measured(self, y: Tensor) -> Tensor | None:
        """Mask of the measured entries, broadcastable to y `(n, *measurement)`. None: all entries."""
        return None

    def measured_outputs(self, measured: Tensor) -> Tensor | None:
        """Mask of the outputs that are measured if only the inputs `measured` `(1 or n, *event)` are. None: all.

        An operator that mixes entries leaves every output measured; one that selects entries overrides this.
        """
        return None

    def gram_diagonal(self, y: Tensor) -> Tensor | None:
        """The diagonal of AAᵀ, broadcastable to y `(n, *measurement)`, if AAᵀ is exactly diagonal; otherwise None."""
        return None

    def spectrum(self, precision: Tensor) -> Spectrum | None:
        """AᵀPA if it is diagonal in a known basis (`spectrum.py`); otherwise None.

        Args:
            precision: The diagonal of P, `(1 or n, *measurement)`; 0 on entries that are not measured.
        """
        return None

    def reduced(self, y: Tensor) -> tuple[Operator, Tensor, Tensor] | None:
        """Equivalent measurement with orthonormal rows, for independent noise of equal variance. None if there is none.

        Returns:
            The operator, its measurements, and their variances in units of y's variance, broadcastable to the
            measurements.
        """
        return None

    def resolve_axes(self, x: Tensor) -> Self:
        """Decide which axes of the parameters are per observation, given a sample x `(1, *event)`."""
        return self

    def implied_shape(self, y: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Derive the shape of Aᵀy from the settings and the shape of y alone, without computing anything.

        An operator read from an untrusted file may describe "a window of 8×8 in an image of 10⁶×10⁶", so a reader calls
        this before it allocates memory.

        Args:
            y: `(n, *measurement)`.

        Returns:
            The shape of Aᵀy, and the numbers in the largest tensor that computing it needs.
        """
        return y, math.prod(y)  # for operators whose x has the size of y, or is a few times smaller

    def children(self) -> tuple[Operator, ...]:
        """The parts of a composite operator."""
        return ()

    def tensors(self) -> dict[str, Tensor]:
        """The constructor's tensor arguments, by name."""
        return dict(self._tensors)

    def _check_batch(self, data: Tensor, name: str) -> None:
        batch = self.batch
        if batch is not None and batch != len(data):
            raise InputError(
                f"{type(self).__name__} holds parameters for {count_of(batch, 'observation')}, {name} has "
                f"{count_of(len(data), 'sample')} (shape {tuple(data.shape)})"
            )
        for key, tensor in self._tensors.items():
            if tensor.is_floating_point() and tensor.dtype != data.dtype and key not in self.any_dtype:
                raise InputError(
                    f"dtype mismatch: {name} is {data.dtype}, {key} of {type(self).__name__} is {tensor.dtype}; "
                    + CONVERT
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
    """Convert a mask of booleans, or of exact zeros and ones, to a boolean tensor.

    Raises InputError for other values.
    """
    if isinstance(mask, np.ndarray) and mask.dtype.kind in "biuf":
        mask = from_array(mask).contiguous()
    if not isinstance(mask, Tensor):
        kind = f"an array of {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise InputError(f"{owner}: mask must be a torch.Tensor or a NumPy array of booleans, got {kind}")
    if mask.dtype == torch.bool:
        return mask
    if not ((mask == 0) | (mask == 1)).all():
        raise InputError(f"{owner}: a mask holds only 0 and 1 (or booleans), got {mask.dtype} with other values")
    return mask.bool()


def numeric(parameter: Any, name: str) -> Any:
    """Convert a floating-point or complex NumPy array to a tensor of the same dtype; return other values unchanged.

    Raises InputError for tensors with NaN or infinite numbers. name: of the parameter, for error messages.
    """
    if isinstance(parameter, np.ndarray) and parameter.dtype.kind in "fc":
        parameter = from_array(parameter).contiguous()
    if isinstance(parameter, Tensor) and not (finite := torch.isfinite(parameter)).all():
        raise InputError(f"{name} must be finite, got {int((~finite).sum())} NaN or infinite numbers")
    return parameter
