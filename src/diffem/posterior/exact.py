r"""The exact E[x | x_t, y] of a mixture prior, by dense algebra: the reference for approximate methods.

Given x_t, component k is N(m_k, v_k I) with weight r_k (see `priors/mixture.py`); y then reweights it by N(y | A m_k,
S_k), S_k = Σ_y + v_k A Aᵀ, and moves its mean to m_k + v_k Aᵀ S_k⁻¹ (y − A m_k). With B = Σ_y^-½ A = U diag(s) Wᵀ, all
S_k share U.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..core.batched import as_index, take
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.randomness import Stream
from ..observations import Observations
from ..priors.base import Prior
from ..priors.mixture import MixturePrior
from .base import Posterior
from .evaluation import Evaluation, GuidedEvaluation


@dataclass(kw_only=True)
class MixtureEvaluation(GuidedEvaluation):
    """An evaluation that computes the likelihood in closed form.

    Attributes:
        log_density: (n,). log p(y | x_t).
    """

    log_density: Tensor

    def log_likelihood(self, obs: Observations, probe: Tensor, iterations: int) -> Tensor:
        return self.log_density


@dataclass
class Exact(Posterior):
    """The exact posterior of a `MixturePrior`, for noise that is independent between values."""

    method: ClassVar[str] = "exact"

    _svd: tuple[Tensor, Tensor, Tensor] = field(init=False, repr=False)
    _along_means: Tensor = field(init=False, repr=False)  # Wᵀμ_k
    _whitened_y: Tensor = field(init=False, repr=False)  # UᵀΣ_y^-½ y

    @classmethod
    def applies(cls, prior: Prior, obs: Observations) -> bool:
        return isinstance(prior, MixturePrior) and obs.cov.is_diagonal

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, MixturePrior) or not self.obs.cov.is_diagonal:
            raise InputError(
                "method 'exact' needs a MixturePrior and independent noise (sigma=...), got "
                f"{type(self.prior).__name__} and {self.obs.cov}"
            )
        n, size = len(self.obs), math.prod(self.prior.event_shape)
        eye = torch.eye(size, dtype=self.obs.y.dtype, device=self.obs.y.device)
        columns = [self.obs.A(e.reshape(1, *self.prior.event_shape).expand(n, *self.prior.event_shape)) for e in eye]
        matrix = torch.stack([column.flatten(1) for column in columns], -1)  # (n, m, N)
        sigma = self.obs.cov.diagonal(tuple(self.obs.y.shape[1:])).flatten(1).sqrt().unsqueeze(-1)  # (1 or n, m, 1)
        u, s, wt = torch.linalg.svd(matrix / sigma, full_matrices=False)
        self._svd = (u, s, wt)
        self._along_means = self.prior.means.flatten(1) @ wt.mT  # (n, K, q)
        self._whitened_y = (u.mT @ (self.obs.y.flatten(1).unsqueeze(-1) / sigma)).squeeze(-1)  # (n, q)

    def __getitem__(self, index: Any) -> Self:
        new, index = super().__getitem__(index), as_index(index)
        u, s, wt = (take(part, index) for part in self._svd)
        new._svd, new._along_means = (u, s, wt), take(self._along_means, index)
        new._whitened_y = take(self._whitened_y, index)
        return new

    def components(self, log_r: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Condition the mixture on y; returns log weights `(n, K)`, means `(n, K, N)`, and v."""
        _, s, wt = self._svd
        projected = torch.einsum("nqi,nki->nkq", wt, m) * s.unsqueeze(1)
        residual = self._whitened_y.unsqueeze(1) - projected
        spread = 1 + v.unsqueeze(-1) * s.unsqueeze(1) ** 2  # (n, K, q), eigenvalues of S_k in units of Σ_y
        log_w = log_r - 0.5 * (residual**2 / spread + spread.log()).sum(-1)
        gain = v.unsqueeze(-1) * s.unsqueeze(1) / spread * residual
        return torch.log_softmax(log_w, -1), m + torch.einsum("nkq,nqi->nki", gain, wt), v

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        prior = self.prior
        assert isinstance(prior, MixturePrior)
        log_r, shrink = prior.responsibilities(x_t, sigma)
        dtype = log_r.dtype
        _, s, wt = (part.to(dtype) for part in self._svd)
        x, variance = x_t.flatten(1).to(dtype), sigma.to(dtype).reshape(-1, 1) ** 2
        # y only depends on the q measured directions: compute m_k and the residual along them
        along_x = (wt @ x.unsqueeze(-1)).mT  # (n, 1, q)
        along = torch.lerp(self._along_means.to(dtype), along_x, shrink.unsqueeze(-1))  # (n, K, q)
        residual = self._whitened_y.to(dtype).unsqueeze(1) - s.unsqueeze(1) * along
        v = shrink * variance  # (1 or n, K)
        spread = 1 + v.unsqueeze(-1) * s.unsqueeze(1) ** 2
        log_w = log_r - 0.5 * (residual**2 / spread + spread.log()).sum(-1)
        w = torch.softmax(log_w, -1)
        gain = (w.unsqueeze(-1) * v.unsqueeze(-1) * s.unsqueeze(1) / spread * residual).sum(1)  # (n, q)
        move = (gain.unsqueeze(1) @ wt).squeeze(1).to(x_t.dtype).reshape(x_t.shape)
        x_hat, of_prior = prior.mix(w, shrink, x_t) + move, prior.mix(log_r.exp(), shrink, x_t)
        return MixtureEvaluation(x_hat=x_hat, prior=of_prior, log_density=torch.logsumexp(log_w, -1))

    @in_default_modes
    def exact_sample(self, draws: int, seed: int = 0) -> Tensor:
        """Draw exactly from the posterior, without a diffusion: `(draws, n, *event)`."""
        prior, n = self.prior, len(self.obs)
        assert isinstance(prior, MixturePrior)
        log_r = prior.weights.log().expand(n, -1)
        means = prior.means.flatten(1).expand(n, -1, -1)
        log_w, means, v = self.components(log_r, means, (prior.stds**2).expand(n, -1))
        stream, shape = Stream(seed, "exact posterior"), prior.event_shape
        # addressed by the number of the draw and that of the observation, so that a draw does not depend on n
        number = torch.arange(draws, device=means.device).repeat_interleave(n)
        row = torch.arange(n, device=means.device)
        pick = stream.uniform(number, (), draw=row.repeat(draws), dtype=means.dtype).reshape(draws, n)
        k = torch.searchsorted(log_w.exp().cumsum(-1), pick.T.contiguous()).clamp(max=len(prior.weights) - 1).T
        z = stream.normal(number, (means.shape[-1],), step=1, draw=row.repeat(draws), dtype=means.dtype)
        z = z.reshape(draws, n, -1)
        # covariance v(I − W diag(vs²/(1+vs²)) Wᵀ): shrink the noise along the measured directions
        _, s, wt = self._svd
        v_k = v[row, k].unsqueeze(-1)
        shrink = (1 + v_k * s**2).rsqrt() - 1
        along = torch.einsum("nqi,dni->dnq", wt, z)
        z = z + torch.einsum("dnq,nqi->dni", shrink * along, wt)
        return (means[row, k] + v_k.sqrt() * z).reshape(draws, n, *shape)
