"""The time of a fit of 20,000 × 16 values (letter, 30 % missing completely at random) on two cores.

OMP_NUM_THREADS=2 python -m benchmarks.tables.timing --data FOLDER --out build/timing.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from .data import load
from .job import SHARE
from .masks import missing

CORES = 2


def main() -> None:
    from diffem.tables import DiffusionImputer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/timing.json"))
    parser.add_argument("--rows", type=int, help="use only the first N rows, for a short trial")
    options = parser.parse_args()
    torch.set_num_threads(CORES)
    values = load("letter", options.data).values[: options.rows]
    visible = np.where(missing(values, "mcar", SHARE, 0), np.nan, values)
    began, used = time.monotonic(), time.process_time()
    imputer = DiffusionImputer(random_state=0, device="cpu", verbose=True).fit(visible)
    figures = {"fit_seconds_20000x16": time.monotonic() - began, "fit_cpu_seconds_20000x16": time.process_time() - used}
    began = time.monotonic()
    imputer.transform(visible)
    figures["transform_seconds_20000x16"] = time.monotonic() - began
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({name: round(value, 1) for name, value in figures.items()}) + "\n")
    print(values.shape, figures, flush=True)


if __name__ == "__main__":
    main()
