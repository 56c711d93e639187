r"""Blocks of one covariance: K_i = Σ[s_i, s_i] + diag(d_i) for a different subset s_i of the entries per sample.

That is A_iΣA_iᵀ + Σ_y if A_i measures single entries; forming A_i would waste memory and time. Blocks are padded with
unit rows to the size of the largest one and inverted together by Gauss–Jordan sweeps over square pieces of the
diagonal. These sweeps are batched matrix products, which are faster than library factorisations of many medium-sized
matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PIVOT = 64
CORRECTIONS = 3  # number of times that a solution is corrected by its residual
NEGLIGIBLE = 1e-2  # largest last correction, relative to the solution; Σu then has an error below the noise


@dataclass(frozen=True)
class SelectedBlocks:
    """Blocks K of n samples, padded to m rows.

    Attributes:
        index: (n, m). The entry of x that each row belongs to.
        inside: (n, m). False on padding.
        matrices: (n, m, m). K.
    """

    index: Tensor
    inside: Tensor
    matrices: Tensor

    @classmethod
    def gather(cls, cov: Tensor, variances: Tensor, selected: Tensor) -> SelectedBlocks:
        """Gather the blocks of a covariance.

        Args:
            cov: (N, N). Σ.
            variances: (n, N). d.
            selected: (n, N). Whether an entry belongs to the sample's block.
        """
        counts = selected.sum(1)
        width = max(1, int(counts.max()))
        # a stable sort puts the selected entries first, in order
        index = torch.argsort(~selected, dim=1, stable=True)[:, :width]
        inside = torch.arange(width, device=selected.device) < counts[:, None]
        K = cov[index[:, :, None], index[:, None, :]]
        K = torch.where(inside[:, :, None] & inside[:, None, :], K, 0)
        diagonal = torch.where(inside, variances.gather(1, index), 1)
        K.diagonal(dim1=-2, dim2=-1).add_(diagonal)
        return cls(index, inside, K)

    def take(self, v: Tensor) -> Tensor:
        """Take the selected entries of v `(n, N)` as `(n, m)`, with 0 on padding."""
        return torch.where(self.inside, v.gather(1, self.index), 0)

    def spread(self, u: Tensor, size: int) -> Tensor:
        """Put u `(n, m)` back at its entries, `(n, N)`, with 0 elsewhere."""
        return u.new_zeros(len(u), size).scatter_add_(1, self.index, torch.where(self.inside, u, 0))

    def inverse(self) -> tuple[Tensor, Tensor]:
        """K⁻¹ `(n, m, m)`, with zeros on padding, and log|K| `(n,)`."""
        inverse, logdet = inverse_and_logdet(self.matrices)
        # a padded row is a unit row: its only entry is the 1 on the diagonal
        inverse.diagonal(dim1=-2, dim2=-1).sub_((~self.inside).to(inverse.dtype))
        return inverse, logdet

    def solve(self, v: Tensor, inverse: Tensor | None = None) -> Tensor:
        """K⁻¹v, `(n, m)`, as accurate as a Cholesky solve.

        A product with K⁻¹ alone would not be: if the noise is 1e-6 of the signal, it is wrong by hundreds of noise
        levels. Corrections by the residual remove that error.

        Args:
            inverse: K⁻¹ of `inverse`. Default: it is computed.

        Raises:
            LinAlgError: If the corrections do not vanish: K is singular in its precision.
        """
        inverse = self.inverse()[0] if inverse is None else inverse
        v = v.unsqueeze(-1)
        u, correction = torch.zeros_like(v), inverse @ v
        for _ in range(CORRECTIONS):
            u = u + correction
            correction = inverse @ (v - self.matrices @ u)
        if (correction.norm(dim=1) > NEGLIGIBLE * u.norm(dim=1)).any():
            raise torch.linalg.LinAlgError("the blocks of the covariance are singular")  # type: ignore[attr-defined]
        return (u + correction).squeeze(-1)

    def add_to(self, total: Tensor, blocks: Tensor) -> None:
        """Add blocks `(n, m, m)` into `total` `(N, N)` at their entries."""
        place = self.index[:, :, None] * len(total) + self.index[:, None, :]
        total.view(-1).scatter_add_(0, place.flatten(), blocks.flatten())


def inverse_and_logdet(K: Tensor) -> tuple[Tensor, Tensor]:
    """K⁻¹ and log|K| of positive definite matrices `(n, m, m)`, by sweeps of `PIVOT` rows at a time."""
    K = K.clone()
    logdet = torch.zeros(len(K), dtype=K.dtype, device=K.device)
    for start in range(0, K.shape[-1], PIVOT):
        rows = slice(start, min(start + PIVOT, K.shape[-1]))
        chol = torch.linalg.cholesky(K[:, rows, rows])
        logdet += 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        eye = torch.eye(chol.shape[-1], dtype=K.dtype, device=K.device)
        half = torch.linalg.solve_triangular(chol, eye, upper=False)
        white = half @ K[:, rows, :]
        # K_ij − K_ip P⁻¹ K_pj everywhere, as a square: with the factor P⁻¹ itself, its rounding errors would make the
        # remaining rows indefinite. The rows and columns of the pivot become ±P⁻¹ times what they were.
        K.baddbmm_(white.mT, white, alpha=-1)
        scaled = white.mT @ half
        K[:, :, rows] = scaled
        K[:, rows, :] = scaled.mT
        K[:, rows, rows] = -half.mT @ half
    return K.neg_(), logdet
