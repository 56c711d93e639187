"""A deepinv physics as an immutable operator."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..core.batched import Index
from ..core.counting import count_of
from ..core.errors import InputError
from ..core.randomness import Stream
from ..core.shapes import require_event
from ..operators import Operator
from .packages import missing
from .physics import copied, tensors_of

try:
    from deepinv.physics import LinearPhysics
    from deepinv.utils import TensorList
except ModuleNotFoundError as error:
    raise missing("deepinv", error) from None


class PhysicsOperator(Operator):
    """A deepinv physics as an operator; `diffem.interop.deepinv.operator` describes the arguments."""

    def __init__(
        self,
        physics: Any,
        x_shape: tuple[int, ...],
        complex: bool = False,
        adjoint: Literal["physics", "autograd"] = "physics",
        per_observation: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(physics, LinearPhysics):
            raise InputError(f"physics must be a deepinv LinearPhysics, got {type(physics).__name__}")
        if adjoint not in ("physics", "autograd"):
            raise InputError(f"adjoint must be 'physics' or 'autograd', got {adjoint!r}")
        self.x_shape, self.complex, self.adjoint_by = tuple(x_shape), bool(complex), adjoint
        self._template = copied(physics, {id(t): t.detach().clone() for t in tensors_of(physics).values()})
        self._complex_tensors = {name for name, t in tensors_of(self._template).items() if t.is_complex()}
        self._cache: dict[str, Any] = {}
        batch, y = self._probe()
        self._parts, self._stacked = parts_of(y), not isinstance(y, Tensor)
        for name, tensor in tensors_of(self._template).items():
            own = (
                name in per_observation
                if per_observation is not None
                else len(tensor.shape) > 1 and len(tensor) == batch
            )
            # complex tensors become real views, because .to(dtype) would drop their imaginary part
            real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            self._store(name, real, real.ndim - 1 if own and batch > 1 else real.ndim)

    def _probe(self) -> tuple[int, Any]:
        """The batch size of the physics' parameters, 1 if it accepts any, and its output for that many zero images."""
        tensors = tensors_of(self._template).values()
        sizes = sorted({len(t) for t in tensors if t.ndim > 1 and len(t) > 1})
        like = next((t for t in tensors if t.is_floating_point() or t.is_complex()), torch.zeros(()))
        problem: Exception | None = None
        for n in (1, *sizes):
            x = torch.zeros(n, *self.x_shape, dtype=like.real.dtype, device=like.device)
            try:
                y = self._template.A(self._image(x))
                lead = {len(part) for part in list_of(y)}
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
                problem = problem or error
                continue
            if lead == {n}:
                return n, y
        detail = f": {problem}" if problem else ""
        raise InputError(
            f"{type(self._template).__name__} does not accept a batch of images of shape {self.x_shape} "
            f"(complex={self.complex}){detail}"
        )

    @property
    def complex_output(self) -> bool:  # type: ignore[override]
        return not self._stacked and self._parts[0][1]

    @property
    def physics(self) -> Any:
        """A copy of the physics with the parameters of this operator; do not modify it."""
        if "physics" not in self._cache:
            now = {
                name: torch.view_as_complex(t.contiguous()) if name in self._complex_tensors else t
                for name, t in self._tensors.items()
            }
            old = tensors_of(self._template)
            self._cache["physics"] = copied(self._template, {id(old[name]): t for name, t in now.items()})
        return self._cache["physics"]

    def __getitem__(self, index: Index) -> Self:
        new = super().__getitem__(index)
        new._cache = {}
        return new

    def to(self, *args: Any, **kwargs: Any) -> Self:
        new = super().to(*args, **kwargs)
        new._cache = {}
        return new

    def _image(self, x: Tensor) -> Tensor:
        return torch.view_as_complex(x.contiguous()) if self.complex else x

    def _real(self, image: Tensor) -> Tensor:
        """Convert to a real view: both parts of a complex image, or the real part if images are real."""
        if self.complex:
            return torch.view_as_real(image.resolve_conj() if image.is_complex() else image + 0j)
        return image.real if image.is_complex() else image

    def measurements(self, y: Any) -> Tensor:
        """Convert the output of the physics to that of this operator.

        Complex numbers become a last axis (re, im), and the outputs of a stack one row per observation.
        """
        parts = [torch.view_as_real(part.resolve_conj()) if part.is_complex() else part for part in list_of(y)]
        return torch.cat([part.flatten(1) for part in parts], 1) if self._stacked else parts[0]

    def _physical(self, y: Tensor) -> Any:
        """The inverse of `measurements`."""
        if not self._stacked:
            shape, is_complex = self._parts[0]
            if y.shape[1:] != shape + (2,) * is_complex:
                raise InputError(
                    f"the physics measures {shape}{' complex' * is_complex}, got y of shape {tuple(y.shape)}"
                )
            return torch.view_as_complex(y.contiguous()) if is_complex else y
        sizes = [math.prod(shape) * (1 + is_complex) for shape, is_complex in self._parts]
        if y.ndim != 2 or y.shape[1] != sum(sizes):
            raise InputError(
                f"the stacked physics measures {count_of(sum(sizes), 'number')}, got y of shape {tuple(y.shape)}"
            )
        parts = []
        for part, (shape, is_complex) in zip(y.split(sizes, 1), self._parts, strict=True):
            part = part.reshape(len(y), *shape, *(2,) * is_complex)
            parts.append(torch.view_as_complex(part.contiguous()) if is_complex else part)
        return TensorList(parts)

    def _forward(self, x: Tensor) -> Tensor:
        require_event(x, self.x_shape, f"the operator of {type(self._template).__name__}")
        return self.measurements(self.physics.A(self._image(x)))

    def _adjoint(self, y: Tensor) -> Tensor:
        measured = self.measured(y)
        y = y if measured is None else torch.where(measured, y, 0)
        physical = self._physical(y)  # raises if y has another shape
        if self.adjoint_by == "physics":
            return self._real(self.physics.A_adjoint(physical))
        with torch.enable_grad():
            x = torch.zeros(len(y), *self.x_shape, dtype=y.dtype, device=y.device, requires_grad=True)
            out = self._forward(x)
        return torch.autograd.grad(out, x, y)[0]

    def measured(self, y: Tensor) -> Tensor | None:
        if "measured" not in self._cache:
            # a zero row of A gives 0 for every image; any other row gives a nonzero value for a random image
            index = torch.arange(self.batch or 1, device=y.device)
            x = Stream(0, "physics rows").normal(index, self.x_shape, dtype=y.dtype)
            with torch.no_grad():
                rows = self._forward(x) != 0
            self._cache["measured"] = None if rows.all() else rows
        return self._cache["measured"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._template).__name__}, x_shape={self.x_shape})"


def list_of(y: Any) -> list[Tensor]:
    """The output tensors of a physics: several for a stack, one otherwise."""
    return [y] if isinstance(y, Tensor) else list(y)


def parts_of(y: Any) -> tuple[tuple[tuple[int, ...], bool], ...]:
    """Shape per observation of each output tensor of the physics, and whether it is complex."""
    return tuple((tuple(part.shape[1:]), part.is_complex()) for part in list_of(y))
