r"""Denoising with anisotropic noise.

The pivot m of x_t and y (`posterior/pivot.py`) is x with noise of covariance C = (I/σ² + G)⁻¹, G = AᵀΣ_y⁻¹A. With
everything in units of the prior's scale, a network h is preconditioned per eigenvalue c² of C as Karras et al. (2022)
do for one noise level (σ_data = 1):

    D(m, C) = (I + C)⁻¹ m + C^½ (I + C)^-½ h((I + C)^-½ m, log σ, description of y).

If nothing is measured, c = σ, and this is the ordinary denoiser of `diffusion.py`. In training m = x + C^½ z, and with
the weight λ = 1/σ² + 1

    √λ (D − x) = √λ C^½ (I + C)^-½ (h − (I + C)^-½ (C^½ x − z)):

the weight of an error is 1 for unmeasured values and (σ_y/σ)² for values that are measured with noise σ_y.

If only products with A are available, the inputs of the network are x_t and the correction t of
`posterior/correction.py` instead of m:

    D = s² x_t + t + √(1 + 1/σ²) B h(s x_t, log σ, t),      s² = 1/(1 + σ²),      B = ((1 + 1/σ²) I + G)⁻¹.

If nothing is measured, t = 0 and B = σ²s² I, and this is again the ordinary denoiser. B damps the contribution of h, so
measured values stay close to y. In training t is computed from simulated measurements with the same fixed number of
products as in use, so the network learns to use the approximate t.

If y can only be simulated (`operators/channel.py`), G = 0 and the preconditioning is the ordinary one. The network
receives the features of y; in training they are those of a y that was simulated from x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import per_sample
from ..observations.krylov import Krylov
from ..operators.spectrum import Information
from .family import Family


@dataclass(frozen=True)
class Preconditioning:
    """C at one noise level, and the preconditioning by C.

    Attributes:
        information: G in units of the prior's scale.
        level: σ in the same units, `()` or `(n,)`.
    """

    information: Information
    level: Tensor

    def _of_variance(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Convert a function of c² to a function of the eigenvalues of G."""
        return lambda gains: function(1 / (per_sample(self.level, gains) ** -2 + gains))

    def corrupt(self, x: Tensor, z: Tensor) -> Tensor:
        """m = x + C^½ z, `(n, *event)`, for white noise z of that shape."""
        return x + self.information.combine((self._of_variance(torch.sqrt), z))

    def input(self, m: Tensor) -> Tensor:
        """(I + C)^-½ m, of unit size."""
        return self.information.combine((self._of_variance(lambda c2: (1 + c2).rsqrt()), m))

    def output(self, m: Tensor, h: Tensor) -> Tensor:
        """Compute D(m, C) from the network's output h."""
        skip, out = self._of_variance(lambda c2: 1 / (1 + c2)), self._of_variance(lambda c2: (c2 / (1 + c2)).sqrt())
        return self.information.combine((skip, m), (out, h))

    def inputs(self, m: Tensor, family: Family) -> tuple[Tensor, Tensor]:
        """Compute the network's input and the description of the observation."""
        v = self.input(m)
        return v, family.describe(self.information, v, self.level)

    def error(self, h: Tensor, m: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """Compute √λ (D(m, C) − x) from the network's output h for m = `corrupt(x, z)`."""
        return self.weighted(h - self.target(x, z))

    def target(self, x: Tensor, z: Tensor) -> Tensor:
        """The ideal output of the network for m = x + C^½ z: (I + C)^-½ (C^½ x − z)."""
        clean = self._of_variance(lambda c2: (c2 / (1 + c2)).sqrt())
        noise = self._of_variance(lambda c2: (1 + c2).rsqrt())
        return self.information.combine((clean, x), (lambda gains: -noise(gains), z))

    def weighted(self, error: Tensor) -> Tensor:
        """Convert an error of the network to the weighted error of the denoiser, by √λ C^½ (I + C)^-½."""

        def weight(gains: Tensor) -> Tensor:
            sigma2 = per_sample(self.level, gains) ** 2
            return ((1 + 1 / sigma2) / (1 + 1 / sigma2 + gains)).sqrt()

        return self.information.combine((weight, error))


@dataclass(frozen=True)
class KrylovPreconditioning:
    """The preconditioning if only products with A are available: the input is x_t and its correction t, not m.

    Both are one tensor, `(n, 2, *event)` (`posterior/correction.py`).
    """

    information: Krylov
    level: Tensor

    def corrected(self, x_t: Tensor, y: Tensor) -> Tensor:
        """(x_t, t), for x_t in units of the prior's scale."""
        linear = x_t / (1 + per_sample(self.level, x_t) ** 2)
        return torch.stack([x_t, self.information.solve(y - self.information.forward(linear), self._precision())], 1)

    def corrupt(self, x: Tensor, z: Tensor) -> Tensor:
        """(x_t, t) of x_t = x + σz and a simulated measurement y = A x + e."""
        y = self.information.forward(x) + self.information.simulated_noise()
        return self.corrected(x + per_sample(self.level, x) * z, y)

    def inputs(self, seen: Tensor, family: Family) -> tuple[Tensor, Tensor]:
        """s x_t, of unit size, and t."""
        x_t, t = seen.unbind(1)
        return x_t * (1 + per_sample(self.level, x_t) ** 2).rsqrt(), t

    def output(self, seen: Tensor, h: Tensor) -> Tensor:
        """Compute D from the network's output h."""
        x_t, t = seen.unbind(1)

        def out(gains: Tensor) -> Tensor:
            precision = per_sample(self._precision(), gains)
            return precision.sqrt() / (precision + gains)

        return x_t / (1 + per_sample(self.level, x_t) ** 2) + t + self.information.combine((out, h))

    def error(self, h: Tensor, seen: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """√λ (D − x)."""
        return per_sample(self._precision().sqrt(), x) * (self.output(seen, h) - x)

    def _precision(self) -> Tensor:
        return 1 + self.level**-2


def preconditioning(information: Information, level: Tensor) -> Preconditioning | KrylovPreconditioning:
    """Choose the preconditioning by the representation of G."""
    if isinstance(information, Krylov):
        return KrylovPreconditioning(information, level)
    return Preconditioning(information, level)
