r"""Diffusion posterior sampling (Chung et al. 2023): a gradient step on ‖y − A x̂‖, without any covariance.

Published for variance-preserving x_s with strength ζ': x_s ← x_s − ζ' ∇‖y − Ax̂‖. In variance-exploding coordinates, as
a correction of x̂ (see `stepwise.py`), with e = y − A x̂ and the norm per sample,

    E[x | x_t, y] ≈ x̂ + ζ' (s² + σ²)/(sκ) · Jᵀ Aᵀ e / ‖e‖,

s being the scale of the prior: the published strength is for samples of unit size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.shapes import per_sample
from ..linalg import dot
from .base import LinearisedDenoiser, require_positive
from .evaluation import Evaluation, GuidedEvaluation
from .stepwise import StepwisePosterior


@dataclass
class DPS(StepwisePosterior):
    """Diffusion posterior sampling (DPS, Chung et al. 2023): a gradient step on ‖y − A x̂‖.

    Attributes:
        zeta: ζ'. Default: 0.5, the value of the paper.
        reference_steps: See `StepwisePosterior`.
    """

    method: ClassVar[str] = "dps"
    published_steps: ClassVar[int] = 1000

    zeta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.zeta, "zeta")

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        prior = LinearisedDenoiser(self.prior, x_t, sigma)
        residual = self.obs.residual(prior.x_hat)
        norm = dot(residual, residual).sqrt().to(x_t.dtype)
        s = self.prior.scale
        scale = torch.where(norm > 0, self.zeta / norm, 0) * (s**2 + sigma**2) / (s * self.response)
        gradient = prior.vjp(self.obs.A.adjoint(residual))
        x_hat = prior.x_hat + per_sample(scale, x_t) * gradient
        return GuidedEvaluation(x_hat=x_hat, vjps=prior.vjps, prior=prior.x_hat)
