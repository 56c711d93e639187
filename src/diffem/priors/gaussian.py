r"""The Gaussian prior N(μ, Σ): the start of expectation–maximisation, and an exact answer to test against.

E[x | x_t] = μ + Σ (Σ + σ²I)⁻¹ (x_t − μ)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import InputError
from ..linalg import Covariance, as_covariance
from ..samplers import SIGMA_MAX, SIGMA_MIN
from ..shapes import require_same_dtype
from .base import Prior


class GaussianPrior(Prior):
    """mean: `(*event)`; cov: a covariance object, or a dense matrix over the flattened event."""

    def __init__(
        self, mean: Tensor, cov: Covariance | Tensor, *, sigma_min: float = SIGMA_MIN, sigma_max: float = SIGMA_MAX
    ) -> None:
        super().__init__(mean, sigma_min, sigma_max)
        self._cov = as_covariance(cov, self.event_shape, "GaussianPrior")
        if self._cov.batch is not None:
            raise InputError(
                f"GaussianPrior: the covariance must be shared, got one for each of {self._cov.batch} samples"
            )
        for name, tensor in self._cov._tensors.items():
            require_same_dtype(tensor, f"{name} of the covariance", self.mean, "the mean")

    def covariance(self) -> Covariance:
        return self._cov

    def _apply(self, fn: Any, recurse: bool = True) -> GaussianPrior:
        # nn.Module moves its buffers through here; the covariance is a value beside them and moves along
        super()._apply(fn, recurse)
        self._cov = self._cov.to(self.mean)
        return self

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        return self.mean + self._cov.matvec(self._cov.plus(sigma**2).solve(x_t - self.mean))

    def exact_sample(self, z: Tensor) -> Tensor:
        """μ + Σ^½ z for white noise z `(n, *event)`: draws without a diffusion."""
        return self.mean + self._cov.sqrt(z)

    def log_prob(self, x: Tensor) -> Tensor:
        """log N(x | μ, Σ), `(n,)`."""
        return self._cov.log_prob(x - self.mean)

    def extra_repr(self) -> str:
        return f"event_shape={self.event_shape}, cov={self._cov}"
