r"""Adapters for deepinv: its linear physics as operators, and diffem's posterior and prior as its models.

A deepinv physics is mutable: it changes when it is called with parameters. The operator made here is immutable. It
contains a copy of the physics, never calls it with parameters, and selects observations by copying it with the
corresponding rows of masks, filters and coil maps. Zero rows of A, such as masked pixels, count as unmeasured.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..linalg import Diagonal
from ..observations import Observations
from ..operators import OperatorError, check
from ..posterior import Posterior
from ..priors.base import Prior
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS, Sampler
from .packages import missing
from .physics_operator import PhysicsOperator, list_of, parts_of
from .ranges import Range

try:
    import deepinv
    from deepinv.physics import GaussianNoise
    from deepinv.utils import TensorList
except ModuleNotFoundError as error:
    raise missing("deepinv", error) from None


def operator(
    physics: Any,
    x_shape: tuple[int, ...],
    *,
    complex: bool = False,
    adjoint: Literal["physics", "autograd"] = "physics",
    per_observation: tuple[str, ...] | None = None,
    checked: bool = True,
) -> PhysicsOperator:
    """Use a deepinv `LinearPhysics` as an operator, with the dtype and device of the physics; `.to(...)` moves it.

    The output y is that of the physics, with complex numbers as a last axis (re, im) and the outputs of a stack as one
    row per observation; `A.measurements(y)` converts it.

    Args:
        physics: The physics.
        x_shape: The shape of one image. Complex images are real views: a last axis of size 2, and `complex=True`.
        complex: Whether the physics expects complex images.
        adjoint: "physics" for its own adjoint, "autograd" for automatic differentiation, if its own is not the adjoint.
        per_observation: Names of the tensors whose first axis is the batch axis, such as `mask` or
            `physics_list.0.filter`. Default: those whose first axis has the batch size of the physics.
        checked: Run `operators.check`.

    Raises:
        InputError: If the physics does not accept such images, is not linear, or its adjoint is wrong.
    """
    A = PhysicsOperator(physics, x_shape, complex, adjoint, per_observation)
    if checked:
        few = A if A.batch is None else A[:3]
        like = next((t for t in A._tensors.values() if t.is_floating_point()), torch.zeros(()))
        try:
            check(few, A.x_shape, dtype=like.dtype, device=like.device)
        except OperatorError as error:
            hint = "" if adjoint == "autograd" else "\nif only the adjoint is wrong, pass adjoint='autograd'"
            raise InputError(f"{error}{hint}") from None
    return A


def _noise(physics: Any, A: PhysicsOperator, n: int) -> list[Tensor]:
    """Noise level of the real numbers of each output tensor: `()` or `(n,)`."""
    owners = list(physics.physics_list) if A._stacked else [physics]
    sigmas = []
    for owner, (_, is_complex) in zip(owners, A._parts, strict=True):
        model = owner.noise_model
        if not isinstance(model, GaussianNoise):
            raise InputError(f"the noise of the physics must be Gaussian, got {type(model).__name__}; pass sigma=...")
        sigma = model.sigma.detach().real.double().flatten()  # complex if the physics is complex
        if len(sigma) not in (1, n):
            raise InputError(f"the physics has {count_of(len(sigma), 'noise level')} for {count_of(n, 'observation')}")
        # in deepinv, σ² is the variance of a complex number; each part has half of it
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
    """Convert measurements of a physics to observations.

    Args:
        y: Measurements as the physics returns them, including a `TensorList` of a stack.
        physics: The physics.
        x_shape: The shape of one image.
        sigma: Noise level of the real numbers, a number or `(n,)`. Default: the Gaussian noise of the physics.
        range: The relation x = scale·u + shift to the images u of the physics. y and its noise are converted with
            Ax = scale·Au + A(shift).
        **options: Options of `operator`.

    Raises:
        InputError: If y has another shape, or the noise is not Gaussian and `sigma` is not given.
    """
    A, change = operator(physics, x_shape, **options), range or Range()
    own = list_of(y)
    if parts_of(y) != A._parts:
        shapes = ", ".join(str(tuple(part.shape)) for part in own)
        raise InputError(f"y ({shapes}) is not what {type(physics).__name__} measures of images {tuple(x_shape)}")
    test = [torch.linspace(-3, 3, part[:1].numel()).to(part).reshape(part[:1].shape) for part in own]
    seen = physics.sensor(TensorList([t.clone() for t in test]) if A._stacked else test[0].clone())
    if not all(torch.equal(a, b) for a, b in zip(list_of(seen), test, strict=True)):
        raise InputError("the physics has a nonlinear sensor, so its measurements are not Ax plus noise")
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
    """The posterior of a prior as a deepinv reconstructor: `model(y, physics)` is the mean of posterior draws.

    The same y gives the same result: random numbers are addressed by the seed and the position in the batch.

    Args:
        prior: The prior.
        range: The relation between the images of the physics, usually in [0, 1], and those of the prior.
        method: The method of `prior.posterior`.
        draws: Number of posterior draws.
        steps: Steps of `posterior.sample`.
        sampler: Sampler of `posterior.sample`.
        seed: Seed of `posterior.sample`.
        sigma: The argument of `observations`.
        physics_options: Options of `operator`.
        **options: Options of `prior.posterior`.
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
        """The posterior, in the scale of the prior."""
        obs = observations(
            y, physics, self.prior.event_shape, sigma=self.sigma, range=self.range, **self.physics_options
        )
        return cast(Posterior, self.prior.posterior(obs, self.method, **self.options))

    def sample(self, y: Any, physics: Any, draws: int | None = None) -> Tensor:
        """Posterior draws `(draws, n, *event)` in the scale of the physics; complex if its images are."""
        x = self.posterior(y, physics).sample(
            draws or self.draws, steps=self.steps, sampler=self.sampler, seed=self.seed, progress=False
        )
        u = self.range.theirs(x)
        return torch.view_as_complex(u.contiguous()) if self.physics_options.get("complex") else u

    def forward(self, y: Any, physics: Any, **kwargs: Any) -> Tensor:
        if kwargs:
            raise InputError(f"the reconstructor accepts only y and physics, got also {', '.join(kwargs)}")
        return self.sample(y, physics).mean(0)


class Denoiser(deepinv.models.Denoiser):
    """A prior as a deepinv denoiser, `model(u_t, sigma)`.

    Args:
        prior: The prior.
        range: The relation between the images of the denoiser, usually in [0, 1], and those of the prior.
    """

    def __init__(self, prior: Prior, *, range: Range | None = None) -> None:
        super().__init__()
        self.prior, self.range = prior, range or Range()

    def forward(self, x: Tensor, sigma: float | Tensor, **kwargs: Any) -> Tensor:
        if isinstance(sigma, Tensor):
            sigma = sigma.reshape(()) if sigma.numel() == 1 else sigma.reshape(len(x))
        return self.range.theirs(self.prior(self.range.ours(x), self.range.scale * sigma))


__all__ = ["Denoiser", "PhysicsOperator", "Range", "Reconstructor", "observations", "operator"]
