r"""The pivot: everything that x_t and y say about x, as one Gaussian.

With x_t = x + σz and y = A x + e, the product of the two likelihoods is a Gaussian in x with precision and centre

    Λ = I/σ² + G,      m = Λ⁻¹ (x_t/σ² + AᵀΣ_y⁻¹y),      G = AᵀΣ_y⁻¹A.

So E[x | x_t, y] = E[x | x + w = m] with noise w ~ N(0, Λ⁻¹): conditioning any prior on y is denoising the pivot m, exactly, without a
Jacobian. Λ⁻¹ = σ²K with K = (I + σ²G)⁻¹, whose eigenvalues in (0, 1] tell how much of each direction is still unknown. G is diagonal
in a known basis for many operators (`operators/spectrum.py`), and m = K (x_t + σ² AᵀΣ_y⁻¹y) costs two changes of basis.
"""

from __future__ import annotations

from torch import Tensor

from ..data import Observations
from ..operators.spectrum import Spectrum
from ..shapes import per_sample


class Pivot:
    """The pivot of n observations whose information has the spectrum `spectrum` (`Observations.information`)."""

    def __init__(self, obs: Observations, spectrum: Spectrum) -> None:
        self.spectrum = spectrum
        self._precise_y = obs.A.adjoint(obs.noise.solve(obs.y))  # AᵀΣ_y⁻¹y, (n, *event)

    def centre(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """m, `(n, *event)`; sigma: `()` or `(n,)`."""
        return self.unknown(x_t + per_sample(sigma, x_t) ** 2 * self._precise_y, sigma)

    def unknown(self, v: Tensor, sigma: Tensor) -> Tensor:
        """K v, the part of v `(n, *event)` that the observation leaves open."""
        return self.spectrum.apply(lambda gains: 1 / (1 + per_sample(sigma, gains) ** 2 * gains), v)
