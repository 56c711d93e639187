r"""The pivot: the information of x_t and y about x as one Gaussian.

With x_t = x + σz and y = A x + e, the product of the two likelihoods is a Gaussian in x with precision and centre

    Λ = I/σ² + G,      m = Λ⁻¹ (x_t/σ² + AᵀΣ_y⁻¹y),      G = AᵀΣ_y⁻¹A.

So E[x | x_t, y] = E[x | x + w = m] with noise w ~ N(0, Λ⁻¹): conditioning any prior on y is denoising the pivot m,
exactly, without a Jacobian. Λ⁻¹ = σ²K with K = (I + σ²G)⁻¹, whose eigenvalues in (0, 1] are the share of each direction
that is still unknown. In the basis where G is diagonal (`operators/spectrum.py`), with ỹ = g⁻¹ B AᵀΣ_y⁻¹y the value
that y alone gives a coordinate,

    m = K x_t + Bᵀ (1 − k) ỹ:

measured coordinates move from x_t to ỹ by the share that y determines, and the others are unchanged. (As a correction
of x_t, x_t + Bᵀ (1 − k) (ỹ − B x_t), it would be rounded to the precision of x_t, which is large at large σ.) If no
such basis is available, `correction.py` replaces the pivot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import per_sample
from ..observations import Observations
from ..operators.spectrum import DiagonalInformation, determined_share, rounded


class Pivot:
    """The pivot of n observations whose information is diagonal in a known basis (`observations/information.py`)."""

    def __init__(self, obs: Observations, information: DiagonalInformation) -> None:
        """information: A computed basis should have the precision of float64 (`information_of(obs, exact=True)`).

        ỹ divides by small gains: this amplifies the noise of y as it should, but also rounding errors of the basis.
        """
        exact = obs.to(dtype=torch.float64)
        basis = rounded(information, torch.float64)
        scaled = basis.coordinates(exact.A.adjoint(exact.noise.solve(exact.y)))
        values = torch.where(basis.gains > 0, scaled / torch.where(basis.gains > 0, basis.gains, 1), 0)
        self.information = rounded(information, obs.y.dtype)
        self._values = values.to(self.information.coordinates(obs.y.new_zeros(1, *obs.x_shape)).dtype)

    def centre(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """Compute m, `(n, *event)`, at the noise level sigma, `()` or `(n,)`."""
        determined = determined_share(sigma)(self.information.gains) * self._values
        return self.unknown(x_t, sigma) + self.information.restore(determined, x_t.shape)

    def unknown(self, v: Tensor, sigma: Tensor) -> Tensor:
        """Compute K v, the part of v `(n, *event)` that the observation does not determine."""
        return self.information.combine((lambda gains: 1 / (1 + per_sample(sigma, gains) ** 2 * gains), v))


class IdentityPivot:
    """The pivot of observations that give no linear information about x: x_t itself."""

    def centre(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """Return x_t, `(n, *event)`."""
        return x_t
