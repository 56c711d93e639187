r"""Any measurement that can be simulated: y ~ p(y | x), drawn by a function of the user.

Photon counts, saturation, quantisation, compression and phase retrieval are not of the form y = A x + Gaussian noise,
but y can be simulated from x. That is enough for the conditional E-step: a network receives features(y), an image-like
array, together with x_t, and is trained on pairs of a sample x and a measurement simulated from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.random_numbers import RandomNumbers
from ..core.randomness import Stream
from .base import Operator
from .parameters import separated

NOT_LINEAR = (
    "a Channel can only be simulated: y is not A x plus Gaussian noise. Draws come from a conditional network "
    "(e_step.method: conditional, then posterior method 'conditional'), and `metrics.simulated_fit` and "
    "`metrics.observation_distance` compare them with y"
)


class Channel(Operator):
    """y = simulate(x, rng, **parameters), independent from sample to sample.

    Args:
        simulate: (n, *x_shape) → (n, *measurement). Takes all its random numbers from `rng`
            (`core.random_numbers.RandomNumbers`): `rng.normal(*shape)`, `rng.uniform(*shape)`, `rng.poisson(rate)`, or
            `rng.seeds()` for generators of other libraries. It must accept any finite x, also negative values.
        features: y (n, *measurement), **parameters → (n, channels, *x_shape[-2:]) for images, (n, numbers) for vectors.
            The input of the network; the library standardises it.
        x_shape: The shape of a sample. Default: that of the features, or of the estimate.
        estimate: y, **parameters → (n, *x_shape), a rough estimate of x for the Gaussian start and for pictures.
            Default: the features if they have the shape of a sample, otherwise none.
        random: Whether y is random given x. A deterministic channel is called without `rng`: simulate(x, **parameters).
        parameters: Keyword arguments of the functions. Tensors and arrays have a leading observation axis, and are
            sliced and moved with the channel; plain numbers are passed unchanged.
    """

    def __init__(
        self,
        simulate: Callable[..., Tensor],
        features: Callable[..., Tensor],
        x_shape: tuple[int, ...] | None = None,
        *,
        estimate: Callable[..., Tensor] | None = None,
        random: bool = True,
        **parameters: Any,
    ) -> None:
        super().__init__()
        for name, function in (("simulate", simulate), ("features", features), ("estimate", estimate)):
            if not callable(function) and (function is not None or name != "estimate"):
                raise InputError(f"Channel: {name} must be a function, got {type(function).__name__}")
        if x_shape is not None and not (
            isinstance(x_shape, tuple | list) and all(isinstance(size, int) and size > 0 for size in x_shape)
        ):
            raise InputError(f"Channel: x_shape is the shape of a sample, such as (1, 16, 16), got {x_shape!r}")
        self._simulate, self._features, self._estimate, self.random = simulate, features, estimate, random
        self.x_shape = None if x_shape is None else tuple(x_shape)
        self.numbers, tensors = separated(parameters, "Channel")
        for name, tensor in tensors.items():
            self._store(name, tensor, tensor.ndim - 1)

    def config(self) -> dict[str, Any]:
        shape = None if self.x_shape is None else list(self.x_shape)
        return {"x_shape": shape, "random": self.random, **({"numbers": self.numbers} if self.numbers else {})}

    @in_default_modes
    @torch.no_grad()
    def simulate(self, x: Tensor, stream: Stream, index: Tensor, draw: Tensor | None = None) -> Tensor:
        """Simulate measurements `(n, *measurement)` of samples x `(n, *x_shape)`.

        Args:
            x: The samples, one per observation.
            stream: The random numbers.
            index: (n,). The address of every sample.
            draw: (n,). A second part of the address. Default: 0.
        """
        self._check_batch(x, "x")
        rng = (RandomNumbers(stream, index.to(x.device), draw, x.dtype),) if self.random else ()
        return self._result("simulate", len(x), x.dtype, self._simulate(x, *rng, **self._tensors, **self.numbers))

    @in_default_modes
    @torch.no_grad()
    def features(self, y: Tensor) -> Tensor:
        """The features of measurements y `(n, *measurement)`, `(n, ...)`."""
        self._check_batch(y, "y")
        return self._result("features", len(y), y.dtype, self._features(y, **self._tensors, **self.numbers))

    @in_default_modes
    @torch.no_grad()
    def estimate(self, y: Tensor) -> Tensor | None:
        """A rough estimate of x from y `(n, *measurement)`, `(n, *x_shape)`; None if there is none."""
        if self._estimate is None:
            features = self.features(y)
            return features if self.x_shape is None or features.shape[1:] == self.x_shape else None
        self._check_batch(y, "y")
        x = self._result("estimate", len(y), y.dtype, self._estimate(y, **self._tensors, **self.numbers))
        if self.x_shape is not None and x.shape[1:] != self.x_shape:
            raise InputError(f"Channel: estimate returns {tuple(x.shape[1:])} per observation, samples {self.x_shape}")
        return x

    def fitted(self, y: Tensor) -> Channel:
        """The channel with the shape of a sample, derived from y `(1, *measurement)` if it was not given."""
        if self.x_shape is not None:
            return self
        estimate = self.estimate(y)
        assert estimate is not None
        new = self[:]
        new.x_shape = tuple(estimate.shape[1:])
        return new

    def _result(self, name: str, n: int, dtype: torch.dtype, result: Any) -> Tensor:
        """Check the result of a function of the user. Its dtype may follow from constants of the function."""
        if not isinstance(result, Tensor) or result.ndim < 2 or len(result) != n or result.is_complex():
            given = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise InputError(
                f"Channel: {name} must return a real tensor with {count_of(n, 'sample')} along its first axis and at "
                f"least one further axis, got {given}"
            )
        finite = torch.isfinite(result).flatten(1)
        if not bool(finite.all()):  # NaN would otherwise show only in the loss of a training
            first = int((~finite).any(1).nonzero()[0])
            value = float(result[first].flatten()[~finite[first]][0])
            raise InputError(f"Channel: {name} must return finite numbers, got {value} for sample {first} of {n}")
        return result.to(dtype)

    def _forward(self, x: Tensor) -> NoReturn:
        raise InputError(NOT_LINEAR)

    def _adjoint(self, y: Tensor) -> NoReturn:
        raise InputError(NOT_LINEAR)

    def measured(self, y: Tensor) -> None:
        return None
