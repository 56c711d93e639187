r"""Features of images from a trained classifier, for FID, KID and the Inception Score.

An extractor is a TorchScript file that maps images (pixel − 128)/128, `(n, 3, 299, 299)`, to features `(n, d)`, or to
the pair (features, logits); or the network that comes with torchmetrics, by the name `torch-fidelity`, where that
package and its weights are installed. Published values use the upsampling of the original network to 299×299: bilinear,
with the source coordinate target × size/299 without a half-pixel offset, clamped at the edge, without rounding.

Loading a TorchScript file executes its code. An extractor is therefore loaded only from a path that the user gives as
an argument, as `--extractor` or in the environment variable DIFFEM_INCEPTION; never from a run folder or a recipe.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.progress import Progress

SIZE = 299
VARIABLE = "DIFFEM_INCEPTION"
OWN = "torch-fidelity"
OWN_WEIGHTS = "weights-inception-2015-12-05-6726825d.pth"
IMAGE_BYTES = 48 << 20  # generous estimate of the GPU memory per image of a batch

Outputs = tuple[Tensor, Tensor | None]  # features (n, d), logits (n, classes)


@dataclass(frozen=True)
class Extractor:
    """A network from uint8 images `(n, 3, h, w)` on `device` to features and, if it has them, logits."""

    name: str
    key: str  # hash of the network: statistics of different networks are not comparable
    device: torch.device
    function: Callable[[Tensor], Outputs]

    def __call__(self, images: Tensor) -> Outputs:
        return self.function(images)


def load_extractor(path: str | Path | None = None, device: torch.device | str = "cpu") -> Extractor:
    """Load the extractor at `path` (default: DIFFEM_INCEPTION), or `torch-fidelity`.

    A TorchScript file can contain any code, and loading executes it: use only files that you trust.
    """
    name = os.fspath(path) if path is not None else os.environ.get(VARIABLE, "")
    if not name:
        raise InputError(f"image metrics need a feature extractor: give a TorchScript file, or set {VARIABLE} to one")
    device = torch.device(device)
    return _torchmetrics_network(device) if name == OWN else _script(Path(name), device)


def _script(path: Path, device: torch.device) -> Extractor:
    if not path.is_file():
        raise InputError(f"there is no feature extractor at {str(path)!r}; needed: a TorchScript file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the published networks are TorchScript
            network = torch.jit.load(str(path), map_location=device).eval()
    except RuntimeError as error:
        raise InputError(
            f"{path} cannot be loaded as a TorchScript feature extractor: {str(error).splitlines()[0]}"
        ) from None
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)

    def function(images: Tensor) -> Outputs:
        x = (enlarge(images.float()) - 128) / 128
        if device.type == "cuda":
            x = x.contiguous(memory_format=torch.channels_last)
        # convolutions dominate, so specialising the rest to every batch size would not save time
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            result = network(x)
        return (result[0], result[1]) if isinstance(result, tuple) else (result, None)

    with path.open("rb") as file:
        key = hashlib.file_digest(file, "sha256").hexdigest()
    return Extractor(str(path), key, device, function)


def _torchmetrics_network(device: torch.device) -> Extractor:
    """The network of torchmetrics, with its logits. Nothing is downloaded."""
    weights = Path(torch.hub.get_dir()) / "checkpoints" / OWN_WEIGHTS
    try:
        from torchmetrics.image.fid import NoTrainInceptionV3

        if not weights.is_file():
            raise InputError(f"extractor {OWN!r}: its weights are not at {weights}")
        _require_tensors_only(weights)  # the package unpickles them
        # without antialiasing, as described above
        network: nn.Module = NoTrainInceptionV3(
            "inception-v3-compat", ["2048", "logits_unbiased"], str(weights), antialias=False
        ).to(device)
    except ModuleNotFoundError as error:
        raise InputError(f"extractor {OWN!r} needs the packages torchmetrics and torch-fidelity: {error}") from None

    def function(images: Tensor) -> Outputs:
        features, logits = network._torch_fidelity_forward(images)  # type: ignore[operator]
        return features, logits

    return Extractor(OWN, OWN_WEIGHTS, device, function)


def _require_tensors_only(weights: Path) -> None:
    try:
        torch.load(weights, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(f"{weights} holds more than tensors and is not loaded") from None


def enlarge(x: Tensor, size: int = SIZE) -> Tensor:
    """Resize images `(n, c, h, w)` to `(n, c, size, size)`: bilinear, source = target × h/size, clamped at the edge."""
    for axis in (-2, -1):
        old = x.shape[axis]
        source = torch.arange(size, device=x.device, dtype=torch.float64) * (old / size)
        low = source.long()
        weight = (source - low).to(x.dtype)
        if axis == -2:
            weight = weight[:, None]
        # gathered instead of a matrix product, which might round to TF32
        x = torch.lerp(x.index_select(axis, low), x.index_select(axis, (low + 1).clamp(max=old - 1)), weight)
    return x


def to_uint8(x: Tensor, range: tuple[float, float]) -> Tensor:
    """Convert samples to pixels 0 … 255, rounded and clamped; `range`: the values of x that are pixel 0 and pixel 255.

    `(n, h, w)` or `(n, c, h, w)`; the result has a channel axis.
    """
    low, high = range
    if not low < high:
        raise InputError(f"range must be the values of pixel 0 and of pixel 255, low then high; got {low}, {high}")
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
        raise InputError(
            f"samples must be finite to have pixels: {bad} of {count_of(len(x), 'sample')} contain NaN or infinite "
            "values"
        )
    pixels = ((x - low) * (255 / (high - low))).round().clamp(0, 255).to(torch.uint8)
    return pixels[:, None] if pixels.ndim == 3 else pixels


def features(
    images: Tensor,
    extractor: Extractor,
    *,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Tensor:
    """Features `(n, d)` of uint8 images `(n, h, w)`, `(n, 1, h, w)` or `(n, 3, h, w)`, in float32."""
    return outputs(images, extractor, batch_size=batch_size, progress=progress)[0]


@in_default_modes
@torch.no_grad()
def outputs(
    images: Tensor,
    extractor: Extractor,
    *,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Outputs:
    """Compute features, and logits if the extractor has them. Default batch size: as many as suit the device."""
    images = as_images(images)
    size = batch_size or _batch_size(extractor.device)
    parts: list[Outputs] = []
    with Progress("features", len(images), "images", progress) as bar:
        for part in images.split(size):
            colour = part.to(extractor.device, non_blocking=True).expand(-1, 3, -1, -1)
            parts.append(extractor(colour))
            bar.advance(len(part))
    values = torch.cat([f for f, _ in parts]).float()
    if values.ndim != 2 or len(values) != len(images):
        raise InputError(
            f"the extractor {extractor.name} gave features of shape {tuple(values.shape)} for "
            f"{count_of(len(images), 'image')}; needed: one vector per image"
        )
    if not torch.isfinite(values).all():
        raise InputError(f"the extractor {extractor.name} gave features that are not finite")
    logits = [part for _, part in parts if part is not None]
    return values, torch.cat(logits).float() if logits else None


def as_images(images: Tensor) -> Tensor:
    """Reshape images to `(n, c, h, w)` with one or three channels. Raises InputError for other shapes."""
    if not isinstance(images, Tensor) or images.dtype != torch.uint8:
        given = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a uint8 tensor of pixels 0 … 255, got {given}; see metrics.to_uint8")
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise InputError(f"images must have shape (n, h, w), (n, 1, h, w) or (n, 3, h, w), got {tuple(images.shape)}")
    return images


def _batch_size(device: torch.device) -> int:
    if device.type != "cuda":
        return 8
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(512, free // 2 // IMAGE_BYTES))
