"""Check the FID against the literature, with real images: `python -m benchmarks.fid_sanity`.

Compares the first 10,000 training images of CIFAR-10 with all 50,000, one half with the other, and the training set
with the test set, and measures the time of features and distances. `--assets` is a folder with `cifar10/` and
`fid/inception-2015-12-05.pt`; default: the environment variable DIFFEM_ASSETS. The recorded command contains its
arguments, so prefer the variable for results that are committed. `--images N` uses only N training and N/5 test images
and prints the result without recording it, for a quick check on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffem.datasets import cifar10
from diffem.metrics import Reference, features, frechet_distance, kernel_distance, load_extractor

from .record import record


def measure(folder: Path, extractor_path: Path, device: torch.device, images: int | None, batch: int | None) -> tuple:
    extractor = load_extractor(extractor_path, device)
    train = cifar10.images(folder)[:images]
    test = cifar10.images(folder, "test")[: images and images // 5]

    def timed(x: Tensor) -> tuple[Tensor, float]:
        began = time.monotonic()
        # the function reads its result before it returns, so no GPU work is pending
        values = features(x, extractor, batch_size=batch)
        return values, time.monotonic() - began

    timed(train[: batch or 512])  # warm-up: algorithms are selected at the first batch
    f_test, _ = timed(test)
    f_train, seconds = timed(train)
    n = len(f_train)
    rows: list[dict[str, Any]] = []

    def compare(name: str, one: Tensor, other: Tensor) -> None:
        began = time.monotonic()
        reference = Reference.of_features(other)
        fid = frechet_distance(one, reference)
        middle = time.monotonic()
        kid, kid_std = kernel_distance(one, reference)
        rows.append(
            {
                "name": name,
                "images": len(one),
                "reference": len(other),
                "fid": fid,
                "kid": kid,
                "kid_std": kid_std,
                "fid_seconds": middle - began,
                "kid_seconds": time.monotonic() - middle,
            }
        )
        print(rows[-1], flush=True)

    compare("first fifth, all", f_train[: n // 5], f_train)
    compare("first half, second half", f_train[: n // 2], f_train[n // 2 :])
    compare("test, train", f_test, f_train)
    figures = {
        "fid_first_fifth": rows[0]["fid"],
        "fid_halves": rows[1]["fid"],
        "fid_test_train": rows[2]["fid"],
        "kid_test_train": rows[2]["kid"],
        "images": n,
        "features_per_s": n / seconds,
        "features_seconds": seconds,
        "distances_seconds": rows[0]["fid_seconds"] + rows[0]["kid_seconds"],
    }
    return figures, rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--assets", type=Path, default=os.environ.get("DIFFEM_ASSETS"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int)
    parser.add_argument("--batch", type=int)
    arguments = parser.parse_args()
    if arguments.assets is None:
        parser.error("give --assets, or set DIFFEM_ASSETS")
    assets = Path(arguments.assets)
    extractor = assets / "fid" / "inception-2015-12-05.pt"
    figures, rows = measure(
        assets / "cifar10", extractor, torch.device(arguments.device), arguments.images, arguments.batch
    )
    print(json.dumps(figures, indent=1))
    if arguments.images is None:
        print(record("fid-sanity", figures, rows))


if __name__ == "__main__":
    main()
