r"""The Gaussian prior of maximum likelihood given observations alone, by expectation–maximisation.

`fit_gaussian(obs)` keeps the full covariance and is exact; `fit_gaussian(obs, rank=r)` fits Σ = UUᵀ + dI (probabilistic
PCA, Tipping & Bishop 1999) without forming anything of size N². Both use the exact posterior moments of x given y: no
sampler, no Monte-Carlo error. Observations are divided by their scale, so the fit does not depend on units. Every
second round is extrapolated; the extrapolation is kept only if it increases the likelihood, so the observed-data
log-likelihood never decreases. If everything is measured there is a closed form (`fit_complete.py`). Circular blurs and
k-space of one coil measure single coordinates in Fourier space and are fitted there (`observations/diagonal.py`).

If the maximum is not needed: `moments="sampled"` replaces the moments by draws (`fit_sampled.py`), and with `held_out`
observations the fit stops when their likelihood no longer improves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.progress import Progress
from ..files.memory import working_bytes
from ..linalg import ConvergenceWarning, Covariance, DenseCovariance, LowRank
from ..observations import Observations
from ..observations.batches import Batches
from ..observations.diagonal import Coordinates, diagonalised, likelihood_factor
from ..observations.features import require_linear_gaussian
from ..observations.lazy import as_lazy, counts_of
from ..observations.scale import signal_scale
from ..operators.coordinates import from_coordinates, to_coordinates
from .base import require_count
from .fit_complete import fit_complete, is_complete
from .fit_full import FullModel, SelectionModel
from .fit_low_rank import LowRankModel
from .fit_sampled import SampledModel
from .gaussian import GaussianPrior
from .rounds import FitHistory, FitState, HeldOutScores, Model, Rounds, run_rounds

MAX_DENSE = 4096
ROUNDS = 512  # largest number of rounds by default
WINDOW = 13  # likelihoods that show whether a fit has converged
STILL_INCREASING = 3e-5  # nats per measured value between the first and the last of them: more rounds are needed
ROUNDING = 1e-6  # larger decreases, in nats per measured value, are due to rounding errors
MAX_EXTRAPOLATED = 1024  # above this size the eigenvectors of an extrapolation cost more than the rounds it saves

Moments = Literal["exact", "sampled"]


@in_default_modes
@torch.no_grad()
def fit_gaussian(
    obs: Observations,
    rank: int | None = None,
    *,
    rounds: int | None = None,
    tolerance: float = 1e-9,
    moments: Moments = "exact",
    held_out: Observations | None = None,
    batch_size: int | None = None,
    start: GaussianPrior | None = None,
    seed: int = 0,
    sigma_min: float | None = None,
    sigma_max: float | None = None,
    history: FitHistory | None = None,
    progress: bool | None = None,
    checkpoint: Callable[[FitState], None] | None = None,
    resume: FitState | None = None,
    device: torch.device | None = None,
) -> GaussianPrior:
    """Fit N(μ, Σ) to observations, in memory or on disk.

    Args:
        obs: The observations.
        rank: The rank r of Σ = UUᵀ + dI, or None for a full covariance.
        rounds: Largest number of rounds. Default: 512, with a warning if they do not suffice.
        tolerance: Stop when a round adds less than this many nats per measured value. Without effect if the likelihood
            is not computed: for large images under an operator whose AAᵀ is not diagonal.
        moments: Posterior moments of x, "exact" or "sampled". Those of a low-rank covariance are always exact.
        held_out: Observations not among `obs`. The fit stops when their likelihood no longer improves, and returns the
            parameters of the best one; `tolerance` is then ignored. Without effect if their likelihood is not computed.
        batch_size: Observations per batch. Default: as many as need at most 256 MiB of temporary tensors (8 GiB on a
            GPU).
        start: A Gaussian with full covariance to start from, for instance of a fit to some of the observations.
        seed: Seed of the random numbers.
        sigma_min: Lowest noise level of draws with a sampler. Default: 1e-3 times the scale of x.
        sigma_max: Highest noise level of such draws. Default: 1e2 times the scale of x.
        history: Receives the log-likelihood of every round.
        progress: Whether to show a progress bar. Default: on a terminal.
        checkpoint: Function that is called with the state of the fit before every extrapolated step (three rounds).
        resume: Such a state of a fit with the same arguments. The result is bit-identical to that of the uninterrupted
            fit.
        device: Device of the computation. Default: that of the observations.

    Raises:
        InputError: If no observation measures anything, y comes from a `Channel`, the rank is not below the size of x,
            or x is too large for a full covariance.
    """
    require_linear_gaussian(obs, "fit_gaussian", "Use priors.fit_channel_gaussian, which fits to estimates of x")
    _check_rank(rank, math.prod(obs.x_shape))
    most = ROUNDS if rounds is None else rounds
    _check_options(most, batch_size, moments)
    history = FitHistory() if history is None else history
    informative = as_lazy(obs).informative()  # observations without measured values add nothing to the likelihood
    if informative is None:
        raise InputError("no observation has a measured value: there is nothing to fit a Gaussian to")
    dtype, scale = informative[:1].y.dtype, signal_scale(informative)
    # scaled when used, without a copy; a density in the units of x is 1/scale of that in units of the scale
    obs, per_value = as_lazy(informative).scaled(1 / scale), math.log(scale)
    batches = Batches(obs, device=device)
    cov: Covariance
    if rank is None and is_complete(batches):
        mean, cov, log_likelihood = fit_complete(batches)
        history.log_likelihood.append(log_likelihood - per_value)
    else:
        unseen = None if held_out is None else held_out.scaled(1 / scale)
        fit = Rounds(most, tolerance, per_value, history, progress, checkpoint, resume)
        try:
            mean, cov = _iterate(obs, batches, rank, moments, seed, start, scale, unseen, batch_size, device, fit)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            raise InputError(
                "the noise of these observations is too small compared with the signal: the covariance of their "
                f"measured values is singular in float64; give a sigma of {1e-5 * scale:.1e} or more, or a rank"
            ) from None
        mean, cov = mean.to(dtype), cov.to(dtype)
        if rounds is None and moments == "exact" and unseen is None:
            _warn_if_not_converged(history.log_likelihood)
    return GaussianPrior(mean * scale, cov.scaled(scale), sigma_min=sigma_min, sigma_max=sigma_max)


def _warn_if_not_converged(log_likelihood: list[float]) -> None:
    """Warn if the fit ended for another reason than a maximum: the number of rounds, or rounding errors."""
    recent = log_likelihood[-WINDOW:]
    gain = recent[-1] - recent[0]
    # exact rounds never decrease the likelihood, and a decrease may be followed by an increase
    loss = max((before - after for before, after in pairwise(recent)), default=0.0)
    if len(log_likelihood) >= ROUNDS and gain > STILL_INCREASING:
        reason = (
            f"after {len(log_likelihood)} rounds the likelihood still increases, by {gain:.1e} nats per measured value "
            f"in the last {WINDOW - 1}; pass more rounds"
        )
    elif loss > ROUNDING:
        reason = (
            f"one of the last {len(recent) - 1} rounds decreased the likelihood by {loss:.1e} nats per measured value, "
            "because the noise is so far below the signal that rounding errors matter in float64"
        )
    else:
        return
    message = f"the covariance of the Gaussian is not quite that of maximum likelihood: {reason}"
    warnings.warn(message, ConvergenceWarning, stacklevel=5)


def _check_options(rounds: int, batch_size: int | None, moments: str) -> None:
    require_count(rounds, "rounds")
    if batch_size is not None:
        require_count(batch_size, "batch_size")
    if moments not in (known := get_args(Moments)):
        raise InputError(f"moments must be one of {', '.join(known)}, got {moments!r}")


def _check_rank(rank: int | None, size: int) -> None:
    if rank is None and size > MAX_DENSE:
        raise InputError(
            f"a full covariance over {size} numbers would take {size**2 * 8 / 2**30:.1f} GiB and a long time; "
            f"pass rank=..., for example 64 (full ones are fitted up to {MAX_DENSE})"
        )
    if rank is None:
        return
    require_count(rank, "rank")
    if rank >= size:
        raise InputError(f"rank must lie between 1 and {size - 1}, got {rank}")


def _iterate(
    obs: Observations,
    batches: Batches,
    rank: int | None,
    moments: Moments,
    seed: int,
    start: GaussianPrior | None,
    scale: float,
    held_out: Observations | None,
    batch_size: int | None,
    device: torch.device | None,
    fit: Rounds,
) -> tuple[Tensor, Covariance]:
    """Run the rounds on observations in units of `scale`; returns mean and covariance in these units."""
    event_shape = obs.x_shape
    counts = counts_of(batches, len(obs))
    total, coordinates, factor = int(counts.sum()), diagonalised(obs), 0.0
    if coordinates is not None:
        total, factor = int(obs.counts().sum()), likelihood_factor(obs, device)
        obs = coordinates.obs
        batches = Batches(obs, device=device)
        counts = counts_of(batches, len(obs))
    selected = rank is None and batches.first().selection() is not None
    model: Model
    if rank is not None:
        model = LowRankModel(batches, rank, seed, amplified=coordinates is not None)
    else:
        full = (
            SelectionModel(batches, int(counts.max()), amplified=coordinates is not None)
            if selected
            else FullModel(batches, len(obs))
        )
        model = SampledModel(full, len(obs), seed) if moments == "sampled" else full
    if start is not None:
        if isinstance(model, LowRankModel) or start.event_shape != event_shape:
            raise InputError(
                f"start must be a Gaussian over {event_shape} for a fit with full covariance, got one over "
                f"{start.event_shape} for rank {rank}"
            )
        model.begin(*_into(coordinates, start.mean / scale, start.covariance().scaled(1 / scale)))
    batch_size = batch_size or max(1, working_bytes(batches.device) // model.bytes_each)
    # blocks of one batch are padded to the largest one: batches of similar size waste least
    order = counts.argsort(stable=True) if selected else None
    batches = Batches(obs, batch_size, device, order)
    unseen = None if held_out is None else _unseen(held_out, model, batch_size, device)
    fit.history.held_out.clear()
    if unseen is not None:
        unseen.scores = fit.history.held_out
    with Progress("Gaussian fit", fit.rounds * len(obs), "observations", fit.progress) as bar:

        def expect(model: Model) -> float:
            log_likelihood = factor
            for part in batches:
                log_likelihood += model.expect(part)
                bar.advance(len(part))
            return log_likelihood / total

        extrapolates = rank is not None or math.prod(event_shape) <= MAX_EXTRAPOLATED
        model = run_rounds(model, expect, extrapolates, unseen, fit)
    return _out_of(coordinates, model.result(), event_shape)


def _unseen(obs: Observations, model: Model, batch_size: int, device: torch.device | None) -> HeldOutScores | None:
    """Make the stopping rule for held-out observations; None if the likelihood of the model is not computed."""
    if model.scorer() is None or (some := as_lazy(obs).informative()) is None:
        return None
    coordinates, total = diagonalised(some), int(some.counts().sum())
    return HeldOutScores(Batches(some if coordinates is None else coordinates.obs, batch_size, device), total)


def _into(coordinates: Coordinates | None, mean: Tensor, cov: Covariance) -> tuple[Tensor, Covariance]:
    """Mean and covariance of Bx from those of x; mean: `(*event)`, and `(N,)` in coordinates."""
    if coordinates is None:
        return mean, cov
    mean, cov = mean.double(), cov.to(torch.float64)
    eye = torch.eye(mean.numel(), dtype=mean.dtype, device=mean.device).reshape(-1, *mean.shape)
    half = to_coordinates(coordinates.basis, cov.matvec(eye))  # rows of ΣBᵀ
    matrix = to_coordinates(coordinates.basis, half.T.reshape(-1, *mean.shape))
    return to_coordinates(coordinates.basis, mean.unsqueeze(0))[0], DenseCovariance((matrix + matrix.T) / 2)


def _out_of(
    coordinates: Coordinates | None, fitted: tuple[Tensor, DenseCovariance | LowRank], event_shape: tuple[int, ...]
) -> tuple[Tensor, Covariance]:
    """Mean `(*event)` and covariance of x from those of its coordinates."""
    mean, cov = fitted
    if coordinates is None:
        return mean, cov

    def sample(c: Tensor) -> Tensor:
        return from_coordinates(coordinates.basis, c, event_shape)

    mean = sample(mean.reshape(1, -1))[0]
    if isinstance(cov, LowRank):
        factor, variance = cov._tensors["factor"], cov._tensors["variances"]
        return mean, LowRank(sample(factor), float(variance.flatten()[0]))
    vectors = sample(cov._tensors["vectors"].T).flatten(1).T
    return mean, DenseCovariance.from_eigen(cov._tensors["values"], vectors)
