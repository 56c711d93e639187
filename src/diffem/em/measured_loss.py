r"""A loss that trusts measurements more than draws.

EM trains on whole draws, and a draw repeats what the prior before it believed wherever nothing was measured: with three quarters of the
pixels missing, three quarters of what was wrong with the start survive a lap, and (1 − 1/16) of what was wrong about pairs of pixels, which are
rarely measured together. Here a share m of the loss looks at the error r = d(x_t, σ) − x through the observation's own operator,

    (1 − m) ‖r‖²  +  m ‖A r‖² / g,        g = E‖Az‖² / E‖z‖² for white z,

so that the network is told mostly about values that were measured, from inputs that are whole. Once draws follow the true posteriors, A says
nothing about x, and E[AᵀA (d − x) | x_t] = 0 has the same solution d = E[x | x_t] as before: what EM would stay at, this stays at. On the way
a pair of pixels is wrong only through one of the two, and forgets at the rate ρ instead of 1 − (1 − ρ)², ρ the missing fraction.
What is lost is EM's guarantee that the likelihood never falls, and at m = 1 the errors of directions no operator measures are never seen.
A large m also overshoots: a push along the data comes back with its sign changed (benchmarks/overshoot.py), which `e_step.fresh` damps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators import Operator
from ..randomness import Stream
from .augment import Augment

PROBES = 256  # observations the gain is measured on


class MeasuredLoss:
    """The squared error of examples, a share of it through the operators they were measured with."""

    def __init__(self, A: Operator, owners: Tensor, share: float, augment: Augment, gain: float) -> None:
        """A: of all observations. owners: the observation of every draw, `(draws,)`. gain: mean square of ‖Az‖ / ‖z‖."""
        self.A, self.owners, self.share, self.augment, self.gain = A, owners, share, augment, gain

    def __call__(self, error: Tensor, rows: Tensor, u: Tensor) -> Tensor:
        """error: `(n, *event)` of draws `rows` `(n,)`, augmented with the uniform numbers u; summed over all."""
        # the operator looks at the sample as it was before it was flipped or turned
        measured = self.A[self.owners[rows]](self.augment.undo(error, u))
        return (1 - self.share) * error.square().sum() + self.share / self.gain * measured.square().sum()


def mean_gain(A: Operator, count: int, event_shape: tuple[int, ...], like: Tensor, seed: int) -> float:
    """E‖Az‖² / E‖z‖² for white z, over the first of `count` observations."""
    index = torch.arange(min(count, PROBES), device=like.device)
    z = Stream(seed, "gain").normal(index, event_shape, dtype=like.dtype)
    return float(A[index](z).double().square().sum() / z.double().square().sum())
