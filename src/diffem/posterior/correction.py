r"""What takes the place of the pivot where AᵀΣ_y⁻¹A is known only by products with A: x_t and a correction of it.

The pivot m itself takes many products with A at large σ: it has to tell directions that were hardly measured from those that were not measured at
all. Its linear estimate does not. In units of the prior's scale, with s² = 1/(1 + σ²) and B = ((1 + 1/σ²) I + G)⁻¹,

    (I + C)⁻¹ m = s² x_t + t,      t = B AᵀΣ_y⁻¹ (y − s² A x_t):

s² x_t is the mean of x ~ N(0, I) given x_t, and t corrects it by the measurement, with a system whose condition number is at most the
squared ratio of signal and noise, whatever σ. Given G, the pair (x_t, t) is as much as m, and D(m, C) can be computed from it.
"""

from __future__ import annotations

from torch import Tensor

from ..observations import Observations
from ..observations.krylov import Krylov
from ..priors.preconditioning import Correcting


class Correction:
    """x_t and t for n observations known by products."""

    def __init__(self, obs: Observations, information: Krylov, scale: float) -> None:
        """information: in units of `scale`, the prior's."""
        self._y, self._information, self._scale = obs.y, information, scale

    def centre(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """(x_t, t), `(n, 2, *event)`; sigma: `()` or `(n,)`."""
        noise = Correcting(self._information, sigma / self._scale)
        return noise.corrected(x_t / self._scale, self._y) * self._scale
