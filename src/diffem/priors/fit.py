r"""The Gaussian prior of maximum likelihood given observations alone, by expectation–maximisation.

`fit_gaussian(obs)` keeps the full covariance and is exact; `fit_gaussian(obs, rank=r)` fits Σ = UUᵀ + dI (probabilistic PCA,
Tipping & Bishop 1999) without forming anything of size N². Both use the exact posterior moments of x given y: no sampler, no
Monte-Carlo error. The fit works on observations divided by their own scale, so that it is the same in any units. Every second round is extrapolated and kept only if that helped, so the observed-data log-likelihood
never decreases. Where everything is measured there is nothing to iterate (`fit_complete.py`); circular blurs and k-space of one coil
are measurements of single coordinates in Fourier space, and are fitted there (`observations/diagonal.py`).

For a start that need not be the maximum: `moments="sampled"` replaces the moments by draws (`fit_sampled.py`), and with `held_out`
observations the fit ends when these are predicted no better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_own_modes
from ..core.progress import Progress
from ..files.memory import working_bytes
from ..linalg import Covariance, Dense, LowRank
from ..observations import Observations
from ..observations.batches import Batches
from ..observations.diagonal import Coordinates, diagonalised, likelihood_factor
from ..observations.lazy import counts_of, stored
from ..observations.scale import signal_scale
from ..operators.coordinates import from_coordinates, to_coordinates
from .fit_complete import fit_complete, is_complete
from .fit_full import Full, Selected
from .fit_low_rank import LowRankModel
from .fit_sampled import Sampled
from .gaussian import GaussianPrior
from .rounds import FitHistory, FitState, HeldOut, Model, log_likelihood_of, run_rounds

MAX_DENSE = 4096
MAX_EXTRAPOLATED = 1024  # beyond, the eigenvectors an extrapolation needs cost more than the rounds it saves

Moments = Literal["exact", "sampled"]


@in_own_modes
@torch.no_grad()
def fit_gaussian(
    obs: Observations,
    rank: int | None = None,
    *,
    rounds: int = 512,
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
    """Fit N(μ, Σ) to observations, which may lie on disk: batch by batch, in every round.

    rank: None for a full covariance, or the rank r of Σ = UUᵀ + dI.
    rounds, tolerance: stop after so many rounds, or when a round adds less than `tolerance` nats per measured value. (The
        likelihood of large images under an operator whose AAᵀ is not diagonal is not computed; then all rounds are run.)
    moments: of x given y, "exact" or "sampled"; those of a low-rank covariance are always exact.
    held_out: observations not among `obs`; when they are predicted no better from step to step, the fit stops and returns the parameters
        that predicted them best, and `tolerance` does not count. Without effect where their likelihood is not computed.
    batch_size: observations handled at a time; chosen to need at most a quarter of a gigabyte when not given (8 GiB on a GPU).
    start: a Gaussian with full covariance to go on from, say of a fit to some of the observations.
    history: filled with the log-likelihood of every round.
    checkpoint: called before every extrapolated step (three rounds) with the state of the fit; resume: such a state, of a
        fit with the same arguments, which then continues to the same bits.
    device: where to compute; where the observations are when not given.
    """
    size, event_shape = math.prod(obs.x_shape), obs.x_shape
    if rank is None and size > MAX_DENSE:
        raise InputError(
            f"a full covariance over {size} numbers would take {size**2 * 8 / 2**30:.1f} GiB and a long time; "
            f"pass rank=..., say 64 (full ones are fitted up to {MAX_DENSE})"
        )
    if rank is not None and not 1 <= rank < size:
        raise InputError(f"rank must lie between 1 and {size - 1}, got {rank}")
    history = FitHistory() if history is None else history
    informative = stored(obs).informative()  # the others add nothing to the likelihood, and only slow the rounds down
    if informative is None:
        raise InputError(
            f"none of the {len(obs)} observations measures anything: there is nothing to fit a Gaussian to"
        )
    obs = informative
    dtype, scale = obs[:1].y.dtype, signal_scale(obs)
    # scaled as they are used, not copied; a density in units of x is 1/scale of that in unit size
    obs, per_value = stored(obs).scaled(1 / scale), math.log(scale)

    def prior(mean: Tensor, cov: Covariance) -> GaussianPrior:
        return GaussianPrior(mean * scale, cov.scaled(scale), sigma_min=sigma_min, sigma_max=sigma_max)

    batches = Batches(obs, device=device)
    if rank is None and is_complete(batches):
        mean, cov, log_likelihood = fit_complete(batches)
        history.log_likelihood.append(log_likelihood - per_value)
        return prior(mean, cov)
    counts = counts_of(batches, len(obs))
    total, coordinates, factor = int(counts.sum()), diagonalised(obs), 0.0
    if coordinates is not None:
        total, factor = int(obs.counts().sum()), likelihood_factor(obs, device)
        obs = coordinates.obs
        batches = Batches(obs, device=device)
        counts = counts_of(batches, len(obs))
    first = batches.first()
    selected = rank is None and first.selection() is not None
    model: Model
    if rank is not None:
        model = LowRankModel(batches, rank, seed, amplified=coordinates is not None)
    else:
        full = (
            Selected(batches, int(counts.max()), amplified=coordinates is not None)
            if selected
            else Full(batches, len(obs))
        )
        model = Sampled(full, len(obs), seed) if moments == "sampled" else full
    if start is not None:
        if isinstance(model, LowRankModel) or start.event_shape != event_shape:
            raise InputError(
                f"start must be a Gaussian over {event_shape} for a fit with full covariance, got one over "
                f"{start.event_shape} for rank {rank}"
            )
        model.begin(*_into(coordinates, start.mean / scale, start.covariance().scaled(1 / scale)))
    batch_size = batch_size or max(1, working_bytes(batches.device) // model.bytes_each)
    # blocks of one batch are padded to the largest: batches of like size waste least
    order = counts.argsort(stable=True) if selected else None
    batches = Batches(obs, batch_size, device, order)
    unseen = None if held_out is None else _unseen(held_out.scaled(1 / scale), model, batch_size, device)
    history.held_out.clear()
    if unseen is not None:
        unseen.scores = history.held_out
    with Progress("Gaussian fit", rounds * len(obs), "observations", progress) as bar:

        def expect(model: Model) -> float:
            log_likelihood = factor
            for part in batches:
                log_likelihood += model.expect(part)
                bar.advance(len(part))
            return log_likelihood / total

        model = run_rounds(
            model,
            expect,
            rounds=rounds,
            tolerance=tolerance,
            extrapolates=rank is not None or size <= MAX_EXTRAPOLATED,
            history=history,
            keep=lambda value: history.log_likelihood.append(value - per_value),
            held_out=unseen,
            checkpoint=checkpoint,
            resume=resume,
        )
    fitted = _out_of(coordinates, model.result(), event_shape)
    return prior(fitted[0].to(dtype), fitted[1].to(dtype))


def _unseen(obs: Observations, model: Model, batch_size: int, device: torch.device | None) -> HeldOut | None:
    """What tells a fit when to stop; None where the likelihood of the model is not computed."""
    if model.scorer() is None or (some := stored(obs).informative()) is None:
        return None
    coordinates, total = diagonalised(some), int(some.counts().sum())
    batches = Batches(some if coordinates is None else coordinates.obs, batch_size, device)
    score = log_likelihood_of(batches, total)
    return HeldOut(score, [])


def _into(coordinates: Coordinates | None, mean: Tensor, cov: Covariance) -> tuple[Tensor, Covariance]:
    """Mean and covariance of Bx from those of x; mean: `(*event)`, and `(N,)` in coordinates."""
    if coordinates is None:
        return mean, cov
    mean, cov = mean.double(), cov.to(torch.float64)
    eye = torch.eye(mean.numel(), dtype=mean.dtype, device=mean.device).reshape(-1, *mean.shape)
    half = to_coordinates(coordinates.basis, cov.matvec(eye))  # rows of ΣBᵀ
    matrix = to_coordinates(coordinates.basis, half.T.reshape(-1, *mean.shape))
    return to_coordinates(coordinates.basis, mean.unsqueeze(0))[0], Dense((matrix + matrix.T) / 2)


def _out_of(
    coordinates: Coordinates | None, fitted: tuple[Tensor, Dense | LowRank], event_shape: tuple[int, ...]
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
    return mean, Dense.from_eigen(cov._tensors["values"], vectors)
