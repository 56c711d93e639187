r"""The loss on measured values, which weights measured values more than drawn ones.

EM trains on complete draws, and the unmeasured entries of a draw come from the previous prior. With three quarters of
the pixels missing, three quarters of the start's errors survive a lap, and (1 − 1/16) of the errors about pairs of
pixels, which are rarely measured together. Here a weight m of the loss applies to the part of the error r = d(x_t, σ) −
x that the observation determined,

    (1 − m) ‖r‖²  +  m rᵀD'r / g,      D = I − (I + s² AᵀΣ_y⁻¹A)⁻¹,      g = E zᵀD'z / E‖z‖² for white z,

so that the network learns mostly from measured values, with complete inputs. D (`determined.py`) is the part of x that
y determines beyond its noise, with s the prior's scale. For masks and k-space D' is D; with little noise rᵀDr is then
‖Ar‖² and g the fraction of measured values. For other operators D' is D relative to its mean over observations,
direction by direction. ‖Ar‖² would weight a direction by the squared gain of A: directions that a blur damps would
hardly be trained, and the error of draws would be about twice as large (benchmarks/blurs.py). With W = (1 − m) I + m
D'/g the loss has its minimum at

    d = E[W | x_t]⁻¹ E[W x | x_t].

If the draws follow the true posteriors, and A and the noise level are independent of x, then W is independent of x and
d = E[x | x_t] for every weight: the fixed point is that of EM. On the way, an error about a pair of pixels enters
through one of the two only, and decays with the factor ρ per lap instead of 1 − (1 − ρ)², with ρ the missing fraction.

If A depends on x or y (adaptive sampling), W depends on x and d is biased, whereas EM is not. With two values of
correlation 0.8, the second measured only if the first is positive, and m = 0.8, the bias is 0.18 of the second's
standard deviation at σ = 1 and 0.46 at σ = 10. If all observations share one A, W is constant and nothing is gained. In
both cases `usable_share` sets the weight to 0.

EM's guarantee that the likelihood never decreases is lost, and at m = 1 errors in directions that no operator measures
do not enter the loss. A large m also overshoots: an error along the data returns with opposite sign
(benchmarks/overshoot.py), which `e_step.fresh` damps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..observations import Observations
from ..observations.batches import in_parts
from ..observations.features import is_simulated
from ..operators import Operator
from ..runs.draws import StoredDraws
from .augment import Augment
from .determined import DeterminedPart

PROBES = 256  # observations for the estimate of the gain


class MeasuredLoss:
    """The squared error of examples, with additional weight on what their observations determined.

    Args:
        D: The determined part of x of all observations.
        owners: (draws,). The observation of every draw.
        share: The weight m.
        augment: The augmentations of the draws.
        gain: g, the mean of zᵀD'z / ‖z‖² for white z.
    """

    def __init__(self, D: DeterminedPart, owners: Tensor, share: float, augment: Augment, gain: float) -> None:
        self.D, self.owners, self.share, self.augment, self.gain = D, owners, share, augment, gain

    @property
    def resident(self) -> bool:
        """Whether the operators are in memory. A step that reads them from disk cannot be captured."""
        return self.D.resident

    def __call__(self, error: Tensor, rows: Tensor, u: Tensor) -> Tensor:
        """Return the sum of the losses of some examples, `()`.

        Args:
            error: (n, *event). Their errors.
            rows: (n,). Their draws.
            u: The uniform numbers of their augmentation.
        """
        # the operator applies to the sample before its augmentation
        measured = self.D.weighted_energy(self.augment.undo(error, u), self.owners[rows])
        return (1 - self.share) * error.square().sum() + self.share / self.gain * measured


def mean_gain(
    D: DeterminedPart, count: int, event_shape: tuple[int, ...], like: Tensor | StoredDraws, seed: int
) -> float:
    """Return E zᵀD'z / E‖z‖² for white z, over the first of `count` observations; 1 if nothing was determined."""
    index = torch.arange(min(count, PROBES), device=like.device)
    z = Stream(seed, "gain").normal(index, event_shape, dtype=like.dtype)
    return float(D.weighted_energy(z, index).double() / z.double().square().sum()) or 1.0


def usable_share(share: float, obs: Observations) -> tuple[float, str | None]:
    """Return the weight of the loss on measured values for these observations, and why it differs from the recipe's."""
    if not share:
        return 0.0, None
    if is_simulated(obs):
        return 0.0, (
            f"train.measured is {share:g} in the recipe, but this run uses 0: the loss on measured values needs linear "
            "operators, and the observations come from a Channel"
        )
    if obs.adaptive:
        return 0.0, (
            f"train.measured is {share:g} in the recipe, but this run uses 0: the operators depend on x "
            "(adaptive=True), which biases the loss on measured values"
        )
    if one_operator(obs):
        return 0.0, (
            f"train.measured is {share:g} in the recipe, but this run uses 0: all observations share one operator, "
            "so the loss on measured values has no advantage"
        )
    return share, None


def one_operator(obs: Observations) -> bool:
    """Whether all observations have the same operator."""
    first = _parameters(obs[:1].A)
    if not first:
        return True
    return all(
        bool((tensor == one).all())
        for part in in_parts(obs)
        for tensor, one in zip(_parameters(part.A), first, strict=True)
    )


def _parameters(A: Operator) -> list[Tensor]:
    """Return the tensors of A and its parts that have one entry per observation."""
    return [*A.per_observation().values(), *(t for child in A.children() for t in _parameters(child))]
