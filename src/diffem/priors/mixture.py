r"""A mixture of isotropic Gaussians: a multimodal prior with closed-form denoiser and posterior.

    p(x) = Σ_k w_k N(x | μ_k, s_k² I)

Given x_t, component k is N(m_k, v_k I) with m_k = μ_k + s_k²/(s_k²+σ²) (x_t − μ_k), v_k = s_k²σ²/(s_k²+σ²), and its
weight is r_k ∝ w_k N(x_t | μ_k, (s_k²+σ²) I).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.shapes import require_batch, require_like, require_state
from ..linalg import Covariance, DenseCovariance
from ..linalg.inner import accumulate_dtype
from ..observations import Observations
from .base import Prior, require_tensors, typical_size

DENSE = 256  # largest size of a sample and of an observation for which the exact posterior is the default


class MixturePrior(Prior):
    """A mixture of K isotropic Gaussians.

    Args:
        weights: (K,). Positive weights; they are normalised.
        means: (K, *event). μ_k.
        stds: (K,). s_k.
    """

    weights: Tensor
    means: Tensor
    stds: Tensor

    @in_default_modes
    def __init__(
        self,
        weights: Tensor,
        means: Tensor,
        stds: Tensor,
        *,
        sigma_min: float | None = None,
        sigma_max: float | None = None,
    ) -> None:
        require_tensors("MixturePrior", weights=weights, means=means, stds=stds)
        if weights.ndim != 1 or stds.shape != weights.shape or means.ndim < 2 or len(means) != len(weights):
            raise InputError(
                "MixturePrior needs weights (K,), means (K, *event) and stds (K,), got "
                f"{tuple(weights.shape)}, {tuple(means.shape)} and {tuple(stds.shape)}"
            )
        if not ((weights > 0) & torch.isfinite(weights)).all() or not ((stds > 0) & torch.isfinite(stds)).all():
            given = f"{weights[:4].tolist()} … and {stds[:4].tolist()} …"
            raise InputError(f"MixturePrior: weights and stds must be positive and finite, got {given}")
        weights = weights / weights.sum()
        mean = torch.einsum("k,k...->...", weights.to(means.dtype), means)
        between = torch.einsum("k,k...->...", weights.to(means.dtype), (means - mean).square())
        within = (weights * stds.to(weights) ** 2).sum().to(means.dtype)
        super().__init__(mean, sigma_min, sigma_max, scale=typical_size(between + within, mean))
        self.register_buffer("weights", weights.to(means.dtype))
        self.register_buffer("means", means.detach().clone())
        self.register_buffer("stds", stds.detach().to(means.dtype, copy=True))

    def choose_method(self, obs: Observations) -> tuple[str, str]:
        first = obs[:1]
        if math.prod(self.event_shape) <= DENSE and first.y.numel() <= DENSE and first.cov.is_diagonal:
            return "exact", "the posterior of a mixture has a closed form"
        return super().choose_method(obs)

    def components(self, x_t: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute p(x | x_t) as a mixture: log r `(n, K)`, means m `(n, K, N)`, variances v `(n, K)`."""
        variance = sigma.reshape(-1, 1) ** 2  # (1 or n, 1)
        spread = self.stds**2 + variance
        offset = x_t.flatten(1).unsqueeze(1) - self.means.flatten(1)  # (n, K, N)
        size = offset.shape[-1]
        log_r = self.weights.log() - 0.5 * (offset.square().sum(-1) / spread + size * spread.log())
        shrink = self.stds**2 / spread
        m = self.means.flatten(1) + shrink.unsqueeze(-1) * offset
        v = (self.stds**2 * variance / spread).expand(len(x_t), -1)
        return torch.log_softmax(log_r, -1), m, v

    def responsibilities(self, x_t: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """log r `(n, K)` and s_k²/(s_k²+σ²) `(1 or n, K)`, by matrix products, without a tensor of size `(n, K, N)`.

        In float64 if the device supports it and relative to the mean, because ‖x‖² − 2xᵀμ + ‖μ‖² cancels.
        """
        dtype = accumulate_dtype(x_t.device)
        x, means = ((v.to(dtype) - self.mean.to(dtype)).flatten(1) for v in (x_t, self.means))
        variances = self.stds.to(dtype) ** 2
        spread = variances + sigma.to(dtype).reshape(-1, 1) ** 2
        distance = x.square().sum(-1, keepdim=True) - 2 * x @ means.T + means.square().sum(-1)
        log_r = self.weights.to(dtype).log() - 0.5 * (distance / spread + x.shape[1] * spread.log())
        return torch.log_softmax(log_r, -1), variances / spread

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        log_r, shrink = self.responsibilities(x_t, sigma)
        return self.mix(log_r.exp(), shrink, x_t)

    def mix(self, r: Tensor, shrink: Tensor, x_t: Tensor) -> Tensor:
        """Σ_k r_k m_k for weights r `(n, K)`, `(n, *event)`."""
        keep = r * shrink
        x = keep.sum(-1, keepdim=True) * x_t.flatten(1) + (r - keep) @ self.means.flatten(1).to(r.dtype)
        return x.to(x_t.dtype).reshape(x_t.shape)

    @in_default_modes
    def covariance_at(self, x_t: Tensor, sigma: Tensor | float) -> Tensor:
        """V[x | x_t], `(n, N, N)` over the flattened event."""
        log_r, m, v = self.components(*require_state(x_t, sigma, self.mean, "MixturePrior"))
        return _mixture_covariance(log_r.exp(), m, v)

    def covariance(self) -> Covariance:
        total = _mixture_covariance(self.weights[None], self.means.flatten(1)[None], self.stds[None] ** 2)
        return DenseCovariance(total[0])

    @in_default_modes
    def log_prob(self, x: Tensor, sigma: float = 0.0) -> Tensor:
        """log p(x_t) at noise level sigma (0: of clean x), `(n,)`."""
        require_like(require_batch(x, "x"), "x", self.mean, "MixturePrior")
        if not 0 <= sigma < math.inf:
            raise InputError(f"sigma must be 0 or positive and finite, got {sigma}")
        spread = self.stds**2 + sigma**2
        offset = x.flatten(1).unsqueeze(1) - self.means.flatten(1)
        size = offset.shape[-1]
        log_p = self.weights.log() - 0.5 * (offset.square().sum(-1) / spread + size * (2 * math.pi * spread).log())
        return torch.logsumexp(log_p, -1)

    def exact_sample(self, u: Tensor, z: Tensor) -> Tensor:
        """Draw exactly, from uniform numbers u `(n,)`, which select the component, and white noise z `(n, *event)`."""
        k = torch.searchsorted(self.weights.cumsum(0), u.to(self.weights)).clamp(max=len(self.weights) - 1)
        return self.means[k] + self.stds[k].reshape(-1, *(1,) * len(self.event_shape)) * z

    def extra_repr(self) -> str:
        return f"components={len(self.weights)}, event_shape={self.event_shape}"


def _mixture_covariance(r: Tensor, m: Tensor, v: Tensor) -> Tensor:
    """Σ_k r_k (v_k I + m̃_k m̃_kᵀ) with centred means m̃; r, v: `(n, K)`, m: `(n, K, N)` → `(n, N, N)`."""
    centred = m - torch.einsum("nk,nki->ni", r, m).unsqueeze(1)
    between = torch.einsum("nk,nki,nkj->nij", r, centred, centred)
    within = (r * v).sum(-1).reshape(-1, 1, 1)
    return between + within * torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
