r"""A loss that trusts measurements more than draws.

EM trains on whole draws, and a draw repeats what the prior before it believed wherever nothing was measured: with three quarters of the
pixels missing, three quarters of what was wrong with the start survive a lap, and (1 − 1/16) of what was wrong about pairs of pixels, which are
rarely measured together. Here a share m of the loss looks at the error r = d(x_t, σ) − x where the observation determined x,

    (1 − m) ‖r‖²  +  m rᵀD'r / g,      D = I − (I + s² AᵀΣ_y⁻¹A)⁻¹,      g = E zᵀD'z / E‖z‖² for white z,

so that the network is told mostly about values that were measured, from inputs that are whole. D (`determined.py`) is the part of x that y
fixes beyond its noise, with s the prior's scale. For masks and k-space D' is D; with little noise rᵀDr is then ‖Ar‖² and g the share of measured
values. For other operators D' is D relative to its mean over observations, direction by direction. ‖Ar‖² in general
would weigh a direction by the square of the gain of A: through a blur what it damps would hardly be trained, and draws would be about
twice as wrong (benchmarks/blurs.py). With W = (1 − m) I + m D'/g the loss is smallest at

    d = E[W | x_t]⁻¹ E[W x | x_t].

Once draws follow the true posteriors, and if A and the noise level were chosen without looking at x, W is independent of x and d = E[x | x_t], for every share: what
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

from ..core.randomness import Stream
from ..observations import Observations
from ..observations.batches import scanned_together
from ..operators import Operator
from ..runs.lap_draws import StoredDraws
from .augment import Augment
from .determined import Determined

PROBES = 256  # observations the gain is measured on


class MeasuredLoss:
    """The squared error of examples, a share of it where their observations determined x."""

    def __init__(self, D: Determined, owners: Tensor, share: float, augment: Augment, gain: float) -> None:
        """D: of all observations. owners: the observation of every draw, `(draws,)`. gain: mean of zᵀD'z / ‖z‖² for white z."""
        self.D, self.owners, self.share, self.augment, self.gain = D, owners, share, augment, gain

    @property
    def resident(self) -> bool:
        """Whether the operators are in memory: a step that reads them from disk cannot be captured."""
        return self.D.resident

    def __call__(self, error: Tensor, rows: Tensor, u: Tensor) -> Tensor:
        """error: `(n, *event)` of draws `rows` `(n,)`, augmented with the uniform numbers u; summed over all."""
        # the operator looks at the sample as it was before it was flipped or turned
        measured = self.D.weighed(self.augment.undo(error, u), self.owners[rows])
        return (1 - self.share) * error.square().sum() + self.share / self.gain * measured


def mean_gain(D: Determined, count: int, event_shape: tuple[int, ...], like: Tensor | StoredDraws, seed: int) -> float:
    """E zᵀD'z / E‖z‖² for white z, over the first of `count` observations; 1 if nothing was determined."""
    index = torch.arange(min(count, PROBES), device=like.device)
    z = Stream(seed, "gain").normal(index, event_shape, dtype=like.dtype)
    return float(D.weighed(z, index).double() / z.double().square().sum()) or 1.0


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
