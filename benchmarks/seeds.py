"""The paper's first experiment with several seeds: `python -m benchmarks.seeds [--seeds 0 1 2 3] [--out runs/seeds]`.

Every seed has its own curve, projections and noise. For each, `benchmarks.manifold` runs the recipe and
`benchmarks.chance` measures how much a lap exceeds the best earlier lap by chance alone. The result has one row per
seed: divergences of the last lap, the largest rises, and the rises that 95 % of the runs with exact draws do not
exceed. A seed whose result is in `--out` is not computed again. `--parts chance` needs no GPU.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from . import chance, manifold
from .record import RESULTS, record

PARTS = ("manifold", "chance")
RISES = {"draws": "worst_rise", "pooled": "worst_rise_pooled", "even": "worst_rise_even"}  # measure → figure
SHOWN = ("sinkhorn_draws", "sinkhorn_pooled", "sinkhorn_prior", "perfect_draws", "perfect_pooled", "floor", "laps")


def row_of(seed: int, folder: Path) -> dict[str, Any]:
    """The row of a seed, from the results in its folder."""
    run, exact = (json.loads((folder / f"{name}.json").read_text()) for name in ("manifold", "chance"))
    by_chance = {row["measure"]: row["rise_95"] for row in exact["rows"] if row["renewed"] != "all"}
    row = {"seed": seed, **{key: run["figures"][key] for key in (*SHOWN, *RISES.values(), "compute_minutes")}}
    return row | {f"chance_{measure}": by_chance[measure] for measure in RISES}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--manifold", nargs="*", default=[], metavar="KEY=VALUE", help="options of benchmarks.manifold")
    parser.add_argument("--chance", nargs="*", default=[], metavar="KEY=VALUE", help="options of benchmarks.chance")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipe")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    for seed in arguments.seeds:
        folder = arguments.out / f"seed{seed}"
        changes = ["--results", str(folder), "--set", f"seed={seed}", *arguments.set]
        if "manifold" in arguments.parts and not (folder / "picture.png").is_file():  # written at the end
            own = ["--out", str(folder / "run"), "--picture", str(folder / "picture.png")]
            manifold.main([*_options(arguments.manifold), *own, *changes])
        if "chance" in arguments.parts and not (folder / "chance.json").is_file():
            chance.main([*_options(arguments.chance), *changes])
    complete = [s for s in arguments.seeds if all((arguments.out / f"seed{s}" / f"{p}.json").is_file() for p in PARTS)]
    rows = [row_of(seed, arguments.out / f"seed{seed}") for seed in complete]
    if not rows:
        return
    figures = {f"worst_{key}": max(row[f"sinkhorn_{key}"] for row in rows) for key in ("draws", "prior")}
    figures["rises_beyond_chance"] = sum(row["worst_rise_pooled"] > row["chance_pooled"] for row in rows)
    print(record("seeds", {**figures, "seeds": len(rows)}, rows, arguments.results))


def _options(words: list[str]) -> list[str]:
    """`points=64` → `--points 64`."""
    return [part for word in words for part in ("--" + word.split("=", 1)[0], word.split("=", 1)[1])]


if __name__ == "__main__":
    main()
