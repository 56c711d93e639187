r"""The pivot: the information of x_t and y about x as one Gaussian.

With x_t = x + σz and y = A x + e, the product of the two likelihoods is a Gaussian in x with precision and centre

    Λ = I/σ² + G,      m = Λ⁻¹ (x_t/σ² + AᵀΣ_y⁻¹y),      G = AᵀΣ_y⁻¹A.

So E[x | x_t, y] = E[x | x + w = m] with noise w ~ N(0, Λ⁻¹): conditioning any prior on y is denoising the pivot m,
exactly, without a Jacobian. Λ⁻¹ = σ²K with K = (I + σ²G)⁻¹, whose eigenvalues in (0, 1] are the share of each direction
that is still unknown. In the basis where G is diagonal (`operators/spectrum.py`), with ỹ = g⁻¹ B AᵀΣ_y⁻¹y the value
that y alone gives a coordinate,

    m = x_t + Bᵀ (1 − k) (ỹ − B x_t):

measured coordinates move from x_t to ỹ by the share that y determines, and the others are unchanged. If no such basis
is available, `correction.py` replaces the pivot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import per_sample
from ..observations import Observations
from ..operators.spectrum import DiagonalInformation, determined_share


class Pivot:
    """The pivot of n observations whose information is diagonal in a known basis (`observations/information.py`)."""

    def __init__(self, obs: Observations, information: DiagonalInformation) -> None:
        self.information = information
        # ỹ divides by small gains: in float64 this amplifies the noise of y, but no rounding errors
        exact = obs.to(dtype=torch.float64)
        tensors = {name: tensor.double() for name, tensor in information.tensors().items()}
        basis, gains = information.with_tensors(tensors), tensors["gains"]
        scaled = basis.coordinates(exact.A.adjoint(exact.noise.solve(exact.y))) / torch.where(gains > 0, gains, 1)
        values = torch.where(gains > 0, scaled, 0)
        self._values = values.to(information.coordinates(obs.y.new_zeros(1, *obs.x_shape)).dtype)

    def centre(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """Compute m, `(n, *event)`, at the noise level sigma, `()` or `(n,)`."""
        move = determined_share(sigma)(self.information.gains) * (self._values - self.information.coordinates(x_t))
        return x_t + self.information.restore(move, x_t.shape)

    def unknown(self, v: Tensor, sigma: Tensor) -> Tensor:
        """Compute K v, the part of v `(n, *event)` that the observation does not determine."""
        return self.information.combine((lambda gains: 1 / (1 + per_sample(sigma, gains) ** 2 * gains), v))


class IdentityPivot:
    """The pivot of observations that give no linear information about x: x_t itself."""

    def centre(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """Return x_t, `(n, *event)`."""
        return x_t
