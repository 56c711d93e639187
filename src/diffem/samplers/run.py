"""The samplers by name, and `draw`, one batch of draws with any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.options import options_of
from ..core.progress import Progress
from ..core.randomness import Stream
from .base import Denoise, Sampler, Target
from .ddim import DDIM
from .heun import Heun
from .pc import PredictorCorrector
from .tds import TDS

SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "ddim": lambda eta=0.0: DDIM(eta),
    "ddpm": lambda: DDIM(1.0),
    "ddim2": lambda eta=0.0: DDIM(eta, order=2),
    "ddpm2": lambda: DDIM(1.0, order=2),
    "heun": Heun,
    "pc": PredictorCorrector,
    "tds": TDS,
}
DEFAULT_SAMPLER, DEFAULT_STEPS = "ddpm2", 128


def get_sampler(sampler: str | Sampler, **options: Any) -> Sampler:
    """Make a sampler, for example `get_sampler("tds", particles=16)`.

    Args:
        sampler: A name of `SAMPLERS`, or a sampler object, which is returned as it is.
        options: Options of the named sampler.

    Raises:
        InputError: If the name is unknown, or the sampler does not take these options.
    """
    if isinstance(sampler, Sampler):
        if options:
            raise InputError(
                f"the options {options} cannot be combined with a sampler object; pass the sampler by name, or create "
                "the object with these options"
            )
        return sampler
    if sampler not in SAMPLERS:
        raise InputError(f"unknown sampler {sampler!r}; known: {', '.join(SAMPLERS)}")
    try:
        return SAMPLERS[sampler](**options)
    except TypeError:
        known = options_of(SAMPLERS[sampler])
        raise InputError(f"sampler {sampler!r} does not take these options: {options}; {known}") from None


@torch.no_grad()
def draw(
    denoise: Denoise,
    mean: Tensor,
    index: Tensor,
    sigmas: Tensor,
    sampler: Sampler,
    stream: Stream,
    *,
    finish: Denoise | None = None,
    draws: Tensor | None = None,
    progress: Progress | None = None,
    captured: bool = False,
) -> Tensor:
    """Draw one batch from a denoiser, `(n, *event)`.

    Args:
        denoise: D(x_t `(n, *event)`, sigma `()`), of a prior or a posterior.
        finish: The last denoising. Default: `denoise`.

    The other arguments are those of `Sampler.draw`.
    """
    target = Target(denoise, finish or denoise)
    drawn = sampler.draw(target, mean, index, sigmas, stream, draws=draws, progress=progress, captured=captured)
    return drawn.x[:, 0]
