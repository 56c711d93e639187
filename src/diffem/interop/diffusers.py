r"""Adapter for diffusers: its models as priors, without clipping, with the scheduler they were trained with.

With u_t = u + σz, the input of a model and E[u | u_t] as a function of its output F are:

    VP     √ᾱ u_t at the step whose (1−ᾱ)/ᾱ = σ²      ε: u_t − σF    sample: F    v: √ᾱ(√ᾱ u_t) − √(1−ᾱ)F
    EDM    u_t/√(σ²+σ_d²) at ¼ log σ                      σ_d²/(σ²+σ_d²) u_t ± σσ_d/√(σ²+σ_d²) F
    VE     u_t at σ                                        u_t + σ²F, F being the score
    flow   (1−s)u_t at T·s, s = σ/(1+σ)                    (1−s)u_t − sF

VP schedulers have T discrete noise levels. Between two of them the step is interpolated linearly in log σ, so that it
is exact at the levels of training. The scale and the noise level in the formulas are always those of σ itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.shapes import per_sample
from ..files.reading import read_json
from ..files.tensors import read_header, require_finite
from .foreign import ForeignPrior, start
from .packages import missing
from .ranges import Range

try:
    import diffusers
except ModuleNotFoundError as error:
    raise missing("diffusers", error) from None

Model = Callable[[Tensor, Tensor], Tensor]  # (n, *event), (n,) -> (n, *event)


class Parametrisation(Protocol):
    """The relation between the output of a model and its denoised estimate.

    Attributes:
        levels: The smallest and largest noise level.
    """

    levels: tuple[float, float]

    def __call__(self, model: Model, u_t: Tensor, sigma: Tensor) -> Tensor:
        """E[u | u_t]; σ `()` or `(n,)` in float64."""
        ...


class VariancePreserving:
    """The row VP of the table above."""

    def __init__(self, scheduler: Any) -> None:
        alpha_bar = scheduler.alphas_cumprod.detach().cpu().double()
        # a schedule that ends in pure noise has ᾱ = 0 there, which is no finite noise level
        alpha_bar = alpha_bar[alpha_bar > 0]
        self.log_sigma = ((1 - alpha_bar) / alpha_bar).log() / 2
        if len(self.log_sigma) < 2 or not (self.log_sigma.diff() > 0).all():
            raise InputError(f"{type(scheduler).__name__}: the noise levels of the training steps must increase")
        self.levels = (float(self.log_sigma[0].exp()), float(self.log_sigma[-1].exp()))
        self.kind = _prediction(scheduler, ("epsilon", "sample", "v_prediction"))

    def step_of(self, sigma: Tensor) -> Tensor:
        """The training step with noise level σ, interpolated between two steps."""
        table = self.log_sigma.to(sigma)
        log_sigma = sigma.log()
        i = torch.searchsorted(table, log_sigma).clamp(1, len(table) - 1) - 1
        return i + (log_sigma - table[i]) / (table[i + 1] - table[i])

    def __call__(self, model: Model, u_t: Tensor, sigma: Tensor) -> Tensor:
        scale = per_sample(torch.rsqrt(1 + sigma**2), u_t)  # √ᾱ
        level = per_sample(sigma, u_t)
        out = model(scale * u_t, self.step_of(sigma))
        if self.kind == "sample":
            return out
        return u_t - level * out if self.kind == "epsilon" else scale**2 * u_t - scale * level * out


class KarrasEDM:
    """The row EDM of the table above."""

    def __init__(self, scheduler: Any) -> None:
        config = scheduler.config
        self.levels = (float(config.sigma_min), float(config.sigma_max))
        self.sigma_data = float(config.sigma_data)
        self.sign = 1 if _prediction(scheduler, ("epsilon", "v_prediction")) == "epsilon" else -1

    def __call__(self, model: Model, u_t: Tensor, sigma: Tensor) -> Tensor:
        level, scale = per_sample(sigma, u_t), per_sample(torch.rsqrt(sigma**2 + self.sigma_data**2), u_t)
        out = model(scale * u_t, sigma.log() / 4)
        return (self.sigma_data * scale) ** 2 * u_t + self.sign * level * self.sigma_data * scale * out


class Score:
    """The row VE of the table above."""

    def __init__(self, scheduler: Any) -> None:
        self.levels = (float(scheduler.config.sigma_min), float(scheduler.config.sigma_max))

    def __call__(self, model: Model, u_t: Tensor, sigma: Tensor) -> Tensor:
        return u_t + per_sample(sigma, u_t) ** 2 * model(u_t, sigma)


class Flow:
    """The row flow of the table above."""

    def __init__(self, scheduler: Any) -> None:
        self.steps = int(scheduler.config.num_train_timesteps)
        if getattr(scheduler.config, "invert_sigmas", False):
            raise InputError("FlowMatchEulerDiscreteScheduler with invert_sigmas=True is not supported")
        # s = 1 is pure noise, σ = ∞, so the levels end one training step before either end
        self.levels = (1 / (self.steps - 1), float(self.steps - 1))

    def __call__(self, model: Model, u_t: Tensor, sigma: Tensor) -> Tensor:
        s = per_sample(sigma / (1 + sigma), u_t)
        out = model((1 - s) * u_t, self.steps * sigma / (1 + sigma))
        return (1 - s) * u_t - s * out


def _prediction(scheduler: Any, known: tuple[str, ...]) -> str:
    kind = str(scheduler.config.prediction_type)
    if kind not in known:
        raise InputError(f"{type(scheduler).__name__}: prediction_type must be {' or '.join(known)}, got {kind!r}")
    return kind


def parametrisation(scheduler: Any) -> Parametrisation:
    """The parametrisation of models that were trained with a scheduler.

    Raises:
        InputError: If the scheduler is not supported.
    """
    name = type(scheduler).__name__
    if name.startswith("EDM"):
        return KarrasEDM(scheduler)
    if name.startswith("ScoreSdeVe"):
        return Score(scheduler)
    if name.startswith("FlowMatch"):
        return Flow(scheduler)
    if isinstance(getattr(scheduler, "alphas_cumprod", None), Tensor):
        return VariancePreserving(scheduler)
    raise InputError(
        f"scheduler {name} is not supported: it needs alphas_cumprod, or must be an EDM, ScoreSdeVe or FlowMatch one"
    )


class DiffusersPrior(ForeignPrior):
    """A model of diffusers as a prior; `prior` makes it."""

    def __init__(self, model: nn.Module, read: Parametrisation, mean: Tensor, range: Range) -> None:
        super().__init__(mean, read.levels, range)
        self.model, self.read = model, read

    def estimate(self, u_t: Tensor, sigma: Tensor) -> Tensor:
        return self.read(self._output, u_t, sigma)

    def _output(self, u: Tensor, time: Tensor) -> Tensor:
        out = self.model(u.to(self.mean.dtype), time.expand(len(u)).to(self.mean.dtype))
        out = out if isinstance(out, Tensor) else out[0]  # a model returns a tensor, a tuple, or an output object
        if out.ndim > 1 and out.shape[1] == 2 * self.event_shape[0]:
            out = out[:, : self.event_shape[0]]  # the second half is a learned variance
        if out.shape != u.shape:
            raise InputError(f"the model must return the shape of its input {tuple(u.shape)}, got {tuple(out.shape)}")
        return out


def prior(
    model: nn.Module,
    scheduler: Any,
    event_shape: tuple[int, ...] | None = None,
    *,
    mean: Tensor | None = None,
    range: Range | None = None,
) -> DiffusersPrior:
    """Use a model of diffusers and its scheduler as a prior.

    Args:
        model: Called as `model(u, time)` with u `(n, *event)` and time `(n,)`. A conditional model must be wrapped.
        scheduler: The scheduler the model was trained with.
        event_shape: The shape of a sample. Default: that in the model's configuration.
        mean: `(*event)`. The mean of the initial distribution of samplers. Default: 0.
        range: The relation between the scales of samples in diffem and in the model, usually
            `Range.between((-1, 1), ours)`. Default: the same scale.

    Raises:
        InputError: If the scheduler is not supported or the shape is not known.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    config: Any = getattr(model, "config", None)
    if mean is None and event_shape is None and getattr(config, "sample_size", None) is not None:
        size = config.sample_size
        event_shape = (int(config.in_channels), *((size, size) if isinstance(size, int) else size))
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return DiffusersPrior(
        model, parametrisation(scheduler), start(mean, event_shape, like, "diffusers.prior"), range or Range()
    )


def load(folder: str | os.PathLike[str], *, range: Range | None = None) -> DiffusersPrior:
    """Load the prior of a pipeline in a local folder, without downloading or executing anything.

    Args:
        folder: Contains `unet/` with safetensors weights, and `scheduler/`.
        range: See `prior`.

    Raises:
        InputError: If the folder is not an unconditional pipeline or cannot be read.
    """
    folder = Path(folder)
    try:
        config = read_json(folder / "scheduler" / "scheduler_config.json")
        name = read_json(folder / "unet" / "config.json")["_class_name"]
        scheduler_name = config["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} is not a diffusers pipeline with unet/ and scheduler/: {error!r}") from None
    if name != "UNet2DModel":
        raise InputError(f"{folder}: unet/ must contain a UNet2DModel, which is unconditional, got {name}")
    kind: Any = getattr(diffusers, str(scheduler_name), None)
    known = isinstance(kind, type) and issubclass(kind, diffusers.SchedulerMixin)
    if not known:
        raise InputError(f"{folder}: {scheduler_name!r} is not a scheduler of diffusers")
    for file in (folder / "unet").glob("*.safetensors"):
        # checks for a regular file with a valid header before diffusers opens it
        read_header(file, "the weights of a model")
    try:
        model = diffusers.UNet2DModel.from_pretrained(folder / "unet", local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{folder}: the model cannot be read: {error}") from None
    require_finite(model.state_dict(), folder / "unet")
    return prior(model.eval().requires_grad_(False), kind.from_config(config), range=range)
