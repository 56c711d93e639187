"""The operator configurations of the battery: name → (make, shape of a sample).

`make(n)` returns the operator for n observations in float64. Configurations named "… each" have separate parameters for
every observation.
"""

from __future__ import annotations

import torch

from diffem import operators as ops


def _random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _bits(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def _coils(*shape: int) -> torch.Tensor:
    return torch.view_as_complex(_random(*shape, 2, seed=3)) / 2


def _kernel(*shape: int) -> torch.Tensor:
    kernel = _random(*shape, seed=4).abs()
    return kernel / kernel.sum((-2, -1), keepdim=True)


def _shift(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return gain[:, None, None] * (x - x.roll(1, -1))


REGISTRY = {
    "identity": (lambda n: ops.Identity(), (3, 4)),
    "mask": (lambda n: ops.Mask(_bits(6, 8)), (6, 8)),
    "mask each": (lambda n: ops.Mask(_bits(n, 6, 8)), (6, 8)),
    "mask each, channels together": (lambda n: ops.Mask(_bits(n, 1, 4, 4)), (3, 4, 4)),
    "dense": (lambda n: ops.Dense(_random(5, 12)), (12,)),
    "dense each": (lambda n: ops.Dense(_random(n, 5, 12), event_shape=(3, 4)), (3, 4)),
    "dense complex each": (lambda n: ops.Dense(torch.view_as_complex(_random(n, 5, 6, 2))), (6, 2)),
    "fourier, real image": (lambda n: ops.Fourier(_bits(6, 8)), (6, 8)),
    "fourier, columns": (lambda n: ops.Fourier(_bits(8)), (6, 8)),
    "fourier, everything": (lambda n: ops.Fourier(), (5, 8)),
    "fourier each, complex image": (lambda n: ops.Fourier(_bits(n, 1, 8), complex=True), (6, 8, 2)),
    "fourier, odd sizes, channel": (lambda n: ops.Fourier(_bits(n, 5, 7)), (1, 5, 7)),
    "fourier, coils, real image": (lambda n: ops.Fourier(_bits(n, 1, 8), coils=_coils(3, 6, 8)), (6, 8)),
    "fourier, coils each, complex image": (
        lambda n: ops.Fourier(_bits(n, 6, 8), coils=_coils(n, 3, 6, 8), complex=True),
        (6, 8, 2),
    ),
    "fourier each, two channels": (
        lambda n: ops.Fourier(_bits(n, 1, 8), complex=True, channels=True),
        (2, 6, 8),
    ),
    "fourier, coils each, two channels": (
        lambda n: ops.Fourier(_bits(n, 1, 8), coils=_coils(n, 3, 6, 8), complex=True, channels=True),
        (2, 6, 8),
    ),
    "fourier, coils each, one channel": (
        lambda n: ops.Fourier(_bits(n, 1, 8), coils=_coils(n, 3, 6, 8)),
        (1, 6, 8),
    ),
    "crop of two channels": (lambda n: ops.Crop((4, 4), (6, 8)), (2, 6, 8)),
    "blur circular": (lambda n: ops.Blur(_kernel(3, 5)), (6, 8)),
    "blur reflect each": (lambda n: ops.Blur(_kernel(n, 4, 5), "reflect"), (2, 7, 8)),
    "blur zero": (lambda n: ops.Blur(_kernel(5, 4), "zero"), (6, 9)),
    "downsample bicubic": (lambda n: ops.Downsample(2), (6, 8)),
    "downsample mean": (lambda n: ops.Downsample(2, "mean"), (3, 6, 8)),
    "crop": (lambda n: ops.Crop((3, 4), (6, 8)), (6, 8)),
    "crop each": (
        lambda n: ops.Crop((3, 4), (6, 8), top=torch.arange(n) % 4, left=torch.arange(n) % 5),
        (2, 6, 8),
    ),
    "compose": (lambda n: ops.Compose(ops.Mask(_bits(n, 3, 4)), ops.Downsample(2), ops.Blur(_kernel(n, 3, 3))), (6, 8)),
    "stack": (lambda n: ops.Stack(ops.Mask(_bits(n, 6, 8)), ops.Blur(_kernel(3, 3))), (6, 8)),
    "stack of different shapes": (
        lambda n: ops.Stack(ops.Mask(_bits(n, 6, 8)), ops.Downsample(2), x_shape=(6, 8)),
        (6, 8),
    ),
    "function each": (lambda n: ops.Function(_shift, (6, 8), gain=_random(n)), (6, 8)),
}
