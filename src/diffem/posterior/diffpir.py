r"""DiffPIR (Zhu et al. 2023), a plug-and-play method: x̂ is replaced by a regularised least-squares solution.

It minimises ‖y − Ax‖²_{Σ_y} + ‖x − x̂‖²/ρ with ρ = σ²/λ. The minimiser is x̂ + ρ Aᵀ (Σ_y + ρ A Aᵀ)⁻¹ (y − A x̂), which
needs no Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.shapes import per_sample
from .base import LinearisedDenoiser, require_positive
from .explicit import ExplicitCovariance


@dataclass
class DiffPIR(ExplicitCovariance):
    """DiffPIR (Zhu et al. 2023): x̂ is replaced by a regularised least-squares solution.

    Attributes:
        lam: λ. Default: 8, the value of the paper.
    """

    method: ClassVar[str] = "diffpir"

    lam: float = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.lam, "lam")

    def covariance(self, prior: LinearisedDenoiser, x_t: Tensor, sigma: Tensor) -> Callable[[Tensor], Tensor]:
        rho = per_sample(sigma, x_t) ** 2 / self.lam
        return lambda w: rho * w

    def correction(self, prior: LinearisedDenoiser, pullback: Tensor, sigma: Tensor) -> Tensor:
        return per_sample(sigma, pullback) ** 2 / self.lam * pullback
