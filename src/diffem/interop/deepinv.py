r"""deepinv's linear physics as operators, our posterior as a deepinv reconstructor, our prior as a deepinv denoiser.

A physics may change when it is called with parameters, and may be changed by whoever holds it. The operator made here is a value all the
same: it keeps a copy of its own, never calls it with parameters, and takes observations by copying it with their rows of the masks,
filters and coil maps. What the physics does not measure (a row of A that is zero, as under a mask) leaves the system, as everywhere here.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from ..core.batched import Index
from ..core.errors import InputError
from ..core.randomness import Stream
from ..core.shapes import require_event
from ..linalg import Diagonal
from ..observations import Observations
from ..operators import Operator, OperatorError, check
from ..posterior import Posterior
from ..priors.base import Prior
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS, Sampler
from .packages import missing
from .physics import copied, tensors_of
from .ranges import Range

try:
    import deepinv
    from deepinv.physics import GaussianNoise, LinearPhysics
    from deepinv.utils import TensorList
except ModuleNotFoundError as error:
    raise missing("deepinv", error) from None


class PhysicsOperator(Operator):
    """See `operator`."""

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
            raise InputError(f"needs a deepinv LinearPhysics, got {type(physics).__name__}")
        if adjoint not in ("physics", "autograd"):
            raise InputError(f"adjoint is 'physics' (its own) or 'autograd', got {adjoint!r}")
        self.x_shape, self.complex, self.adjoint_by = tuple(x_shape), bool(complex), adjoint
        self._template = copied(physics, {id(t): t.detach().clone() for t in tensors_of(physics).values()})
        self._complex_tensors = {name for name, t in tensors_of(self._template).items() if t.is_complex()}
        self._cache: dict[str, Any] = {}
        batch, y = self._probe()
        self._parts, self._stacked = _parts(y), not isinstance(y, Tensor)
        for name, tensor in tensors_of(self._template).items():
            own = (
                name in per_observation
                if per_observation is not None
                else len(tensor.shape) > 1 and len(tensor) == batch
            )
            # complex numbers are kept as real views, which move between precisions without losing a part
            real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            self._store(name, real, real.ndim - 1 if own and batch > 1 else real.ndim)

    def _probe(self) -> tuple[int, Any]:
        """How many observations the physics has parameters for (1: any), and what it returns for that many zero images."""
        tensors = tensors_of(self._template).values()
        sizes = sorted({len(t) for t in tensors if t.ndim > 1 and len(t) > 1})
        like = next((t for t in tensors if t.is_floating_point() or t.is_complex()), torch.zeros(()))
        problem: Exception | None = None
        for n in (1, *sizes):
            x = torch.zeros(n, *self.x_shape, dtype=like.real.dtype, device=like.device)
            try:
                y = self._template.A(self._image(x))
                lead = {len(part) for part in _list(y)}
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
                problem = problem or error
                continue
            if lead == {n}:
                return n, y
        shown = f": {problem}" if problem else ""
        raise InputError(
            f"{type(self._template).__name__} does not measure images of shape {self.x_shape} one by one (complex={self.complex}){shown}"
        )

    @property
    def complex_output(self) -> bool:  # type: ignore[override]
        return not self._stacked and self._parts[0][1]

    @property
    def physics(self) -> Any:
        """The physics with this operator's parameters; a copy, and not to be changed."""
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
        """The part of an image that real inner products see: both parts of a complex one, the real part where images are real."""
        if self.complex:
            return torch.view_as_real(image.resolve_conj() if image.is_complex() else image + 0j)
        return image.real if image.is_complex() else image

    def measurements(self, y: Any) -> Tensor:
        """What the physics returns as this operator does: complex numbers as (re, im), a stack in one row per observation."""
        parts = [torch.view_as_real(part.resolve_conj()) if part.is_complex() else part for part in _list(y)]
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
            raise InputError(f"the stacked physics measures {sum(sizes)} numbers, got y of shape {tuple(y.shape)}")
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
        physical = self._physical(y)  # also says when y does not fit
        if self.adjoint_by == "physics":
            return self._real(self.physics.A_adjoint(physical))
        with torch.enable_grad():
            x = torch.zeros(len(y), *self.x_shape, dtype=y.dtype, device=y.device, requires_grad=True)
            out = self._forward(x)
        return torch.autograd.grad(out, x, y)[0]

    def measured(self, y: Tensor) -> Tensor | None:
        if "measured" not in self._cache:
            # a row of A that is zero answers every image with 0; any other, a random image with something else
            index = torch.arange(self.batch or 1, device=y.device)
            x = Stream(0, "physics rows").normal(index, self.x_shape, dtype=y.dtype)
            with torch.no_grad():
                rows = self._forward(x) != 0
            self._cache["measured"] = None if rows.all() else rows
        return self._cache["measured"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._template).__name__}, x_shape={self.x_shape})"


def _list(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else list(y)


def _parts(y: Any) -> tuple[tuple[tuple[int, ...], bool], ...]:
    """Shape per observation, and whether complex, of every tensor the physics returns."""
    return tuple((tuple(part.shape[1:]), part.is_complex()) for part in _list(y))


def operator(
    physics: Any,
    x_shape: tuple[int, ...],
    *,
    complex: bool = False,
    adjoint: Literal["physics", "autograd"] = "physics",
    per_observation: tuple[str, ...] | None = None,
    checked: bool = True,
) -> PhysicsOperator:
    """A deepinv `LinearPhysics` as an operator, in the precision and on the device of the physics; `.to(...)` moves it.

    x_shape: the shape of one image. Images of a complex dtype travel as real views: complex=True, and a last axis of size 2 in x_shape.
    adjoint: the physics' own, or by automatic differentiation where that one is not the adjoint.
    per_observation: the names of the tensors whose first axis counts observations, like `mask` or `physics_list.0.filter`; when not
        given, those as long as the batch the physics works on.
    checked: whether `operators.check` is run on it, which raises when the physics is not linear or the adjoint is not one.

    y is what the physics returns; complex numbers as a last axis (re, im), a stack of several as one row per observation
    (`A.measurements(y)` makes it so).
    """
    A = PhysicsOperator(physics, x_shape, complex, adjoint, per_observation)
    if checked:
        few = A if A.batch is None else A[:3]
        like = next((t for t in A._tensors.values() if t.is_floating_point()), torch.zeros(()))
        try:
            check(few, A.x_shape, dtype=like.dtype, device=like.device)
        except OperatorError as error:
            hint = "" if adjoint == "autograd" else "\nif only its adjoint is at fault, pass adjoint='autograd'"
            raise InputError(f"{error}{hint}") from None
    return A


def _noise(physics: Any, A: PhysicsOperator, n: int) -> list[Tensor]:
    """The standard deviation on every real number of each part: `()` or `(n,)`."""
    owners = list(physics.physics_list) if A._stacked else [physics]
    sigmas = []
    for owner, (_, is_complex) in zip(owners, A._parts, strict=True):
        model = owner.noise_model
        if not isinstance(model, GaussianNoise):
            raise InputError(f"the noise of the physics is {type(model).__name__}, not Gaussian: pass sigma=...")
        sigma = model.sigma.detach().real.double().flatten()  # a complex physics makes it complex
        if len(sigma) not in (1, n):
            raise InputError(f"the physics has {len(sigma)} noise levels for {n} observations")
        # deepinv's noise on a complex number has variance σ² in all, half on each part
        sigma = sigma / math.sqrt(2) if is_complex else sigma
        sigmas.append(sigma[0] if len(sigma) == 1 else sigma)
    return sigmas


def observations(
    y: Any,
    physics: Any,
    x_shape: tuple[int, ...],
    *,
    sigma: float | Tensor | None = None,
    range: Range | None = None,
    **options: Any,
) -> Observations:
    """Measurements of a physics as observations.

    y: as the physics returns them, a `TensorList` of a stack included. sigma: the noise on every real number, one or `(n,)`; the
        physics' own Gaussian noise when not given.
    range: with x = scale·u + shift for the images u the physics sees, Ax = scale·Au + A(shift): y and the noise are changed accordingly.
    options: those of `operator`.
    """
    A, change = operator(physics, x_shape, **options), range or Range()
    own = _list(y)
    if _parts(y) != A._parts:
        shapes = ", ".join(str(tuple(part.shape)) for part in own)
        raise InputError(f"y ({shapes}) is not what {type(physics).__name__} measures of images {tuple(x_shape)}")
    test = [torch.linspace(-3, 3, part[:1].numel()).to(part).reshape(part[:1].shape) for part in own]
    seen = physics.sensor(TensorList([t.clone() for t in test]) if A._stacked else test[0].clone())
    if not all(torch.equal(a, b) for a, b in zip(_list(seen), test, strict=True)):
        raise InputError("the physics has a sensor that is not linear; its measurements are not Ax plus noise")
    rows = A.measurements(y)
    if change.shift:
        constant = torch.full((len(rows), *A.x_shape), change.shift, dtype=rows.dtype, device=rows.device)
        rows = change.scale * rows + A(constant)
    else:
        rows = change.scale * rows
    if sigma is not None:
        return Observations(rows, A, change.scale * torch.as_tensor(sigma))
    sigmas = [change.scale * s for s in _noise(physics, A, len(rows))]
    if all(torch.equal(s, sigmas[0]) for s in sigmas):
        return Observations(rows, A, sigmas[0])
    sizes = [math.prod(shape) * (1 + is_complex) for shape, is_complex in A._parts]
    variances = torch.cat([(s**2).reshape(-1, 1).expand(-1, m) for s, m in zip(_same(sigmas), sizes, strict=True)], 1)
    return Observations(rows, A, cov=Diagonal(variances[0] if len(variances) == 1 else variances).to(rows))


def _same(sigmas: list[Tensor]) -> list[Tensor]:
    n = max(s.numel() for s in sigmas)
    return [s.reshape(-1).expand(n).cpu() for s in sigmas]


class Reconstructor(deepinv.models.Reconstructor):
    """The posterior of a prior as a deepinv reconstructor: `model(y, physics)` is the mean of `draws` posterior draws.

    range: how the images of the physics, usually in [0, 1], relate to those of the prior.
    method, options: of `prior.posterior`. steps, sampler, seed: of `posterior.sample`. sigma, physics_options: of `observations`.

    The same y gives the same answer: random numbers are addressed by seed and place in the batch.
    """

    def __init__(
        self,
        prior: Prior,
        *,
        range: Range | None = None,
        method: str = "mmps",
        draws: int = 1,
        steps: int = DEFAULT_STEPS,
        sampler: str | Sampler = DEFAULT_SAMPLER,
        seed: int = 0,
        sigma: float | Tensor | None = None,
        physics_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.prior, self.range, self.method, self.options = prior, range or Range(), method, options
        self.draws, self.steps, self.sampler, self.seed = draws, steps, sampler, seed
        self.sigma, self.physics_options = sigma, physics_options or {}

    def posterior(self, y: Any, physics: Any) -> Posterior:
        """The posterior in the prior's scale, one sample per observation."""
        obs = observations(
            y, physics, self.prior.event_shape, sigma=self.sigma, range=self.range, **self.physics_options
        )
        return cast(Posterior, self.prior.posterior(obs, self.method, **self.options))

    def sample(self, y: Any, physics: Any, draws: int | None = None) -> Tensor:
        """Posterior draws `(draws, n, *event)` in the scale of the physics, complex where its images are."""
        x = self.posterior(y, physics).sample(
            draws or self.draws, steps=self.steps, sampler=self.sampler, seed=self.seed, progress=False
        )
        u = self.range.theirs(x)
        return torch.view_as_complex(u.contiguous()) if self.physics_options.get("complex") else u

    def forward(self, y: Any, physics: Any, **kwargs: Any) -> Tensor:
        if kwargs:
            raise InputError(f"the reconstructor takes y and the physics, got also {', '.join(kwargs)}")
        return self.sample(y, physics).mean(0)


class Denoiser(deepinv.models.Denoiser):
    """A prior as a deepinv denoiser of images in the scale of `range`, usually [0, 1]: `model(u_t, sigma)`."""

    def __init__(self, prior: Prior, *, range: Range | None = None) -> None:
        super().__init__()
        self.prior, self.range = prior, range or Range()

    def forward(self, x: Tensor, sigma: float | Tensor, **kwargs: Any) -> Tensor:
        if isinstance(sigma, Tensor):
            sigma = sigma.reshape(()) if sigma.numel() == 1 else sigma.reshape(len(x))
        return self.range.theirs(self.prior(self.range.ours(x), self.range.scale * sigma))


__all__ = ["Denoiser", "PhysicsOperator", "Range", "Reconstructor", "observations", "operator"]
