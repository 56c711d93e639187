"""Weights of LPIPS with random numbers, in the form of the published file."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from diffem.metrics.lpips import LAYERS


def random_weights(seed: int = 0) -> dict:
    rng, tree, channels = np.random.default_rng(seed), {"AlexNet_0": {}}, 3
    for k, (size, out, *_) in enumerate(LAYERS):
        kernel = rng.standard_normal((size, size, channels, out)).astype(np.float32) / np.sqrt(size * size * channels)
        tree["AlexNet_0"][f"Conv_{k}"] = {
            "kernel": kernel.astype(np.float32),
            "bias": 0.1 * rng.standard_normal(out).astype(np.float32),
        }
        tree[f"NetLinLayer_{k}"] = {"Conv_0": {"kernel": rng.random((1, 1, out, 1), dtype=np.float32)}}
        channels = out
    return tree


def write_lpips(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(random_weights(seed), protocol=3))
    return path
