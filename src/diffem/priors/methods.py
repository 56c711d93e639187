"""The posterior methods that `Prior.posterior` finds by name; the package `posterior` registers its own when diffem is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias

from torch import Tensor

from ..observations import Observations


class Conditioned(Protocol):
    """A prior conditioned on n observations: a denoiser whose sample i belongs to observation i; `posterior.Posterior` is the class.

    Attributes:
        method: The name of the posterior method.
        obs: The observations.
    """

    method: ClassVar[str]
    obs: Observations

    def __call__(self, x_t: Tensor, sigma: Tensor | float) -> Tensor:
        """E[x | x_t, y], `(n, *event)`."""
        ...

    def sample(self, *args: Any, **options: Any) -> Any:
        """One draw per observation, `(n, *event)`; see `posterior.Posterior.sample`."""
        ...


Chooser: TypeAlias = Callable[[Any, Observations], tuple[str, str]]

METHODS: dict[str, Callable[..., Conditioned]] = {}  # (prior, obs, **options), by name
CHOOSERS: list[Chooser] = []  # (prior, obs) -> the best method and why; the last one is used
