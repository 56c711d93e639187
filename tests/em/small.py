"""A run small enough to be repeated many times in a test."""

from __future__ import annotations

import torch

from diffem import Observations, operators

RECIPE = {
    "name": "small",
    "data": {"source": "given"},
    "laps": 2,
    "sigma_min": 0.02,
    "sigma_max": 20.0,
    "gaussian": {"rounds": 8},
    "network": {"kind": "mlp", "hidden": [24, 24], "embedding": 16, "dropout": 0.1},
    "e_step": {"steps": 6, "iterations": 2, "shard": 40, "fresh": 0.7},
    "train": {
        "steps": 272,
        "batch": 16,
        "lr": 2.0e-3,
        "ema": 0.98,
        "checkpoint_seconds": 1e-9,
    },  # two blocks, a checkpoint after each
    "watch": {"held_out": 16, "draws": 4, "samples": 32},
}

# The same run with a conditional network, and a stage of its own for the last lap.
CONDITIONAL = {
    **RECIPE,
    "e_step": {**RECIPE["e_step"], "method": "conditional"},
    "train": {**RECIPE["train"], "restart": False, "measured": 0.5},
    "stages": [{"lap": 2, "e_step": {"fresh": 1.0}, "train": {"steps": 48, "conditioned": 0.2, "schedule": "cosine"}}],
}


def observations(n: int = 136, seed: int = 0) -> Observations:
    generator = torch.Generator().manual_seed(seed)
    angle = 6.3 * torch.rand(n, generator=generator)
    x = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos(), angle.sin() ** 2], 1)
    mask = torch.rand(n, 4, generator=generator) < 0.7
    mask[:, 0] = True
    return Observations(x + 0.1 * torch.randn(n, 4, generator=generator), operators.Mask(mask), sigma=0.1)
