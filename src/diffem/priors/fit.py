r"""The Gaussian prior of maximum likelihood given observations alone, by expectation–maximisation.

`fit_gaussian(obs)` keeps the full covariance and is exact; `fit_gaussian(obs, rank=r)` fits Σ = UUᵀ + dI (probabilistic PCA,
Tipping & Bishop 1999) without forming anything of size N². Both use the exact posterior moments of x given y: no sampler, no
Monte-Carlo error. The fit works on observations divided by their own scale, so that it is the same in any units. Every second round is extrapolated and kept only if that helped, so the observed-data log-likelihood
never decreases. Where everything is measured there is nothing to iterate (`fit_complete.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..data import Observations
from ..data.batches import Batches
from ..data.scale import signal_scale
from ..data.stored import counts_of, stored
from ..errors import InputError
from ..linalg import Covariance
from ..memory import working_bytes
from ..modes import in_own_modes
from ..progress import Progress
from .fit_complete import fit_complete, is_complete
from .fit_full import Full, Selected
from .fit_low_rank import LowRankModel
from .gaussian import GaussianPrior

MAX_DENSE = 4096
MAX_EXTRAPOLATED = 1024  # beyond, the eigenvectors an extrapolation needs cost more than the rounds it saves


@dataclass
class FitHistory:
    """Observed-data log-likelihood per measured value, one entry per round that was kept."""

    log_likelihood: list[float] = field(default_factory=list)


@dataclass
class FitState:
    """A fit between two rounds: the model's parameters, and the log-likelihoods so far."""

    tensors: dict[str, Tensor]
    log_likelihood: list[float]


@in_own_modes
@torch.no_grad()
def fit_gaussian(
    obs: Observations,
    rank: int | None = None,
    *,
    rounds: int = 512,
    tolerance: float = 1e-9,
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
    batch_size: observations handled at a time; chosen to need at most a quarter of a gigabyte when not given (8 GiB on a GPU).
    start: a Gaussian with full covariance to go on from, say of a fit to some of the observations.
    history: filled with the log-likelihood of every round.
    checkpoint: called before every extrapolated step (three rounds) with the state of the fit; resume: such a state, of a
        fit with the same arguments, which then continues to the same bits.
    device: where to compute; where the observations are when not given.
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
    informative = stored(obs).informative()  # the others add nothing to the likelihood, and only slow the rounds down
    if informative is None:
        raise InputError(
            f"none of the {len(obs)} observations measures anything: there is nothing to fit a Gaussian to"
        )
    obs = informative
    scale = signal_scale(obs)
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
    total, first = int(counts.sum()), batches.first()
    selected = rank is None and first.selection() is not None
    model: Full | LowRankModel
    if rank is not None:
        model = LowRankModel(batches, rank, seed)
    else:
        model = Selected(batches, int(counts.max())) if selected else Full(batches, len(obs))
    if start is not None:
        if not isinstance(model, Full) or start.event_shape != obs.x_shape:
            raise InputError(
                f"start must be a Gaussian over {obs.x_shape} for a fit with full covariance, got one over "
                f"{start.event_shape} for rank {rank}"
            )
        model.begin(start.mean / scale, start.covariance().scaled(1 / scale))
    batch_size = batch_size or max(1, working_bytes(batches.device) // model.bytes_each)
    # blocks of one batch are padded to the largest: batches of like size waste least
    order = counts.argsort(stable=True) if selected else None
    batches = Batches(obs, batch_size, device, order)
    with Progress("Gaussian fit", rounds * len(obs), "observations", progress) as bar:

        def expect() -> float:
            log_likelihood = 0.0
            for part in batches:
                log_likelihood += model.expect(part)
                bar.advance(len(part))
            return log_likelihood / total

        def keep(log_likelihood: float) -> None:
            history.log_likelihood.append(log_likelihood - per_value)

        if resume is not None:
            model.restore(resume.tensors)
            history.log_likelihood[:] = resume.log_likelihood
        current = expect()  # a resumed fit needs the sums of its last round again
        if resume is None:
            keep(current)
        while len(history.log_likelihood) < rounds:
            if checkpoint is not None:
                checkpoint(FitState(model.state(), list(history.log_likelihood)))
            before, path = current, [model.parameters()]
            for _ in range(2):
                model.maximise()
                current = expect()
                keep(current)
                path.append(model.parameters())
            gained, plain = current - before, current
            if rank is None and size > MAX_EXTRAPOLATED:
                if gained < tolerance:
                    break
                continue
            saved = copy.copy(model)
            model.set_parameters(_extrapolate(*path))
            try:
                current = expect()
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                # so far that AΣAᵀ + Σ_y has no Cholesky factor in float64
                current = -math.inf
            if current >= plain:
                gained = current - before
                keep(current)
            else:  # too far: back to where plain EM stood
                model, current = saved, plain
            if gained < tolerance:
                break
    return prior(*model.result())


def _extrapolate(start: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Where two EM rounds point to (SQUAREM, Varadhan & Roland 2008): plain EM can need thousands of rounds."""
    step, bend = first - start, second - 2 * first + start
    length = -(step.norm() / bend.norm().clamp(min=1e-300)).clamp(min=1.0, max=1e3)
    return start - 2 * length * step + length**2 * bend
