r"""A replacement of the pivot for operators of which only products with A and Aᵀ are available: x_t and a correction.

The pivot m itself takes many products with A at large σ, since it must separate weakly measured directions from
unmeasured ones. Its linear estimate does not. In units of the prior's scale, with s² = 1/(1 + σ²) and B = ((1 + 1/σ²) I
+ G)⁻¹,

    (I + C)⁻¹ m = s² x_t + t,      t = B AᵀΣ_y⁻¹ (y − s² A x_t):

s² x_t is the mean of x ~ N(0, I) given x_t, and t corrects it by the measurement, with a system whose condition number
is at most the squared ratio of signal and noise, for any σ. Given G, the pair (x_t, t) has the same information as m,
and D(m, C) is a function of it.
"""

from __future__ import annotations

from torch import Tensor

from ..observations import Observations
from ..observations.krylov import Krylov
from ..priors.preconditioning import KrylovPreconditioning


class Correction:
    """x_t and t for n observations, computed from products with A and Aᵀ."""

    def __init__(self, obs: Observations, information: Krylov, scale: float) -> None:
        """Keep the observations and their information.

        Args:
            obs: The n observations.
            information: G in units of `scale`.
            scale: The scale of the prior.
        """
        self._y, self._information, self._scale = obs.y, information, scale

    def centre(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """(x_t, t), `(n, 2, *event)`; sigma: `()` or `(n,)`."""
        noise = KrylovPreconditioning(self._information, sigma / self._scale)
        return noise.corrected(x_t / self._scale, self._y) * self._scale
