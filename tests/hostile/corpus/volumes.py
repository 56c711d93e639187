"""Volumes of k-space and maps of coils."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ..sound import numbers
from .arrays import claim, npy, zeros_npz
from .registry import TIB, Bomb, hole, hostile


def h5(folder: Path) -> tuple[Path, Any]:
    folder.mkdir(exist_ok=True)
    file = h5py.File(folder / "0.h5", "w")
    file["reconstruction_esc"] = np.abs(numbers(2, 16, 16).numpy())
    file.attrs["max"] = 4.0
    return folder, file


@hostile("volume", "a dataset in another file", "is a link")
def _(folder):
    path, file = h5(folder / "volumes")
    with h5py.File(folder / "secret.h5", "w") as other:
        other["x"] = np.zeros((2, 16, 16), np.complex64)
    with file:
        file["kspace"] = h5py.ExternalLink(str(folder / "secret.h5"), "x")
    return path


@hostile("volume", "a dataset that is any file of the disk", "has its data in other files")
def _(folder):
    path, file = h5(folder / "volumes")
    (folder / "secret").write_bytes(bytes(2 * 16 * 16 * 4))
    with file:
        del file["reconstruction_esc"]
        file.create_dataset("reconstruction_esc", (2, 16, 16), "<f4", external=[(str(folder / "secret"), 0, 2048)])
    return path


@hostile("volume", "a dataset put together from other files", "has its data in other files")
def _(folder):
    path, file = h5(folder / "volumes")
    layout = h5py.VirtualLayout((2, 16, 16), "<f4")
    layout[:] = h5py.VirtualSource(str(folder / "secret.h5"), "x", shape=(2, 16, 16))
    with file:
        del file["reconstruction_esc"]
        file.create_virtual_dataset("reconstruction_esc", layout)
    return path


@hostile("volume", "a dataset of 10^13 numbers that were never written", "real data do not compress this well")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        del file["reconstruction_esc"]
        file.create_dataset("reconstruction_esc", (10, 10**6, 10**6), "<f4", chunks=(1, 64, 64))
    return path


@hostile("volume", "a link that leads to itself", "is a link")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        file["kspace"] = h5py.SoftLink("/kspace")
    return path


@hostile("volume", "a maximum that is a word", "max must be a number")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        file.attrs["max"] = "large"
    return path


@hostile("volume", "texts for numbers", "must be real of shape")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        del file["reconstruction_esc"]
        file.create_dataset("reconstruction_esc", (2, 16, 16), h5py.string_dtype())
    return path


@hostile("volume", "cut off", "it is truncated|cannot be read")
def _(folder):
    path, file = h5(folder / "volumes")
    file.close()
    data = (path / "0.h5").read_bytes()
    (path / "0.h5").write_bytes(data[: len(data) // 2])
    return path


@hostile("volume", "a pipe that nobody writes to", "is not a file but a pipe")
def _(folder):
    os.mkfifo(folder / "0.h5")
    return folder


@hostile("maps", "objects", "objects are never read")
def _(folder):
    np.save(folder / "maps.npy", np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return folder / "maps.npy"


@hostile("maps", "a shape of 10^15 numbers", "the file holds 16")
def _(folder):
    return npy(folder / "maps.npy", claim("(1000, 1000000, 1000000)", "'<c8'"), bytes(16))


@hostile("cifar10", "batches of 1 TiB of holes", "real data do not compress this well")
def _(folder):
    for k in range(1, 6):
        hole(folder / f"data_batch_{k}.bin", 3073 * (TIB // 3073))
    return folder


@hostile("cifar10", "an archive that unpacks to a thousand times its size", "real data do not compress this well")
def _(folder):
    zeros_npz(folder / "train.npz", 40_000)
    return folder
