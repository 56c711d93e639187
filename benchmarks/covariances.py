"""EM with approximations of the covariance V[x | x_t]: `python -m benchmarks.covariances [--seeds 0 1 2]`.

Runs the recipe `digits` with V[x | x_t] by Tweedie's formula (`mmps`) and with the approximations of other methods:
(Σ_x⁻¹ + Σ_t⁻¹)⁻¹, (I + Σ_t⁻¹)⁻¹ and Σ_t. Laps, steps, training and screening are those of the recipe.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from diffem.runs.rundir import RunDir

from .digits import measure
from .record import record

METHODS = ("mmps", "sigma_x", "identity", "sigma_t")
KEPT = ("rejected", "kept", "chi2", "guards")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-covariances"))
    arguments = parser.parse_args()
    rows = []
    for method in arguments.methods:
        for seed in arguments.seeds:
            folder = arguments.out / f"{method}-{seed}"
            row = {"method": method, **measure(seed, folder, {"e_step.method": method})}
            row |= {key: [lap[key] for lap in RunDir(folder).metrics()[1:]] for key in KEPT}
            rows.append(row)
            print(row, flush=True)
    figures = {
        f"{key}_{method}": mean(row[key] for row in rows if row["method"] == method)
        for method in arguments.methods
        for key in ("mse_draw", "mse_mean16", "coverage90")
    }
    print(record("covariances", figures, rows))


if __name__ == "__main__":
    main()
