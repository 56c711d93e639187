"""Files of observations."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch

from diffem.files.writing import write_tensors

from ..sound import EVENT, numbers, observations
from .registry import hostile


def rewritten(
    folder: Path, A: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None, **parts: Any
) -> Path:
    """An observations file in which some entries are replaced and the checksum is updated."""
    from diffem.files.tensors import read_tensors

    path = folder / "obs.safetensors"
    observations().save(path)
    own, structure = read_tensors(path)
    structure["A"] = A or structure["A"]
    write_tensors(path, own | (tensors or {}), structure | parts)
    return path


def node(kind: str, *children: dict[str, Any], tensors: tuple[str, ...] = (), **config: Any) -> dict[str, Any]:
    """An operator in the format of observations files."""
    return {"kind": kind, "config": config, "tensors": list(tensors), "complex": [], "children": list(children)}


IMAGES = {"y": numbers(3, 8, 8)}


@hostile("observations", "cut off", "cannot be read as an observations file")
def _(folder):
    path = rewritten(folder)
    path.write_bytes(path.read_bytes()[:-1])
    return path


@hostile("observations", "a flipped bit in y", "do not match its checksum")
def _(folder):
    path = rewritten(folder)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))
    return path


@hostile("observations", "measured values that are NaN", "non-finite measured values")
def _(folder):
    return rewritten(folder, tensors={"y": torch.full((3, *EVENT), torch.nan)})


@hostile("observations", "whole numbers for y", "y must be floating point")
def _(folder):
    return rewritten(folder, tensors={"y": torch.ones(3, *EVENT, dtype=torch.int32)})


@hostile("observations", "none at all", "at least one sample")
def _(folder):
    return rewritten(folder, tensors={"y": torch.zeros(0, *EVENT)})


@hostile("observations", "a noise of NaN", "cov.variance holds values that are not finite")
def _(folder):
    return rewritten(folder, tensors={"cov.variance": torch.tensor(torch.nan)})


@hostile("observations", "a negative noise", "cov.variance must be positive")
def _(folder):
    return rewritten(folder, tensors={"cov.variance": torch.tensor(-1.0)})


def dense_noise(values: torch.Tensor, vectors: torch.Tensor) -> dict[str, Any]:
    """A full noise covariance with given eigenvalues and eigenvectors."""
    cov = {"kind": "dense", "axes": {"vectors": 2, "values": 1}}
    return {"cov": cov, "tensors": {"cov.values": values, "cov.vectors": vectors}}


@hostile("observations", "a noise covariance that is singular", "must be positive definite")
def _(folder):
    size = math.prod(EVENT)
    return rewritten(folder, **dense_noise(torch.arange(size).float(), torch.eye(size)))


@hostile("observations", "eigenvectors that are not orthonormal", "cov.vectors must be orthonormal")
def _(folder):
    size = math.prod(EVENT)
    return rewritten(folder, **dense_noise(torch.ones(size), torch.ones(size, size)))


@hostile("observations", "a word for whether operators were adaptive", "adaptive must be True or False")
def _(folder):
    return rewritten(folder, adaptive="yes")


@hostile("observations", "masks for other observations", "does not fit|hold parameters|operator parameters for 7")
def _(folder):
    return rewritten(folder, tensors={"A.mask": torch.ones(7, *EVENT, dtype=torch.bool)})


@hostile("observations", "a window in an image of 10^12 pixels", "an operator over")
def _(folder):
    crop = node("Crop", size=[8, 8], image=[10**6, 10**6], tensors=("top", "left"))
    return rewritten(folder, crop, {**IMAGES, "A.top": torch.tensor(0), "A.left": torch.tensor(0)})


@hostile("observations", "a resolution 100,000 times as high", "an operator over")
def _(folder):
    return rewritten(folder, node("Downsample", factor=100_000, mode="bicubic"), IMAGES)


@hostile("observations", "many resolutions, one after another", "an operator over")
def _(folder):
    parts = [node("Downsample", factor=2, mode="mean") for _ in range(200)]
    return rewritten(folder, node("Compose", *parts), IMAGES)


@hostile("observations", "stacked measurements of a huge sample", "an operator over")
def _(folder):
    stack = node("Stack", node("Identity"), node("Identity"), x_shape=[10**6, 10**6])
    return rewritten(folder, stack)


@hostile("observations", "a sample of negative size", "must be positive integers")
def _(folder):
    stack = node("Stack", node("Identity"), node("Identity"), x_shape=[-4, -4])
    return rewritten(folder, stack)


@hostile("observations", "operators in operators in operators", "nested at most 16 deep")
def _(folder):
    inner = node("Identity")
    for _ in range(25):
        inner = node("Compose", inner, node("Identity"))
    return rewritten(folder, inner)


@hostile("observations", "an operator that contains code", "unknown operator 'Function'")
def _(folder):
    return rewritten(folder, node("Function", forward="__import__('os').system('true')"))


@hostile("observations", "settings an operator does not have", "unexpected keyword argument")
def _(folder):
    return rewritten(folder, node("Identity", __class__="x"))


@hostile("observations", "a pipe that nobody writes to", "is not a file but a pipe")
def _(folder):
    os.mkfifo(folder / "obs.safetensors")
    return folder / "obs.safetensors"
