r"""A loss that trusts measurements more than draws.

EM trains on whole draws, and a draw repeats what the prior before it believed wherever nothing was measured: with three quarters of the
pixels missing, three quarters of what was wrong with the start survive a lap, and (1 − 1/16) of what was wrong about pairs of pixels, which are
rarely measured together. Here a share m of the loss looks at the error r = d(x_t, σ) − x through the observation's own operator,

    (1 − m) ‖r‖²  +  m ‖A r‖² / g,        g = E‖Az‖² / E‖z‖² for white z,

so that the network is told mostly about values that were measured, from inputs that are whole. With W = (1 − m) I + m AᵀA/g it is smallest at

    d = E[W | x_t]⁻¹ E[W x | x_t].

Once draws follow the true posteriors, and if A was chosen without looking at x, W is independent of x and d = E[x | x_t], for every share: what
EM would stay at, this stays at. On the way a pair of pixels is wrong only through one of the two, and forgets at the rate ρ instead of
1 − (1 − ρ)², ρ the missing fraction.

If A *was* chosen by looking at x or y (adaptive sampling), W depends on x and d is biased, where EM is not: with two values of correlation 0.8, the
second measured only when the first is positive, and m = 0.8, by 0.18 of the second's standard deviation at σ = 1 and by 0.46 at σ = 10. If all
observations share one A, W is constant and there is nothing to gain. In both cases `usable_share` leaves the loss out.

What is lost is EM's guarantee that the likelihood never falls, and at m = 1 the errors of directions no operator measures are never seen.
A large m also overshoots: a push along the data comes back with its sign changed (benchmarks/overshoot.py), which `e_step.fresh` damps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import Observations
from ..data.batches import scanned_together
from ..data.draws import StoredDraws
from ..data.stored import StoredOperators
from ..operators import Operator
from ..randomness import Stream
from .augment import Augment

PROBES = 256  # observations the gain is measured on


class MeasuredLoss:
    """The squared error of examples, a share of it through the operators they were measured with."""

    def __init__(
        self, A: Operator | StoredOperators, owners: Tensor, share: float, augment: Augment, gain: float
    ) -> None:
        """A: of all observations. owners: the observation of every draw, `(draws,)`. gain: mean square of ‖Az‖ / ‖z‖."""
        self.A, self.owners, self.share, self.augment, self.gain = A, owners, share, augment, gain

    @property
    def resident(self) -> bool:
        """Whether the operators are in memory: a step that reads them from disk cannot be captured."""
        return isinstance(self.A, Operator)

    def __call__(self, error: Tensor, rows: Tensor, u: Tensor) -> Tensor:
        """error: `(n, *event)` of draws `rows` `(n,)`, augmented with the uniform numbers u; summed over all."""
        # the operator looks at the sample as it was before it was flipped or turned
        measured = self.A[self.owners[rows]](self.augment.undo(error, u))
        return (1 - self.share) * error.square().sum() + self.share / self.gain * measured.square().sum()


def mean_gain(
    A: Operator | StoredOperators, count: int, event_shape: tuple[int, ...], like: Tensor | StoredDraws, seed: int
) -> float:
    """E‖Az‖² / E‖z‖² for white z, over the first of `count` observations."""
    index = torch.arange(min(count, PROBES), device=like.device)
    z = Stream(seed, "gain").normal(index, event_shape, dtype=like.dtype)
    return float(A[index](z).double().square().sum() / z.double().square().sum())


def usable_share(share: float, obs: Observations) -> tuple[float, str | None]:
    """The share of the loss on measured values to train with on these observations, and why it differs from the recipe's."""
    if not share:
        return 0.0, None
    if obs.adaptive:
        return 0.0, (
            f"train.measured is {share:g} in the recipe and 0 here: the operators were chosen by looking (adaptive=True), "
            "which biases the loss on measured values"
        )
    if one_operator(obs):
        return 0.0, (
            f"train.measured is {share:g} in the recipe and 0 here: all observations share one operator, "
            "and the loss on measured values has nothing to gain from it"
        )
    return share, None


def one_operator(obs: Observations) -> bool:
    """Whether all observations were measured by the same operator."""
    first = _parameters(obs[:1].A)
    if not first:
        return True
    together = scanned_together(obs)
    return all(
        bool((tensor == one).all())
        for start in range(0, len(obs), together)
        for tensor, one in zip(_parameters(obs[start : start + together].A), first, strict=True)
    )


def _parameters(A: Operator) -> list[Tensor]:
    """The tensors of A and of the operators it is made of that hold one entry per observation."""
    return [*A.per_observation().values(), *(t for child in A.children() for t in _parameters(child))]
