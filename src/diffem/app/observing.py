"""Observations to condition on: one of the run, or an uploaded sample corrupted by an operator of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..observations import Observations
from ..operators import Blur, Downsample, Mask, Operator
from .limits import LIMITS, real, whole
from .upload import image_shape
from .viewer import Viewer

OPERATORS = ("mask", "blur", "downsample")
NAMES = {"mask": "missing pixels", "blur": "blur", "downsample": "lower resolution"}  # labels on the page


@dataclass
class ObservedSample:
    """One observation, and the true x `(*event)` if it is known."""

    obs: Observations
    truth: Tensor | None = None


def observation(viewer: Viewer, index: Any) -> ObservedSample:
    """Observation `index` of the run.

    Raises:
        InputError: If the observations are not available, or there is none of this index.
    """
    problem = viewer.problem
    if problem is None:
        raise InputError(
            "this run got its observations from Python and does not contain them; "
            "save them with obs.save('obs.safetensors') and start the app with --observations obs.safetensors"
        )
    k = whole(index, "observation", 0, len(problem.obs) - 1)
    return ObservedSample(problem.obs[k : k + 1], None if problem.reference is None else problem.reference[k])


def factors(event_shape: tuple[int, ...]) -> list[int]:
    """Factors by which images of this shape can be downsampled."""
    _, height, width = image_shape(event_shape)
    return [f for f in (2, 4, 8) if height % f == 0 and width % f == 0 and min(height, width) // f >= 2]


def make_operator(
    kind: str, event_shape: tuple[int, ...], *, missing: Any = 0.5, width: Any = 1.0, factor: Any = 2, seed: Any = 0
) -> Operator:
    """Make an operator from the values of the page's controls.

    Args:
        kind: `mask`, `blur` or `downsample`.
        event_shape: Shape of a sample.
        missing: Fraction of pixels that the mask removes.
        width: Standard deviation of the Gaussian blur, in pixels.
        factor: Downsampling factor.
        seed: Seed of the random mask.

    Raises:
        InputError: If a value is out of range.
    """
    _, height, columns = image_shape(event_shape)
    if kind == "mask":
        stream = Stream(whole(seed, "seed", 0, LIMITS["seed"]), "app mask")
        mask = stream.uniform(torch.zeros(1, dtype=torch.int64), (height, columns)) >= real(
            missing, "the fraction missing", 0, 1
        )
        if not mask.any():
            raise InputError("the mask removes every pixel: choose a smaller fraction")
        return Mask(mask.reshape(1, *(1,) * (len(event_shape) - 2), height, columns))
    if kind == "blur":
        std = real(width, "the width of the blur", 0.1, min(height, columns) / 4)
        reach = min(math.ceil(3 * std), (min(height, columns) - 1) // 2)
        profile = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / std) ** 2)
        kernel = torch.outer(profile, profile)
        return Blur(kernel / kernel.sum(), "reflect")
    if kind == "downsample":
        allowed = factors(event_shape)
        if factor not in allowed:
            raise InputError(f"the factor for images of {height}×{columns} must be one of {allowed}, got {factor!r}")
        return Downsample(int(factor), "mean")
    raise InputError(f"unknown operator {kind!r}; known: {', '.join(OPERATORS)}")


def corrupt(x: Tensor, A: Operator, sigma: Any = 0.1, seed: Any = 0, unit: float = 1.0) -> ObservedSample:
    """Observe one sample x `(*event)`: y = A x + σ_y z.

    Args:
        x: `(*event)`. The sample.
        sigma: Noise level σ_y, from 10⁻⁴ to 10 times `unit`.
        unit: Typical size of samples.
    """
    sigma = real(sigma, "the noise level", 1e-4 * unit, 10 * unit)
    y = A(x[None])
    z = Stream(whole(seed, "seed", 0, LIMITS["seed"]), "app noise").normal(
        torch.zeros(1, dtype=torch.int64), tuple(y.shape[1:])
    )
    return ObservedSample(Observations(y + sigma * z, A, sigma=sigma), x)
