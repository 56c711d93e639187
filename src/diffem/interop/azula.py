r"""Adapters for azula: its denoisers as priors, and diffem's priors and posteriors as azula denoisers.

azula writes x_t = α_t x + σ_t z with t in [0, 1], for any schedule in which σ_t/α_t increases with t. The time t at
which σ_t/α_t has a given value has a closed form for azula's own schedules. For other schedules it is computed by
bisection in float64, to machine precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.shapes import per_sample
from ..posterior import Posterior
from ..priors.base import Prior
from .foreign import ForeignPrior, start
from .packages import missing
from .ranges import Range

try:
    from azula import noise
    from azula.denoise import Denoiser, DiracPosterior, GaussianDenoiser
except ModuleNotFoundError as error:
    raise missing("azula", error) from None

BISECTIONS = 64


def _ve(schedule: Any, sigma: Tensor) -> Tensor:
    low, high = math.log(schedule.sigma_min), math.log(schedule.sigma_max)
    return (sigma.log() - low) / (high - low)


def _log_alpha(schedule: Any, sigma: Tensor) -> Tensor:
    """log α_t at the noise level σ, for schedules with σ_t² = 1 − α_t² + σ_min²."""
    return (math.log1p(schedule.sigma_min**2) - torch.log1p(sigma**2)) / 2


def _vp(schedule: Any, sigma: Tensor) -> Tensor:
    return (_log_alpha(schedule, sigma) / math.log(schedule.alpha_min)).clamp(min=0).sqrt()


def _cosine(schedule: Any, sigma: Tensor) -> Tensor:
    # near t = 0 the cosine is flat and loses the angle, so use the sine: 1 − α² = −expm1(2 log α)
    log_alpha = _log_alpha(schedule, sigma).clamp(max=0)
    return torch.atan2((-torch.expm1(2 * log_alpha)).sqrt(), log_alpha.exp()) / math.acos(schedule.alpha_min)


def _rectified(schedule: Any, sigma: Tensor) -> Tensor:
    return (sigma - schedule.sigma_min) / (1 - schedule.sigma_min + sigma * (1 - schedule.alpha_min))


def _decay(schedule: Any, sigma: Tensor) -> Tensor:
    return torch.log1p(-(1 - schedule.gamma) * _rectified(schedule, sigma)) / math.log(schedule.gamma)


INVERSES: dict[type, Callable[[Any, Tensor], Tensor]] = {
    noise.VESchedule: _ve,
    noise.VPSchedule: _vp,
    noise.CosineSchedule: _cosine,
    noise.RectifiedSchedule: _rectified,
    noise.DecaySchedule: _decay,
}


def time_of(schedule: Any, sigma: Tensor) -> Tensor:
    """The time t in [0, 1] at which σ_t/α_t = sigma, of the shape of sigma."""
    if type(schedule) in INVERSES:
        return INVERSES[type(schedule)](schedule, sigma).clamp(0, 1)
    low, high = torch.zeros_like(sigma), torch.ones_like(sigma)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = level_of(schedule, middle) > sigma
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


def level_of(schedule: Any, t: Tensor) -> Tensor:
    """σ_t/α_t."""
    alpha_t, sigma_t = schedule(t)
    return sigma_t / alpha_t


class AzulaPrior(ForeignPrior):
    """A denoiser of azula as a prior; `prior` makes it."""

    def __init__(self, denoiser: Any, mean: Tensor, range: Range) -> None:
        ends = level_of(denoiser.schedule, torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        super().__init__(mean, (ends[0], ends[1]), range)
        self.denoiser = denoiser

    def estimate(self, u_t: Tensor, sigma: Tensor) -> Tensor:
        if sigma.ndim and isinstance(self.denoiser, GaussianDenoiser):  # it accepts only one time for the whole batch
            return torch.cat([self.estimate(u_t[i : i + 1], sigma[i]) for i in range(len(u_t))])
        t = time_of(self.denoiser.schedule, sigma)
        alpha_t, _ = self.denoiser.schedule(t)
        return self.denoiser((per_sample(alpha_t, u_t) * u_t).to(u_t.dtype), t).mean


def prior(
    denoiser: Any, event_shape: tuple[int, ...] | None = None, *, mean: Tensor | None = None, range: Range | None = None
) -> AzulaPrior:
    """Use an azula denoiser as a prior, over the noise levels of its schedule.

    Args:
        denoiser: An azula denoiser that does not clip its output.
        event_shape: The shape of a sample, if `mean` is not given.
        mean: `(*event)`. The mean of the initial distribution of samplers. Default: 0.
        range: The relation between the scales of samples in diffem and in azula. Default: the same scale.

    Raises:
        InputError: If it is not an azula denoiser, or it clips.
    """
    if not isinstance(denoiser, Denoiser):
        raise InputError(f"denoiser must be an azula denoiser, got {type(denoiser).__name__}")
    for part in denoiser.modules():
        if getattr(part, "clip_mean", False):
            raise InputError(
                f"{type(part).__name__} clips its output, and the Jacobian of a clipped denoiser is not a covariance; "
                "create it with clip_mean=False"
            )
    tensors = (*denoiser.parameters(), *denoiser.buffers(), getattr(denoiser, "mean", None), torch.zeros(()))
    like = next(t for t in tensors if isinstance(t, Tensor) and t.is_floating_point())
    return AzulaPrior(denoiser, start(mean, event_shape, like, "azula.prior"), range or Range())


class AzulaDenoiser(Denoiser):
    """A prior or posterior as a denoiser of azula; `denoiser` makes it."""

    def __init__(self, denoise: Prior | Posterior, schedule: Any, range: Range) -> None:
        super().__init__()
        self.denoise = denoise  # a module is registered, and moves with this one
        self.schedule = schedule
        self.range = range

    def forward(self, x_t: Tensor, t: Tensor, **kwargs: Any) -> Any:
        if kwargs:
            raise InputError(f"a diffem prior has no conditional inputs, got {', '.join(kwargs)}")
        alpha_t, sigma_t = self.schedule(torch.as_tensor(t).to(device=x_t.device, dtype=torch.float64))
        u_t = self.range.ours((x_t / per_sample(alpha_t, x_t)).to(x_t.dtype))
        x_hat = self.denoise(u_t, (self.range.scale * sigma_t / alpha_t).to(x_t.dtype))
        return DiracPosterior(mean=self.range.theirs(x_hat))


def denoiser(denoise: Prior | Posterior, schedule: Any = None, *, range: Range | None = None) -> AzulaDenoiser:
    """Use a prior, or a posterior with one sample per observation, as an azula denoiser.

    Args:
        denoise: The prior or posterior.
        schedule: An azula schedule. Default: VE over the noise levels of the prior. The prior is also evaluated at
            noise levels of the schedule on which it was not trained.
        range: The relation between the scales of samples in diffem and in azula. Default: the same scale.
    """
    if not isinstance(denoise, Prior | Posterior):
        raise InputError(f"denoise must be a diffem prior or posterior, got {type(denoise).__name__}")
    owner = denoise if isinstance(denoise, Prior) else denoise.prior
    change = range or Range()
    if schedule is None:
        schedule = noise.VESchedule(owner.sigma_min / change.scale, owner.sigma_max / change.scale)
    return AzulaDenoiser(denoise, schedule, change)


class Backbone(nn.Module):
    """A network h(x, log σ) as the backbone of azula's `KarrasDenoiser`, which has diffem's preconditioning.

    azula may pass one time for a whole batch; it is expanded to one per sample.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, log_sigma: Tensor) -> Tensor:
        return self.network(x, log_sigma.expand(len(x)))
