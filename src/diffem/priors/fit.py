r"""The Gaussian prior of maximum likelihood given observations alone, by expectation–maximisation.

`fit_gaussian(obs)` keeps the full covariance and is exact; `fit_gaussian(obs, rank=r)` fits Σ = UUᵀ + dI (probabilistic PCA,
Tipping & Bishop 1999) without forming anything of size N². Both use the exact posterior moments of x given y: no sampler, no
Monte-Carlo error. Every second round is extrapolated and kept only if that helped, so the observed-data log-likelihood
never decreases.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..data import Observations
from ..errors import InputError
from ..linalg import Dense, Diagonal, Isotropic, LowRank, System, cg
from ..progress import Progress
from ..randomness import Stream
from ..samplers import SIGMA_MAX, SIGMA_MIN
from .gaussian import GaussianPrior

MAX_DENSE = 4096
CACHE_BYTES = 1 << 30


@dataclass
class FitHistory:
    """Observed-data log-likelihood per measured value, one entry per round that was kept."""

    log_likelihood: list[float] = field(default_factory=list)


@torch.no_grad()
def fit_gaussian(
    obs: Observations,
    rank: int | None = None,
    *,
    rounds: int = 512,
    tolerance: float = 1e-9,
    batch_size: int | None = None,
    seed: int = 0,
    sigma_min: float = SIGMA_MIN,
    sigma_max: float = SIGMA_MAX,
    history: FitHistory | None = None,
    progress: bool | None = None,
) -> GaussianPrior:
    """Fit N(μ, Σ) to observations.

    rank: None for a full covariance, or the rank r of Σ = UUᵀ + dI.
    rounds, tolerance: stop after so many rounds, or when a round adds less than `tolerance` nats per measured value. (The
        likelihood of large images under an operator whose AAᵀ is not diagonal is not computed; then all rounds are run.)
    batch_size: observations handled at a time; chosen to need about a quarter of a gigabyte when not given.
    history: filled with the log-likelihood of every round.
    """
    size = math.prod(obs.x_shape)
    if rank is None and size > MAX_DENSE:
        raise InputError(
            f"a full covariance over {size} numbers would take {size**2 * 8 / 2**30:.1f} GiB and a long time; "
            f"pass rank=..., say 64 (full ones are fitted up to {MAX_DENSE})"
        )
    if rank is not None and not 1 <= rank < size:
        raise InputError(f"rank must lie between 1 and {size - 1}, got {rank}")
    history = FitHistory() if history is None else history
    total = int(obs.counts().sum())
    width = obs.y[0].numel() if rank is None else rank
    batch_size = batch_size or max(1, 2**25 // (size * width))
    model: _Full | _LowRank = _Full(obs) if rank is None else _LowRank(obs, rank, seed)
    with Progress("Gaussian fit", rounds * len(obs), "observations", progress) as bar:

        def expect() -> float:
            log_likelihood = 0.0
            for start in range(0, len(obs), batch_size):
                part = obs[start : start + batch_size]
                log_likelihood += model.expect(part)
                bar.advance(len(part))
            return log_likelihood / total

        current = expect()
        history.log_likelihood.append(current)
        while len(history.log_likelihood) < rounds:
            before, path = current, [model.parameters()]
            for _ in range(2):
                model.maximise()
                current = expect()
                history.log_likelihood.append(current)
                path.append(model.parameters())
            gained = current - before
            saved = copy.copy(model)
            model.set_parameters(_extrapolate(*path))
            current = expect()
            if current >= history.log_likelihood[-1]:
                gained = current - before
                history.log_likelihood.append(current)
            else:  # too far: back to where plain EM stood
                model, current = saved, history.log_likelihood[-1]
            if gained < tolerance:
                break
    return GaussianPrior(*model.result(), sigma_min=sigma_min, sigma_max=sigma_max)


def _extrapolate(start: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Where two EM rounds point to (SQUAREM, Varadhan & Roland 2008): plain EM can need thousands of rounds."""
    step, bend = first - start, second - 2 * first + start
    length = -(step.norm() / bend.norm().clamp(min=1e-300)).clamp(min=1.0, max=1e3)
    return start - 2 * length * step + length**2 * bend


def _measurement_matrices(obs: Observations) -> Tensor:
    """A as dense matrices over the measurement, `(n, m, N)`."""
    n, shape = len(obs), obs.x_shape
    eye = torch.eye(math.prod(shape), dtype=obs.y.dtype, device=obs.y.device)
    columns = [obs.A(e.reshape(1, *shape).expand(n, *shape).contiguous()).flatten(1) for e in eye]
    return torch.stack(columns, -1).double()


def _noise_matrices(obs: Observations) -> tuple[Tensor, Tensor]:
    """Σ_y as `(n, m, m)`, and which entries are not measured `(n, m)`: those get unit noise, which with a zero residual and a
    zero row of A leaves them out of everything."""
    n, shape, noise = len(obs), tuple(obs.y.shape[1:]), obs.to(torch.float64).noise
    eye = torch.eye(math.prod(shape), dtype=torch.float64, device=obs.y.device)
    sigma_y = torch.stack([noise.matvec(e.reshape(1, *shape).expand(n, *shape)).flatten(1) for e in eye], -1)
    outside = sigma_y.diagonal(dim1=-2, dim2=-1) == 0
    return sigma_y + torch.diag_embed(outside.double()), outside


class _Full:
    r"""Full covariance. With K = AΣAᵀ + Σ_y and g = AᵀK⁻¹(y − Aμ), the posterior of x is N(μ + Σg, Σ − ΣAᵀK⁻¹AΣ), so the update is

    μ ← μ + Σ ḡ,      Σ ← Σ + Σ (cov(g) − mean AᵀK⁻¹A) Σ.
    """

    def __init__(self, obs: Observations) -> None:
        self.obs, size = obs, math.prod(obs.x_shape)
        device = obs.y.device
        self._cache: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        # the matrices of A and Σ_y are the same in every round: kept when they are not too many
        self._keep = len(obs) * obs.y[0].numel() * (size + obs.y[0].numel()) * 8 < CACHE_BYTES
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.cov = torch.eye(size, dtype=torch.float64, device=device)
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self.g = torch.zeros_like(self.mean)
        self.gg = torch.zeros_like(self.cov)
        self.information = torch.zeros_like(self.cov)

    def _matrices(self, obs: Observations) -> tuple[Tensor, Tensor, Tensor]:
        """A, Σ_y and the entries that are not measured."""
        if self.count in self._cache:
            return self._cache[self.count]
        matrices = (_measurement_matrices(obs), *_noise_matrices(obs))
        if self._keep:
            self._cache[self.count] = matrices
        return matrices

    def expect(self, obs: Observations) -> float:
        A, sigma_y, outside = self._matrices(obs)
        n, m, _ = A.shape
        K = A @ self.cov @ A.mT + sigma_y
        chol = torch.linalg.cholesky(K)
        residual = obs.y.flatten(1).double() - A @ self.mean
        residual = torch.where(outside, 0, residual)
        whitened = torch.linalg.solve_triangular(chol, torch.cat([A, residual.unsqueeze(-1)], -1), upper=False)
        B, r = whitened[..., :-1], whitened[..., -1]  # L⁻¹A, L⁻¹(y − Aμ)
        g = (B.mT @ r.unsqueeze(-1)).squeeze(-1)
        self.count += n
        self.g = self.g + g.sum(0)
        self.gg = self.gg + g.T @ g
        flat = B.reshape(n * m, -1)
        self.information = self.information + flat.T @ flat
        measured = float((~outside).sum())
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum()
        return float(-0.5 * (r.square().sum() + logdet + measured * math.log(2 * math.pi)))

    def parameters(self) -> Tensor:
        # the logarithm of Σ: any symmetric matrix is one, and a variance on its way to 0 keeps moving
        values, vectors = torch.linalg.eigh(self.cov)
        log = (vectors * values.clamp(min=1e-30).log()) @ vectors.T
        return torch.cat([self.mean, log.flatten()])

    def set_parameters(self, parameters: Tensor) -> None:
        size = len(self.mean)
        log = parameters[size:].reshape(size, size)
        values, vectors = torch.linalg.eigh((log + log.T) / 2)
        self.mean, self.cov = parameters[:size], (vectors * values.clamp(-70, 70).exp()) @ vectors.T
        self._reset()

    def maximise(self) -> None:
        g = self.g / self.count
        spread = self.gg / self.count - g.outer(g) - self.information / self.count
        self.mean = self.mean + self.cov @ g
        cov = self.cov + self.cov @ spread @ self.cov
        self.cov = (cov + cov.T) / 2
        self._reset()

    def result(self) -> tuple[Tensor, Dense]:
        mean = self.mean.reshape(self.obs.x_shape).to(self.obs.y.dtype)
        values, vectors = torch.linalg.eigh(self.cov)
        return mean, Dense.from_eigen(values.clamp(min=0).to(mean), vectors.to(mean))


class _LowRank:
    r"""Σ = UUᵀ + dI as a latent variable model, x = μ + Uz + √d ε.

    With N = d AAᵀ + Σ_y, W = AU, S = (I + WᵀN⁻¹W)⁻¹ and G = I − d AᵀN⁻¹A:

        z | y ~ N(ẑ, S),  ẑ = S WᵀN⁻¹(y − Aμ);    E[x | z, y] = G(μ + Uz) + d AᵀN⁻¹y;    tr V[x | z, y] = dN − d² tr(AᵀN⁻¹A),

    which are all the moments that regressing x on (z, 1) needs. N is diagonal when AAᵀ is (masks, crops, complex k-space, block
    means); otherwise N⁻¹ is applied by conjugate gradients and the traces are estimated with one fixed random sign vector per
    observation, whose error averages out over observations.
    """

    def __init__(self, obs: Observations, rank: int, seed: int) -> None:
        self.obs, self.rank, self.size = obs, rank, math.prod(obs.x_shape)
        self.seed = seed
        like = torch.zeros(self.size, dtype=torch.float64, device=obs.y.device)
        self.mean = like
        index = torch.arange(rank, device=like.device)
        self.u = Stream(seed, "gaussian fit").normal(index, (self.size,), dtype=torch.float64) / math.sqrt(
            rank
        )  # (r, N)
        self.d = torch.ones((), dtype=torch.float64, device=like.device)
        self.position = 0
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
        n, shape, r, d = len(obs), obs.x_shape, self.rank, self.d
        noise = _ObservationNoise(obs, d, Stream(self.seed, "gaussian fit traces"), self.position)
        self.position += n

        def forward(x: Tensor) -> Tensor:  # (N,) or (n, N) -> (n, m)
            return obs.A(x.reshape(-1, *shape).expand(n, *shape).contiguous()).flatten(1)

        def adjoint(v: Tensor) -> Tensor:  # (n, m) -> (n, N)
            return obs.A.adjoint(v.reshape(obs.y.shape)).flatten(1)

        W = torch.stack([forward(u) for u in self.u], -1)  # (n, m, r)
        NW = torch.stack([noise.solve(W[..., k]) for k in range(r)], -1)
        precision = torch.eye(r, dtype=torch.float64, device=W.device) + W.mT @ NW
        chol = torch.linalg.cholesky(precision)
        S = torch.cholesky_inverse(chol)
        residual = obs.residual(self.mean.reshape(1, *shape).expand(n, *shape).contiguous()).flatten(1)
        N_residual = noise.solve(residual)
        z = (S @ (NW.mT @ residual.unsqueeze(-1))).squeeze(-1)  # (n, r)

        # x̂ = μ + Uẑ + d AᵀN⁻¹(y − A(μ + Uẑ))
        x = self.mean + z @ self.u + d * adjoint(N_residual - (NW @ z.unsqueeze(-1)).squeeze(-1))
        # cov(x, z | y) = G U S, column by column: U S − d AᵀN⁻¹W S
        NWS = NW @ S
        US = torch.einsum("ri,nrk->nik", self.u, S)  # (n, N, r)
        cross = US - d * torch.stack([adjoint(NWS[..., k]) for k in range(r)], -1)
        self.count += n
        self.zz[:r, :r] += S.sum(0) + z.T @ z
        self.zz[:r, r] += z.sum(0)
        self.zz[r, :r] += z.sum(0)
        self.zz[r, r] += n
        self.xz[:, :r] += cross.sum(0) + x.T @ z
        self.xz[:, r] += x.sum(0)
        # tr V[x | y] = tr(G U S Uᵀ Gᵀ) + dN − d² tr(AᵀN⁻¹A)
        explained = torch.einsum("nik,nik->", cross, cross @ precision)  # S⁻¹ is the precision
        self.xx += x.square().sum() + explained + n * d * self.size - d**2 * noise.trace().sum()

        logdet = noise.logdet() + 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        fit = (residual * N_residual).sum(1) - (z * (NW.mT @ residual.unsqueeze(-1)).squeeze(-1)).sum(1)
        return float(-0.5 * (fit + logdet + obs.counts() * math.log(2 * math.pi)).sum())

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
        shape, y = self.obs.x_shape, self.obs.y
        return self.mean.reshape(shape).to(y), LowRank(self.u.reshape(-1, *shape).to(y), float(self.d))


class _ObservationNoise:
    """N = d AAᵀ + Σ_y for a batch: N⁻¹v, log|N| and tr(AᵀN⁻¹A), on the measured entries; tensors are `(n, m)`."""

    def __init__(self, obs: Observations, d: Tensor, stream: Stream, first: int) -> None:
        self.obs, self.d = obs, d
        gram = obs.A.gram_diagonal(obs.y)
        self.gram = None if gram is None else gram.expand_as(obs.y).flatten(1).double()
        self.sigma_y = obs.noise
        shape = tuple(obs.y.shape[1:])
        self.diagonal = self.sigma_y.diagonal(shape).expand(obs.y.shape).flatten(1)
        self.exact = self.gram is not None and isinstance(self.sigma_y, Isotropic | Diagonal)
        if not self.exact:
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
        return solution.u.flatten(1)

    def trace(self) -> Tensor:
        """tr(AᵀN⁻¹A) per observation, `(n,)`."""
        if self.exact:
            assert self.gram is not None
            return self.solve(self.gram).sum(1)
        seen = self.obs.A(self.probe).flatten(1)
        return (seen * self.solve(seen)).sum(1)

    def logdet(self) -> Tensor:
        """log|N| per observation, `(n,)`."""
        if self.exact:
            return torch.where(self.diagonal > 0, self._total().log(), 0).sum(1)
        if self.obs.y[0].numel() > MAX_DENSE:
            return torch.full((len(self.obs),), torch.nan, dtype=torch.float64, device=self.d.device)
        A = _measurement_matrices(self.obs)
        return torch.logdet(self.d * A @ A.mT + _noise_matrices(self.obs)[0])
