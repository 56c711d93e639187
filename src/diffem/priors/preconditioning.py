r"""Denoising under noise that differs from direction to direction.

The pivot m of x_t and y (`posterior/pivot.py`) is x with noise of covariance C = (I/σ² + G)⁻¹, G = AᵀΣ_y⁻¹A. With everything in units of the
prior's scale, a network h is preconditioned per eigenvalue c² of C as Karras et al. (2022) do for one noise level (σ_data = 1):

    D(m, C) = (I + C)⁻¹ m + C^½ (I + C)^-½ h((I + C)^-½ m, log σ, what was measured).

Where nothing is measured c = σ, and this is the ordinary denoiser of `diffusion.py`. In training m = x + C^½ z, and with the weight λ = 1/σ² + 1

    √λ (D − x) = √λ C^½ (I + C)^-½ (h − (I + C)^-½ (C^½ x − z)):

errors weigh 1 where nothing is measured and (σ_y/σ)² where the value is known up to σ_y.

Where functions of C are not to be had, only products with A, the network sees x_t and the correction t of `posterior/correction.py` instead of m:

    D = s² x_t + t + √(1 + 1/σ²) B h(s x_t, log σ, t),      s² = 1/(1 + σ²),      B = ((1 + 1/σ²) I + G)⁻¹.

Nothing measured: t = 0, B = σ²s² I, and this is the ordinary denoiser again. What h adds is damped by B, so a measured value stays at the
measurement. t is computed with a fixed number of products, in training from simulated measurements as in use: the network learns to use the t
that it will be given, not an ideal one.
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
        """m = x + C^½ z, `(n, *event)`, for white noise z of that shape."""
        return x + self.information.combine((self._of_variance(torch.sqrt), z))

    def input(self, m: Tensor) -> Tensor:
        """(I + C)^-½ m, of unit size."""
        return self.information.combine((self._of_variance(lambda c2: (1 + c2).rsqrt()), m))

    def output(self, m: Tensor, h: Tensor) -> Tensor:
        """D(m, C), given what the network returned for the input."""
        skip, out = self._of_variance(lambda c2: 1 / (1 + c2)), self._of_variance(lambda c2: (c2 / (1 + c2)).sqrt())
        return self.information.combine((skip, m), (out, h))

    def inputs(self, m: Tensor, family: Family) -> tuple[Tensor, Tensor]:
        """The network's input, and what it is shown beside it."""
        v = self.input(m)
        return v, family.describe(self.information, v, self.level)

    def error(self, h: Tensor, m: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """√λ (D(m, C) − x), given what the network returned for m = `corrupt(x, z)`."""
        return self.weigh(h - self.target(x, z))

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


@dataclass(frozen=True)
class Correcting:
    """The same from products with A; in the place of m stand x_t and its correction t, `(n, 2, *event)`."""

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
        """D, given what the network returned for the input."""
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


def preconditioning(information: Information, level: Tensor) -> Preconditioning | Correcting:
    """By how G is known."""
    if isinstance(information, Krylov):
        return Correcting(information, level)
    return Preconditioning(information, level)
