"""Simulated volumes in the fastMRI layout: ellipses with a smooth phase, smooth coils, and known noise."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np


def fft2c(image: np.ndarray) -> np.ndarray:
    axes = (-2, -1)
    return np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image, axes), norm="ortho"), axes)


def phantom(slices: int, height: int, width: int, seed: int) -> np.ndarray:
    """Complex images `(slices, H, W)`, zero towards the border, |u| up to about 1."""
    rng = np.random.default_rng(seed)
    v, h = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    images = np.zeros((slices, height, width))
    for s in range(slices):
        for _ in range(4):
            (cv, ch), (rv, rh) = rng.uniform(-0.15, 0.15, 2), rng.uniform(0.1, 0.3, 2)
            radius = ((v - cv) / rv) ** 2 + ((h - ch) / rh) ** 2
            images[s] += rng.uniform(0.2, 0.5) * np.exp(-(radius**2))
    phase = np.exp(1j * (rng.uniform(-1, 1) + 0.8 * v + 0.5 * h * v))
    return images / images.max() * phase


def coil_maps(coils: int, height: int, width: int) -> np.ndarray:
    """Complex `(c, H, W)` with Σ|C|² = 1."""
    v, h = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    angles = 2 * np.pi * np.arange(coils) / coils
    maps = [np.exp(-((v - np.cos(a)) ** 2 + (h - np.sin(a)) ** 2) / 4 + 1j * (a + 0.3 * h)) for a in angles]
    return np.stack(maps) / np.sqrt(np.sum(np.abs(maps) ** 2, 0))


def write_volume(
    path: Path, *, coils: int | None = None, slices: int = 6,
    kspace: tuple[int, int] = (32, 16), size: tuple[int, int] = (16, 16),
    sigma: float = 0.0, level: float = 3e-4, seed: int = 0, mask: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Write a volume with maximum `level` and relative noise `sigma`; returns its images, maps and maximum."""
    u = level * phantom(slices, *kspace, seed)
    maps = None if coils is None else coil_maps(coils, *kspace)
    seen = u if maps is None else maps * u[:, None]
    rng = np.random.default_rng(seed + 1000)
    noise = rng.normal(size=(2, *seen.shape))
    y = fft2c(seen) + sigma * level * (noise[0] + 1j * noise[1])
    if mask is not None:
        y = y * mask
    top, left = (kspace[0] - size[0]) // 2, (kspace[1] - size[1]) // 2
    window = np.abs(u[:, top : top + size[0], left : left + size[1]])
    with h5py.File(path, "w") as file:
        file["kspace"] = y.astype(np.complex64)
        file["reconstruction_esc" if coils is None else "reconstruction_rss"] = window.astype(np.float32)
        file.attrs["max"] = float(window.max())
        if mask is not None:
            file["mask"] = mask.astype(np.float32)
    return {"u": u[:, top : top + size[0], left : left + size[1]], "maps": maps, "max": window.max()}
