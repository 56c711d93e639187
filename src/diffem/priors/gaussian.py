r"""The Gaussian prior N(μ, Σ): the start of expectation–maximisation, and an exact reference for tests.

E[x | x_t] = μ + Σ (Σ + σ²I)⁻¹ (x_t − μ)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.interruption import poll
from ..core.modes import in_default_modes
from ..core.randomness import Stream
from ..core.shapes import require_batch, require_like, require_precision, require_same_dtype
from ..files.memory import working_bytes
from ..linalg import Covariance, DenseCovariance, Diagonal, Isotropic, System, as_covariance, cg
from ..linalg.inner import accumulate_dtype
from ..linalg.selected import SelectedBlocks
from ..linalg.solvers import ConvergenceMonitor
from ..observations import Observations
from ..operators import Identity
from ..operators.gain import mean_gain
from .base import Prior, require_mean, typical_size

ITERATIONS = 1000  # largest number of iterations of a solve, for operators that mix entries
ACCURATE = 1e-8  # largest relative residual that causes no warning
VECTORS = 24  # vectors in float64 per sample that an exact posterior draw needs, most of them in conjugate gradients
CPU_SOLVED_BYTES = 32 << 20  # vectors of the systems that are solved at a time on a CPU


class GaussianPrior(Prior):
    """N(μ, Σ), with exact samples and exact posteriors.

    Its scale is the root mean square of the standard deviations of its entries.

    Args:
        mean: (*event). μ.
        cov: Σ as a covariance object, or as a dense matrix over the flattened event.
        sigma_min: See `Prior`.
        sigma_max: See `Prior`.
    """

    is_exact: ClassVar[bool] = True

    @in_default_modes
    def __init__(
        self,
        mean: Tensor,
        cov: Covariance | Tensor,
        *,
        sigma_min: float | None = None,
        sigma_max: float | None = None,
    ) -> None:
        require_mean(mean, "GaussianPrior")
        event_shape = tuple(mean.shape)
        cov = as_covariance(cov, event_shape, "GaussianPrior")
        if cov.batch is not None:
            raise InputError(
                f"GaussianPrior: the covariance must be shared, got one for each of {count_of(cov.batch, 'sample')}"
            )
        if all(tensor.dim() == 0 for tensor in cov._tensors.values()):
            cov = cov.to(mean)  # like numbers in PyTorch, they take the dtype of the tensor
        super().__init__(mean, sigma_min, sigma_max, scale=typical_size(cov.diagonal(event_shape), mean))
        self._cov: Covariance = cov
        for name, tensor in self._cov._tensors.items():
            require_same_dtype(tensor, f"{name} of the covariance", self.mean, "the mean")

    def covariance(self) -> Covariance:
        return self._cov

    def batch_for(self, most: int) -> int:
        """Default batch size, at most `most`: `working_bytes` for the vectors of an exact posterior draw."""
        return min(most, max(1, working_bytes(self.mean.device) // (VECTORS * 8 * self.mean.numel())))

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        return self.mean + self._cov.filtered(x_t - self.mean, sigma**2)

    def exact_samples(self, n: int, seed: int, batch_size: int) -> Tensor:
        require_precision(self.mean.dtype, "the GaussianPrior")
        stream = Stream(seed, "gaussian prior")
        parts = torch.arange(n, device=self.mean.device).split(batch_size)
        noise = (stream.normal(index, self.event_shape, dtype=self.mean.dtype) for index in parts)
        return torch.cat([self.exact_sample(z) for z in noise])

    @in_default_modes
    def exact_sample(self, z: Tensor) -> Tensor:
        """Turn white noise z `(n, *event)` into samples μ + Σ^½ z."""
        return self.mean + self._cov.sqrt(z)

    def choose_method(self, obs: Observations) -> tuple[str, str]:
        return "exact", "the posterior of a Gaussian prior has a closed form"

    @in_default_modes
    def draw_posterior(
        self, obs: Observations, *, seed: int = 0, lap: int = 0, index: Tensor | None = None, draw: int = 0
    ) -> Tensor:
        r"""Draw exactly from q(x | y, A), one draw per observation, `(n, *event)`, by Matheron's rule:

            x + ΣAᵀ (AΣAᵀ + Σ_y)⁻¹ (y − Ax − e),  x ~ N(μ, Σ),  e ~ N(0, Σ_y).

        Args:
            obs: The n observations.
            seed: The address of the random numbers, with `lap`, `index` and `draw`: see `posterior.Posterior.sample`.
            lap: See `seed`.
            index: See `seed`.
            draw: See `seed`.
        """
        poll()
        index = torch.arange(len(obs)) if index is None else index
        index = index.to(self.mean.device)
        # in float64: for precise measurements the fit of a draw depends on the directions with the least variance
        obs = obs.to(torch.float64).reduced()
        stream, number = Stream(seed, "gaussian posterior", lap), torch.full_like(index, draw)

        def white(shape: tuple[int, ...], step: int) -> Tensor:
            return stream.normal(index, shape, step=step, draw=number, dtype=self.mean.dtype).double()

        # no name keeps the white noise and e in memory during the solve
        x = self.mean + self._cov.to(torch.float64).sqrt(white(self.event_shape, 0))
        residual = obs.residual(x) - obs.noise.sqrt(white(tuple(obs.y.shape[1:]), 1))
        return (x + self._gain(obs, residual)).to(self.mean.dtype)

    @in_default_modes
    def posterior_mean(self, obs: Observations) -> Tensor:
        """E[x | y] per observation, `(n, *event)`."""
        obs = obs.to(torch.float64).reduced()
        mean = self.mean.double().expand(len(obs), *self.event_shape).contiguous()
        return (mean + self._gain(obs, obs.residual(mean))).to(self.mean.dtype)

    def _gain(self, obs: Observations, residual: Tensor) -> Tensor:
        """ΣAᵀ (AΣAᵀ + Σ_y)⁻¹ residual, in float64."""
        selected = obs.selection() if isinstance(self._cov, DenseCovariance) else None
        if selected is not None:
            return self._selected_gain(obs, selected, residual)
        cov = self._cov.to(torch.float64)
        if isinstance(obs.A, Identity) and isinstance(obs.cov, Isotropic):
            # Σ(Σ + s)⁻¹r = r − s(Σ + s)⁻¹r has one factor only, so it is less sensitive to float32 eigenvectors
            variance = obs.cov.diagonal(())
            shifted = cov.plus(variance if obs.cov.batch else variance[0])
            return residual - obs.cov.matvec(shifted.solve(residual))

        shared = isinstance(obs.A, Identity) and isinstance(obs.cov, Diagonal) and obs.cov.batch is None
        if shared and isinstance(cov, DenseCovariance):  # one matrix Σ + Σ_y for all observations
            return _shared_gain(cov.matrix()[0], obs.cov.diagonal(self.event_shape), residual)

        required = torch.finfo(self.mean.dtype).eps ** 0.75
        scale = self._equalising(obs)
        # with unequal noise, the most precise values may be a small part of the residual
        tolerance = required if scale is None else min(required, ACCURATE)
        monitor = ConvergenceMonitor("posterior of a Gaussian prior", max(required, ACCURATE))
        gain = residual.new_empty(len(obs), *self.event_shape)
        for rows in self._solved_together(residual):
            system = _system(cov, obs[rows], scale if scale is None or len(scale) == 1 else scale[rows])
            solution = cg(system, system.scaled(residual[rows]), iterations=ITERATIONS, tolerance=tolerance)
            monitor.add(solution)
            gain[rows] = solution.pullback
        monitor.warn()
        return gain

    def _solved_together(self, residual: Tensor) -> Iterator[slice]:
        """Split the systems of residuals `(n, *measurement)` into parts: on a CPU, of `CPU_SOLVED_BYTES`.

        Conjugate gradients need several times the memory of everything else in a draw. Small parts reduce the peak, and
        each ends when its own systems have converged.
        """
        each = VECTORS * 8 * max(self.mean.numel(), residual[0].numel())
        together = len(residual) if residual.device.type != "cpu" else max(1, CPU_SOLVED_BYTES // each)
        return (slice(first, first + together) for first in range(0, len(residual), together))

    def _equalising(self, obs: Observations) -> Tensor | None:
        """The scale of a system whose noise variances differ, see `posterior/solving.py`; None if they are equal.

        Without it the residual at which the solve ends would be that of the values with the most noise.
        """
        if isinstance(obs.cov, Isotropic):
            return None
        signal = float(self.scale) ** 2 * mean_gain(obs.A, obs.y)
        return (obs.noise.diagonal(tuple(obs.y.shape[1:])) + signal).rsqrt()

    def _selected_gain(self, obs: Observations, selected: Tensor, residual: Tensor) -> Tensor:
        """ΣAᵀ (AΣAᵀ + Σ_y)⁻¹ residual by a direct solve, for operators that measure single entries.

        With little noise, conjugate gradients would need many iterations.
        """
        assert isinstance(self._cov, DenseCovariance)
        matrix, gain = self._cov.to(torch.float64).matrix()[0], []
        variances = obs.noise.diagonal(self.event_shape).expand(residual.shape).flatten(1)
        # memory: a block of the covariance, its inverse and their indices
        together = working_bytes(residual.device) // (8 * 8 * max(1, int(selected.sum(1).max())) ** 2)
        for rows in torch.arange(len(obs), device=residual.device).split(max(1, together)):
            blocks = SelectedBlocks.gather(matrix, variances[rows], selected[rows])
            try:
                solved = blocks.solve(blocks.take(residual[rows].flatten(1)))
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                sigma = float(variances[selected].min()) ** 0.5
                raise InputError(
                    "the noise of these observations is too small compared with the signal: with sigma "
                    f"{sigma:.1e} the covariance of their measured values is singular in float64"
                ) from None
            u = blocks.spread(solved, len(matrix))
            gain.append(u @ matrix)
        return torch.cat(gain).reshape(residual.shape)

    @in_default_modes
    def log_prob(self, x: Tensor) -> Tensor:
        """log N(x | μ, Σ), `(n,)`. Raises InputError if Σ is singular: there is no density then."""
        require_like(require_batch(x, "x"), "x", self.mean, "GaussianPrior")
        if not (self._cov.eigenvalue_floor() > 0).all():
            raise InputError("the covariance of this GaussianPrior is singular: it has no density")
        # in float64: small variances amplify rounding errors
        exact = accumulate_dtype(x.device)
        return self._cov.to(exact).log_prob(x.to(exact) - self.mean.to(exact))

    def extra_repr(self) -> str:
        return f"event_shape={self.event_shape}, cov={self._cov}"


def _system(cov: Covariance, obs: Observations, scale: Tensor | None) -> System:
    """AΣAᵀ + Σ_y, with the pullback ΣAᵀp, or S(AΣAᵀ + Σ_y)S for a scale S."""

    def signal(p: Tensor) -> tuple[Tensor, Tensor]:
        pullback = cov.matvec(obs.A.adjoint(p))
        return obs.A(pullback), pullback

    return System(signal, obs.noise, scale)


def _shared_gain(cov: Tensor, variances: Tensor, residual: Tensor) -> Tensor:
    """Σ(Σ + diag v)⁻¹ r for one Σ `(N, N)`, variances v `(1, *event)` and residuals r `(n, *event)`."""
    factor = torch.linalg.cholesky(cov + variances.flatten().diag())
    return (torch.cholesky_solve(residual.flatten(1).T, factor).T @ cov).reshape(residual.shape)
