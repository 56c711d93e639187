"""The posterior methods by name, as `Prior.posterior` finds them.

The package `posterior` adds its methods when diffem is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, overload

from ..core.lazy import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from ..observations import Observations


class ConditionedPrior(Protocol):
    """A prior conditioned on n observations: a denoiser whose sample i belongs to observation i.

    See `posterior.Posterior`.

    Attributes:
        method: The name of the posterior method.
        obs: The observations.
    """

    method: ClassVar[str]
    obs: Observations

    def __call__(self, x_t: Tensor, sigma: Tensor | float) -> Tensor:
        """E[x | x_t, y], `(n, *event)`."""
        ...

    @overload
    def sample(
        self,
        draws: int | None = ...,
        steps: int = ...,
        sampler: Any = ...,
        seed: int = ...,
        *,
        return_stats: Literal[False] = ...,
        **options: Any,
    ) -> Tensor: ...
    @overload
    def sample(
        self,
        draws: int | None = ...,
        steps: int = ...,
        sampler: Any = ...,
        seed: int = ...,
        *,
        return_stats: Literal[True],
        **options: Any,
    ) -> tuple[Tensor, Any]: ...
    def sample(self, *args: Any, **options: Any) -> Any:
        """One draw per observation, `(n, *event)`; see `posterior.Posterior.sample`."""
        ...


METHODS: Registry[Callable[..., ConditionedPrior]] = Registry()  # (prior, obs, **options), by name
