"""Samples guided by a weaker prior: `python -m benchmarks.guidance --prior EXPORT --weaker EXPORT [--weights 1 1.5]`.

Draws samples with every weight of `priors.GuidedPrior` from the same random numbers, and measures FID and KID against
CIFAR-10. On a CPU, a thousand samples take a quarter of an hour and suffice for KID.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffem
from diffem.core.randomness import Stream
from diffem.datasets import cifar10
from diffem.metrics import image_quality, load_extractor, make_reference
from diffem.priors import DiffusionPrior, GuidedPrior

from .record import RESULTS, record


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prior", type=Path, required=True, help="an export, such as weights/cifar10-rho75-final")
    parser.add_argument("--weaker", type=Path, required=True, help="a weaker one, such as weights/cifar10-rho75")
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 1.5, 2.25])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--real", type=int, help="number of real images, taken at random; default: all")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--assets", type=Path, default=Path(os.environ.get("DIFFEM_ASSETS", "assets")))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prior, weaker = (_load(folder, arguments.batch, device) for folder in (arguments.prior, arguments.weaker))
    real = cifar10.images(arguments.assets / "cifar10")
    real = real[Stream(0, "real images").permutation(len(real))[: arguments.real]]
    extractor = load_extractor(arguments.assets / "fid" / "inception-2015-12-05.pt", device)
    reference = make_reference(real, extractor)
    rows: list[dict[str, Any]] = []
    for weight in arguments.weights:
        pixels = _samples(GuidedPrior(prior, weaker, weight), arguments)
        rows.append({"weight": weight} | {k: float(v) for k, v in image_quality(pixels, reference, extractor).items()})
        print(rows[-1], flush=True)
    figures = {f"kid_{row['weight']:g}": row["kid"] for row in rows}
    if arguments.samples >= 10_000:  # FID of fewer samples cannot be compared
        figures |= {f"fid_{row['weight']:g}": row["fid"] for row in rows}
    else:
        rows = [{key: value for key, value in row.items() if key != "fid"} for row in rows]
    print(record("guidance", {**figures, "samples": arguments.samples, "real": len(real)}, rows, arguments.results))


def _load(folder: Path, batch: int, device: torch.device) -> DiffusionPrior:
    """A prior without the inputs for operators, in bf16."""
    prior = diffem.load(folder, device=device)
    assert isinstance(prior, DiffusionPrior)
    prior = prior.ordinary().compute_in("bf16")
    prior.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return prior.accelerate(batch, sampling=True) if prior.mean.is_cuda else prior


def _samples(prior: GuidedPrior, arguments: argparse.Namespace) -> Tensor:
    """Samples as pixels, `(n, 3, 32, 32)`."""
    x = prior.sample(arguments.samples, arguments.steps, "ddpm2", seed=1, batch_size=arguments.batch)
    return cifar10.to_uint8(x.cpu())


if __name__ == "__main__":
    main()
