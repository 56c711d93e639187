r"""The full-covariance model of `fit_gaussian` with a sampled E-step, if exact moments are too expensive.

Exact moments invert one matrix per observation, in N³ operations; a draw takes a few dozen products with Σ. With K =
AΣAᵀ + Σ_y, the posterior mean and a draw of the deviation from it are (Matheron's rule)

    x̂ = μ + ΣAᵀK⁻¹(y − Aμ),      δ = w − ΣAᵀK⁻¹(Aw + e),      w ~ N(0, Σ), e ~ N(0, Σ_y),

and a round of stochastic expectation–maximisation (Celeux & Diebolt 1985) sets

    μ ← mean x̂,      Σ ← cov x̂ + mean δδᵀ.

K⁻¹ is applied by conjugate gradients, which are stopped early: their error is far below that of estimating Σ from a few
thousand observations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..linalg import Covariance, DenseCovariance, System, cg
from ..observations import Observations
from ..operators.gain import mean_gain
from .fit_full import FullModel, SelectionModel

ITERATIONS, TOLERANCE = 16, 1e-2  # iterations of conjugate gradients


class SampledModel:
    """The model `exact` with mean and covariance updated from posterior draws. Every round uses new random numbers."""

    def __init__(self, exact: FullModel, n: int, seed: int) -> None:
        size = len(exact.mean)
        self.exact, self.seed = exact, seed
        # draws per observation: enough to span all directions for any number of observations
        self.draws = max(1, -(-2 * size // n))
        self.bytes_each = 8 * 40 * size  # memory: vectors of conjugate gradients and temporary ones
        self.rounds = 0
        self._reset()

    def _reset(self) -> None:
        cov = self.exact.cov
        values, vectors = torch.linalg.eigh(cov)
        self._root = vectors * values.clamp(min=0).sqrt()  # Σ = root rootᵀ
        self.count = 0
        self.x = torch.zeros_like(self.exact.mean)
        self.xx, self.spread = torch.zeros_like(cov), torch.zeros_like(cov)

    def begin(self, mean: Tensor, cov: Covariance) -> None:
        """Start from N(mean, cov) instead of the default; mean: `(*event)`."""
        self.exact.begin(mean, cov)
        self._reset()

    def state(self) -> dict[str, Tensor]:
        return {**self.exact.state(), "rounds": torch.tensor(self.rounds)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state()`."""
        self.exact.restore(state)
        self.rounds = int(state["rounds"])
        self._reset()

    def expect(self, obs: Observations) -> float:
        """Draw for a batch and add to the sums. Returns NaN, since the likelihood is not computed."""
        obs = obs.to(torch.float64)
        n, shape, size = len(obs), obs.x_shape, len(self.exact.mean)
        index = torch.arange(self.count, self.count + n, device=obs.y.device)
        stream = Stream(self.seed, "gaussian fit draws", self.rounds)
        mean = self.exact.mean.reshape(1, *shape).expand(n, *shape).contiguous()
        x = self.exact.mean + self._weighted_adjoint(obs, obs.residual(mean))
        for draw in range(self.draws):
            number = torch.full_like(index, draw)
            w = stream.normal(index, (size,), draw=number).double() @ self._root.T
            e = obs.noise.sqrt(stream.normal(index, tuple(obs.y.shape[1:]), step=1, draw=number).double())
            deviation = w - self._weighted_adjoint(obs, obs.A(w.reshape(n, *shape)) + e)
            self.spread += deviation.T @ deviation / self.draws
        self.count += n
        self.x += x.sum(0)
        self.xx += x.T @ x
        return torch.nan

    def _weighted_adjoint(self, obs: Observations, residual: Tensor) -> Tensor:
        """ΣAᵀK⁻¹ residual, `(n, N)`."""
        cov, shape = self.exact.cov, obs.x_shape

        def signal(p: Tensor) -> tuple[Tensor, Tensor]:
            pull = (obs.A.adjoint(p).flatten(1) @ cov).reshape(len(p), *shape)
            return obs.A(pull), pull

        # approximately diag(K); exact for operators that measure single entries
        signal_variance = cov.diagonal().reshape(1, *shape)
        if obs.selection() is None:
            signal_variance = mean_gain(obs.A, obs.y) * signal_variance.mean()
        noise = obs.noise
        variances = signal_variance + noise.diagonal(tuple(obs.y.shape[1:]))
        system = System(signal, noise, variances.rsqrt().expand_as(residual))
        solution = cg(system, system.scaled(residual), iterations=ITERATIONS, tolerance=TOLERANCE)
        return solution.pullback.flatten(1)

    def maximise(self) -> None:
        mean = self.x / self.count
        cov = (self.xx + self.spread) / self.count - mean.outer(mean)
        self.exact.mean, self.exact.cov = mean, (cov + cov.T) / 2
        self.rounds += 1
        self._reset()

    def scorer(self) -> FullModel | None:
        """The exact model with these parameters; None if its likelihood is too expensive."""
        return self.exact.scorer() if isinstance(self.exact, SelectionModel) else None

    def result(self) -> tuple[Tensor, DenseCovariance]:
        return self.exact.result()
