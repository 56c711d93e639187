r"""Denoising under noise that differs from direction to direction.

The pivot m of x_t and y (`posterior/pivot.py`) is x with noise of covariance C = (I/σ² + G)⁻¹, G = AᵀΣ_y⁻¹A. With everything in units of the
prior's scale, a network h is preconditioned per eigenvalue c² of C as Karras et al. (2022) do for one noise level (σ_data = 1):

    D(m, C) = (I + C)⁻¹ m + C^½ (I + C)^-½ h((I + C)^-½ m, log σ, what was measured).

Where nothing is measured c = σ, and this is the ordinary denoiser of `diffusion.py`. In training m = x + C^½ z, and with the weight λ = 1/σ² + 1

    √λ (D − x) = √λ C^½ (I + C)^-½ (h − (I + C)^-½ (C^½ x − z)):

errors weigh 1 where nothing is measured and (σ_y/σ)² where the value is known up to σ_y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..operators.spectrum import Information
from ..shapes import per_sample


@dataclass(frozen=True)
class Preconditioning:
    """C at one noise level, with what is made of it.

    Attributes:
        information: G in units of the prior's scale.
        level: σ in the same units, `()` or `(n,)`.
    """

    information: Information
    level: Tensor

    def _of_variance(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A function of c² as one of the eigenvalues of G."""
        return lambda gains: function(1 / (per_sample(self.level, gains) ** -2 + gains))

    def corrupt(self, x: Tensor, z: Tensor) -> Tensor:
        """m = x + C^½ z, for white noise z `(n, *event)`."""
        return x + self.information.combine((self._of_variance(torch.sqrt), z))

    def input(self, m: Tensor) -> Tensor:
        """(I + C)^-½ m, of unit size."""
        return self.information.combine((self._of_variance(lambda c2: (1 + c2).rsqrt()), m))

    def output(self, m: Tensor, h: Tensor) -> Tensor:
        """D(m, C), given what the network returned for the input."""
        skip, out = self._of_variance(lambda c2: 1 / (1 + c2)), self._of_variance(lambda c2: (c2 / (1 + c2)).sqrt())
        return self.information.combine((skip, m), (out, h))

    def target(self, x: Tensor, z: Tensor) -> Tensor:
        """(I + C)^-½ (C^½ x − z): what the network should return for m = x + C^½ z."""
        clean, noise = (
            self._of_variance(lambda c2: (c2 / (1 + c2)).sqrt()),
            self._of_variance(lambda c2: (1 + c2).rsqrt()),
        )
        return self.information.combine((clean, x), (lambda gains: -noise(gains), z))

    def weigh(self, error: Tensor) -> Tensor:
        """√λ C^½ (I + C)^-½ times the network's error: the weighted error of the denoiser."""

        def weight(gains: Tensor) -> Tensor:
            sigma2 = per_sample(self.level, gains) ** 2
            return ((1 + 1 / sigma2) / (1 + 1 / sigma2 + gains)).sqrt()

        return self.information.combine((weight, error))
