r"""FID, KID and the Inception Score of generated images, from features; torchmetrics computes the last two.

- FID (Heusel et al. 2017): ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½) of the features' means and covariances. Biased upwards
  for few samples: compare only values from the same number of samples; with fewer samples than features it is
  meaningless.
- KID (Bińkowski et al. 2018): squared maximum mean discrepancy with the kernel (fᵀg/d + 1)³. Unbiased, so it is also
  suitable for small sets.
- Inception Score (Salimans et al. 2016): needs logits, which not every extractor provides.

Features are computed once for all metrics. Those of the reference are cached on disk.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.counting import count_of
from ..core.errors import InputError, RunWarning
from ..core.modes import in_default_modes
from ..core.randomness import Stream
from ..files.tensors import explain, read_tensors, require_finite
from ..files.writing import cache_folder, write_tensors
from .distances import gaussian_distance
from .inception import Extractor, as_images, outputs

FORMAT = "diffem-reference-1"
KEPT = 10_000  # features of a reference that are kept for KID
SUBSETS, SUBSET_SIZE = 100, 1000  # subset size of KID, as published
BLOCK = 8192  # features summed at a time in float64


@dataclass
class Reference:
    """Statistics of real images: Σ f and Σ f fᵀ over all features f for FID, and some features for KID.

    Attributes:
        key: A hash of the images and the extractor.
        count: The number of images.
        total: (d,). Σ f in float64.
        outer: (d, d). Σ f fᵀ in float64.
        kept: (k, d). Features in float32, evenly spread over the images.
    """

    key: str
    count: int
    total: Tensor
    outer: Tensor
    kept: Tensor

    @classmethod
    def of_features(cls, features: Tensor, key: str = "") -> Reference:
        """Compute the statistics.

        Args:
            features: (n, d). Features of all images.
        """
        if features.ndim != 2 or len(features) < 2:
            raise InputError(f"a reference needs features (n, d) of at least two images, got {tuple(features.shape)}")
        n = len(features)
        spread = torch.arange(min(n, KEPT), device=features.device) * n // min(n, KEPT)
        total, outer = _sums(features)
        return cls(key, n, total.cpu(), outer.cpu(), features[spread].float().cpu())

    def save(self, path: Path) -> None:
        tensors = {"total": self.total, "outer": self.outer, "kept": self.kept}
        write_tensors(path, tensors, {"format": FORMAT, "key": self.key, "count": self.count})

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Load a file of `save`. This executes no code."""
        tensors, description = read_tensors(path, "the statistics of a reference")
        require_finite(tensors, path)
        try:
            if description["format"] != FORMAT or int(description["count"]) < 2:
                raise ValueError(f"format {description['format']!r}, {count_of(description['count'], 'image')}")
            total, outer, kept = (tensors[name] for name in ("total", "outer", "kept"))
            if total.ndim != 1 or outer.shape != 2 * total.shape or kept.shape[1:] != total.shape:
                raise ValueError(f"shapes {tuple(total.shape)}, {tuple(outer.shape)}, {tuple(kept.shape)}")
            return cls(str(description["key"]), int(description["count"]), total, outer, kept)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} does not hold the statistics of a reference: {explain(error)}") from None


@in_default_modes
def make_reference(
    images: Tensor,
    extractor: Extractor,
    *,
    cache: Path | bool = True,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Reference:
    """Compute the reference of uint8 images `(n, c, h, w)`, or load it from the cache.

    Args:
        cache: A folder, True for `cache_folder()`, or False for no cache. The name of the file is a hash of the images
            and the extractor.
    """
    _require_torchmetrics()
    images = as_images(images)
    key = _key(images, extractor)
    folder = cache_folder() if cache is True else cache
    file = folder / f"reference-{key}.safetensors" if folder else None
    if file is not None and file.is_file():
        try:
            reference = Reference.load(file)
            if reference.key == key:
                return reference
        except InputError:
            pass  # damaged: compute it again
    values, _ = outputs(images, extractor, batch_size=batch_size, progress=progress)
    reference = Reference.of_features(values, key)
    if file is not None:
        reference.save(file)
    return reference


def _key(images: Tensor, extractor: Extractor) -> str:
    array = images.cpu().contiguous().numpy()
    parts = [FORMAT, extractor.key, str(array.shape), hashlib.sha256(array.data).hexdigest()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@in_default_modes
def image_quality(
    images: Tensor,
    reference: Reference | Tensor,
    extractor: Extractor,
    *,
    batch_size: int | None = None,
    progress: bool | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """FID and KID of uint8 images `(n, c, h, w)`, and the Inception Score if the extractor has logits.

    Args:
        reference: A `Reference`, or the real images themselves.
        seed: Seed of the random subsets of KID and of the splits of the Inception Score.
    """
    _require_torchmetrics()
    if isinstance(reference, Tensor):
        reference = make_reference(reference, extractor, batch_size=batch_size, progress=progress)
    values, logits = outputs(images, extractor, batch_size=batch_size, progress=progress)
    fewest, d = min(len(values), reference.count), values.shape[1]
    if fewest <= d:  # a covariance of d features needs d + 1 samples
        warnings.warn(
            f"FID from {count_of(fewest, 'image')} and {count_of(d, 'feature')} per image is far too large and cannot "
            f"be compared with other values; use more than {d} images (10,000 or 50,000 are usual), or KID, which has "
            "no bias",
            RunWarning,
            stacklevel=3,  # the caller of the function that `in_default_modes` wraps
        )
    mean, std = kernel_distance(values, reference, seed=seed)
    results = {"fid": frechet_distance(values, reference), "kid": mean, "kid_std": std}
    if logits is not None:
        results["inception_score"], results["inception_score_std"] = _score(logits, seed)
    return results


@in_default_modes
def frechet_distance(features: Tensor, reference: Reference) -> float:
    """FID of features `(n, d)`."""
    _check(features, reference)
    return distance_of_moments(Reference("", len(features), *_sums(features), features[:0]), reference)


def distance_of_moments(one: Reference, other: Reference) -> float:
    """FID from sums of features, on the device of `one`."""
    (mean, cov), (other_mean, other_cov) = (_moments(sums, one.total.device) for sums in (one, other))
    return gaussian_distance((mean - other_mean).square().sum(), cov, other_cov)


def _moments(sums: Reference, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and covariance of features."""
    total, outer = sums.total.to(device), sums.outer.to(device)
    mean = total / sums.count
    return mean, (outer - sums.count * mean.outer(mean)) / (sums.count - 1)


def _sums(features: Tensor) -> tuple[Tensor, Tensor]:
    """Σ f and Σ f fᵀ of features `(n, d)`, in float64."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    outer = total.outer(total)
    for block in features.split(BLOCK):
        f = block.double()
        total += f.sum(0)
        outer += f.T @ f
    return total, outer


@in_default_modes
def kernel_distance(
    features: Tensor, reference: Reference, *, subsets: int = SUBSETS, subset_size: int = SUBSET_SIZE, seed: int = 0
) -> tuple[float, float]:
    """KID of features `(n, d)`: mean and standard deviation over random subsets.

    The subsets are smaller if there are few features.
    """
    from torchmetrics.image.kid import KernelInceptionDistance

    _check(features, reference)
    size = min(subset_size, len(features), len(reference.kept))
    if size == len(features) == len(reference.kept):
        subsets = 1  # there is only one subset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torchmetrics warns that it keeps the features, which is intended
        metric = KernelInceptionDistance(_PassThrough(features.shape[1]), subsets=subsets, subset_size=size)
    metric = metric.to(features.device)
    metric.update(reference.kept.to(features.device).double(), real=True)
    metric.update(features.double(), real=False)
    with _seeded_torch(seed, "kid subsets"):
        mean, std = metric.compute()
    return float(mean), float(std)


@in_default_modes
def inception_score(
    images: Tensor,
    extractor: Extractor,
    *,
    batch_size: int | None = None,
    progress: bool | None = None,
    seed: int = 0,
) -> tuple[float, float]:
    """Inception Score of uint8 images: mean and standard deviation over ten splits."""
    _, logits = outputs(images, extractor, batch_size=batch_size, progress=progress)
    if logits is None:
        raise InputError(
            f"the Inception Score needs class logits, and the extractor {extractor.name} gives features only; "
            "use one that returns (features, logits), such as 'torch-fidelity'"
        )
    return _score(logits, seed)


def _score(logits: Tensor, seed: int) -> tuple[float, float]:
    from torchmetrics.image.inception import InceptionScore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # see above
        metric = InceptionScore(_PassThrough(logits.shape[1]), splits=min(10, len(logits)))
    metric = metric.to(logits.device)
    metric.update(logits.double())
    with _seeded_torch(seed, "inception score splits"):
        mean, std = metric.compute()
    return float(mean), float(std)


@contextmanager
def _seeded_torch(seed: int, purpose: str) -> Iterator[None]:
    """Seed torch's global generator, which torchmetrics uses for permutations, and restore its state afterwards."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(Stream(seed, purpose).integer())
        yield


def _require_torchmetrics() -> None:
    """Raise an `InputError` if torchmetrics is not installed, before the features are computed."""
    if find_spec("torchmetrics") is None:
        raise InputError("image metrics need the package torchmetrics: pip install 'diffem[metrics]'")


class _PassThrough(nn.Module):
    """The identity, which passes computed features to torchmetrics."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


def _check(features: Tensor, reference: Reference) -> None:
    if features.ndim != 2 or len(features) < 2 or features.shape[1] != len(reference.total):
        raise InputError(
            f"needed: features (n, {len(reference.total)}) of at least two images, as the reference has; "
            f"got {tuple(features.shape)}"
        )
