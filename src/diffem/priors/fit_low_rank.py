"""The low-rank model of `fit_gaussian`: nothing of size N² is formed."""

from __future__ import annotations

import copy
import math
from functools import cached_property

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..files.memory import working_bytes
from ..linalg import LowRank, System, cg
from ..linalg.solvers import ConvergenceMonitor
from ..observations import Observations
from ..observations.batches import Batches, bytes_each
from ..observations.matrices import measurement_matrices, noise_matrices

STARTED_FROM = 1024  # observations from which the start is computed
ACCURATE = 1e-6  # relative residual of a solve; the resulting error of the moments is below the sampling error
MAX_DENSE = 4096  # largest number of measured values for which N is formed if AAᵀ is not diagonal


class LowRankModel:
    r"""Σ = UUᵀ + dI as a latent variable model, x = μ + Uz + √d ε.

    With N = d AAᵀ + Σ_y, W = AU, S = (I + WᵀN⁻¹W)⁻¹ and G = I − d AᵀN⁻¹A:

        z | y ~ N(ẑ, S),  ẑ = S WᵀN⁻¹(y − Aμ);      E[x | z, y] = G(μ + Uz) + d AᵀN⁻¹y;
        tr V[x | z, y] = dN − d² tr(AᵀN⁻¹A),

    which are the moments for the regression of x on (z, 1). N is diagonal if AAᵀ is (masks, crops, complex k-space,
    block means); otherwise N⁻¹ is applied by conjugate gradients, and the traces are those of dense matrices. Above
    `MAX_DENSE` measured values they are estimated with one fixed random sign vector per observation, whose error
    averages out over observations.
    """

    def __init__(self, batches: Batches, rank: int, seed: int, amplified: bool = False) -> None:
        """Prepare the model.

        Args:
            rank: r.
            amplified: Whether the observations measure single entries, some of them with noise far above the signal.
        """
        first = batches.first()
        self.x_shape, self.dtype = first.x_shape, first.y.dtype
        self.rank, self.size = rank, math.prod(first.x_shape)
        self.seed = seed
        m = first.y[0].numel()
        # memory: the observation in two precisions; W, N⁻¹W and G U; vectors of conjugate gradients
        self.bytes_each = 3 * bytes_each(first) + 8 * (rank * (2 * m + self.size) + 10 * (m + self.size))
        self.mean, self.u, self.d = self._backprojected(batches, amplified)
        self.position = 0
        self.monitor = ConvergenceMonitor("Gaussian fit of low rank, last round", ACCURATE)
        self._reset()

    def _backprojected(self, batches: Batches, amplified: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Start from mean and principal directions of c Aᵀy, plus random ones if there are few observations.

        c = Σ‖Aᵀy‖² / Σ‖AAᵀy‖² is the factor with which A c Aᵀy is closest to y: 1 for masks and k-space, 1/g² for an
        operator of gain g. EM corrects a start of another size slowly, and hardly where nothing is measured.
        """
        parts, remaining, squares = [], STARTED_FROM, torch.zeros(2, dtype=torch.float64, device=batches.device)
        for part in batches:
            some = part[: min(remaining, len(part))].to(torch.float64)
            back = some.A.adjoint(some.y)
            x = back.flatten(1)
            squares += torch.stack([x.square().sum(), some.A(back).square().sum()])
            if amplified:  # in units of the scale of the data, so that the noise is compared with 1
                x = x / (1 + some.noise.diagonal(some.x_shape).flatten(1))
            parts.append(x)
            remaining -= len(some)
            if remaining == 0:
                break
        x = torch.cat(parts)  # (n, N)
        if float(squares[1]) > 0:
            x = x * (squares[0] / squares[1])
        mean = x.mean(0)
        x = x - mean
        index = torch.arange(self.rank, device=x.device)
        u = Stream(self.seed, "gaussian fit").normal(index, (self.size,), dtype=torch.float64)
        u = u * (1e-2 * x.square().mean().sqrt() / math.sqrt(self.rank))
        # the n × n matrix has the same spectrum as the N × N matrix
        values, vectors = torch.linalg.eigh(x @ x.T / len(x))
        found = min(self.rank, len(x) - 1)
        top = values[-found:].clamp(min=0) if found else values[:0]
        u[:found] += (vectors[:, len(x) - found :].T @ x) / math.sqrt(len(x))
        left = (x.square().sum() / len(x) - top.sum()) / self.size
        return mean, u, left.clamp(min=1e-3 * x.square().mean() + 1e-12)

    def scorer(self) -> LowRankModel:
        """Copy the model with new sums, for the likelihood of other observations."""
        new = copy.copy(self)
        new._reset()
        return new

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "u": self.u, "d": self.d}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state()`."""
        self.mean, self.u, self.d = (state[name].to(self.mean) for name in ("mean", "u", "d"))
        self._reset()

    def _reset(self) -> None:
        r = self.rank + 1
        self.count = 0
        self.zz = torch.zeros(r, r, dtype=torch.float64, device=self.mean.device)
        self.xz = torch.zeros(self.size, r, dtype=torch.float64, device=self.mean.device)
        self.xx = torch.zeros((), dtype=torch.float64, device=self.mean.device)
        self.position = 0

    def expect(self, obs: Observations) -> float:
        obs = obs.to(torch.float64)
        if self.position == 0:
            self.monitor.reset()
        n, shape, r, d = len(obs), obs.x_shape, self.rank, self.d
        noise = _ObservationNoise(obs, d, Stream(self.seed, "gaussian fit traces"), self.position, self.monitor)
        self.position += n

        def forward(x: Tensor) -> Tensor:  # (N,) or (n, N) -> (n, m)
            return obs.A(x.reshape(-1, *shape).expand(n, *shape).contiguous()).flatten(1)

        def adjoint(v: Tensor) -> Tensor:  # (n, m) -> (n, N)
            return obs.A.adjoint(v.reshape(obs.y.shape)).flatten(1)

        m = obs.y[0].numel()
        W = torch.empty(n, r, m, dtype=torch.float64, device=obs.y.device)  # (AU)ᵀ
        NW, GU = torch.empty_like(W), W.new_empty(n, r, self.size)  # (N⁻¹W)ᵀ, (GU)ᵀ
        for k, u in enumerate(self.u):
            W[:, k] = forward(u)
            NW[:, k] = noise.solve(W[:, k])
            GU[:, k] = u - d * adjoint(NW[:, k])
        precision = torch.eye(r, dtype=torch.float64, device=W.device) + W @ NW.mT
        del W  # what follows needs this memory
        chol = torch.linalg.cholesky(precision)
        S = torch.cholesky_inverse(chol)
        residual = obs.residual(self.mean.reshape(1, *shape).expand(n, *shape).contiguous()).flatten(1)
        N_residual = noise.solve(residual)
        projected = (NW @ residual.unsqueeze(-1)).squeeze(-1)  # (n, r)
        z = (S @ projected.unsqueeze(-1)).squeeze(-1)  # (n, r)

        # x̂ = μ + Uẑ + d AᵀN⁻¹(y − A(μ + Uẑ))
        x = self.mean + z @ self.u + d * adjoint(N_residual - (z.unsqueeze(1) @ NW).squeeze(1))
        self.count += n
        self.zz[:r, :r] += S.sum(0) + z.T @ z
        self.zz[:r, r] += z.sum(0)
        self.zz[r, :r] += z.sum(0)
        self.zz[r, r] += n
        # cov(x, z | y) = G U S, summed over observations in one product
        cross = S.transpose(0, 1).reshape(r, n * r) @ GU.reshape(n * r, self.size)
        self.xz[:, :r] += cross.T + x.T @ z
        self.xz[:, r] += x.sum(0)
        # tr V[x | y] = tr(G U S Uᵀ Gᵀ) + dN − d² tr(AᵀN⁻¹A)
        explained = (S * (GU @ GU.mT)).sum()
        self.xx += x.square().sum() + explained + n * d * self.size - d**2 * noise.trace().sum()

        logdet = noise.logdet() + 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        fit = (residual * N_residual).sum(1) - (z * projected).sum(1)
        return float(-0.5 * (fit + logdet + obs.counts().double() * math.log(2 * math.pi)).sum())

    def parameters(self) -> Tensor:
        return torch.cat([self.mean, self.u.flatten(), self.d.log().reshape(1)])

    def set_parameters(self, parameters: Tensor) -> None:
        self.mean = parameters[: self.size]
        self.u = parameters[self.size : -1].reshape(self.rank, self.size)
        self.d = parameters[-1].exp()
        self._reset()

    def maximise(self) -> None:
        loading = torch.linalg.solve(self.zz, self.xz.T).T  # (N, r + 1): U and μ
        self.d = ((self.xx - (loading * self.xz).sum()) / (self.count * self.size)).clamp(min=1e-12)
        self.u, self.mean = loading[:, :-1].T.contiguous(), loading[:, -1].clone()
        self._reset()

    def result(self) -> tuple[Tensor, LowRank]:
        self.monitor.warn()
        factor = self.u.reshape(-1, *self.x_shape).to(self.dtype)
        return self.mean.reshape(self.x_shape).to(self.dtype), LowRank(factor, float(self.d))


class _ObservationNoise:
    """N = d AAᵀ + Σ_y for a batch: N⁻¹v, log|N| and tr(AᵀN⁻¹A), on the measured entries; tensors are `(n, m)`."""

    def __init__(self, obs: Observations, d: Tensor, stream: Stream, first: int, monitor: ConvergenceMonitor) -> None:
        self.obs, self.d, self.monitor = obs, d, monitor
        gram = obs.A.gram_diagonal(obs.y)
        self.gram = None if gram is None else gram.expand_as(obs.y).flatten(1).double()
        self.sigma_y = obs.noise
        shape = tuple(obs.y.shape[1:])
        self.diagonal = self.sigma_y.diagonal(shape).expand(obs.y.shape).flatten(1)
        self.exact = self.gram is not None and self.sigma_y.is_diagonal
        if not self.exact and not self._forms:
            index = torch.arange(first, first + len(obs), device=obs.y.device)
            signs = stream.uniform(index, obs.x_shape, dtype=torch.float64) < 0.5
            self.probe = torch.where(signs, -1.0, 1.0).double()

    def _total(self) -> Tensor:
        assert self.gram is not None
        return self.d * self.gram + self.diagonal

    def solve(self, v: Tensor) -> Tensor:
        if self.exact:
            total = self._total()
            return torch.where(self.diagonal > 0, v / torch.where(total > 0, total, 1), 0)
        A, shape = self.obs.A, self.obs.y.shape

        def signal(p: Tensor) -> tuple[Tensor, Tensor]:
            back = A.adjoint(p)
            return self.d * A(back), back

        solution = cg(System(signal, self.sigma_y), v.reshape(shape), iterations=256, tolerance=1e-10)
        self.monitor.add(solution)
        return solution.u.flatten(1)

    def trace(self) -> Tensor:
        """tr(AᵀN⁻¹A) per observation, `(n,)`."""
        if self.exact:
            assert self.gram is not None
            return self.solve(self.gram).sum(1)
        if self._forms:
            return self._dense[1]
        seen = self.obs.A(self.probe).flatten(1)
        return (seen * self.solve(seen)).sum(1)

    def logdet(self) -> Tensor:
        """log|N| per observation, `(n,)`."""
        if self.exact:
            return torch.where(self.diagonal > 0, self._total().log(), 0).sum(1)
        if self._forms:
            return self._dense[0]
        return torch.full((len(self.obs),), torch.nan, dtype=torch.float64, device=self.d.device)

    @property
    def _forms(self) -> bool:
        return self.obs.y[0].numel() <= MAX_DENSE

    @cached_property
    def _dense(self) -> Tensor:
        """log|N| and tr(AᵀN⁻¹A) from dense matrices, `(2, n)`."""
        m, size = self.obs.y[0].numel(), math.prod(self.obs.x_shape)
        # matrices may take a quarter of the memory of the batch
        rows = max(1, working_bytes(self.d.device) // (4 * 8 * (3 * m * size + 4 * m * m)))
        parts = [self.obs[i : i + rows] for i in range(0, len(self.obs), rows)]
        return torch.cat([self._of_matrices(part) for part in parts], 1)

    def _of_matrices(self, obs: Observations) -> Tensor:
        A = measurement_matrices(obs)
        chol = torch.linalg.cholesky(self.d * (A @ A.mT) + noise_matrices(obs)[0])
        whitened = torch.linalg.solve_triangular(chol, A, upper=False)
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return torch.stack([logdet, whitened.square().sum((1, 2))])
