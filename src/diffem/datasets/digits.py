"""1,797 handwritten digits of 8×8 pixels, observed with random masks and noise: an example that needs no download.

The data are part of the package; the file `digits.npz.txt` next to them names their origin.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..observations import Observations, Problem
from ..operators import Mask


def images() -> Tensor:
    """The clean digits, `(1797, 8, 8)` in [-2, 2]."""
    with (files("diffem.datasets") / "digits.npz").open("rb") as file:
        raw = np.load(file, allow_pickle=False)["images"]
    return torch.from_numpy(raw.astype(np.float32)) / 4 - 2


def digits(seed: int, missing: float = 0.5, sigma: float = 0.1) -> Problem:
    """Observe the digits with random missing pixels and noise.

    If `missing` and `sigma` are both 0, the observations are the clean digits.

    Args:
        seed: Seed of masks and noise.
        missing: Probability that a pixel is missing.
        sigma: Noise level of the measured pixels.
    """
    if not 0 <= missing < 1:
        raise InputError(f"data.missing must lie in [0, 1), got {missing}")
    x = images()
    if missing == sigma == 0:
        return Problem(Observations.clean(x), x, range=(-2.0, 2.0))
    index = torch.arange(len(x))
    mask = Stream(seed, "digits mask").uniform(index, tuple(x.shape[1:])) >= missing
    noise = Stream(seed, "digits noise").normal(index, tuple(x.shape[1:]))
    return Problem(Observations(x + sigma * noise, Mask(mask), sigma=sigma), x, range=(-2.0, 2.0))


def expected_size_of_digits(options: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape of a sample and number of observations, for estimates of memory and time."""
    return (8, 8), 1797
