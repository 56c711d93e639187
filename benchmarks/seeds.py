"""The paper's first experiment with several seeds: `python -m benchmarks.seeds [--seeds 0 1 2 3] [--out runs/seeds]`.

Every seed has its own curve, projections and noise. For each, `benchmarks.manifold` runs the recipe and
`benchmarks.chance` measures exact posterior draws: their divergences, and how much a lap exceeds the best earlier lap
by chance alone. The result has one row per seed: divergences of the last lap, those of exact draws, the largest rises,
and the rises that 95 % of the runs with exact draws do not exceed. A run that was stopped has a row for the laps that
it made. A seed whose result is in `--out` is not computed again. `--parts chance` needs no GPU.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from . import chance, manifold
from .record import RESULTS, record, without_folders

RISES = {measure: manifold.RISES[f"sinkhorn_{measure}"] for measure in chance.MEASURES}  # measure → figure
LAST = {"manifold": "picture.png", "chance": "chance.json"}  # the file that each part writes at its end
SHOWN = ("sinkhorn_draws", "sinkhorn_pooled", "sinkhorn_prior", "laps", "compute_minutes", *RISES.values())
SOURCE = ("command", "commit", "machine", "date")


def row_of(seed: int, folder: Path) -> dict[str, Any]:
    """The row of a seed, from the results in its folder."""
    run, exact = (json.loads((folder / f"{name}.json").read_text()) for name in LAST)
    row = {"seed": seed, **{key: run[key] for key in SOURCE}, **{key: run["figures"][key] for key in SHOWN}}
    row["command"] = without_folders(row["command"])
    for of_chance in exact["rows"]:
        if of_chance["renewed"] != "all":
            row |= {f"exact_{of_chance['measure']}": of_chance["mean"]}
            row |= {f"chance_{of_chance['measure']}": of_chance["rise_95"]}
    return row


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--parts", nargs="+", choices=LAST, default=list(LAST))
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--runs", type=int, default=32, help="runs with exact draws")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipe")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    for seed in arguments.seeds:
        folder = arguments.out / f"seed{seed}"
        changes = ["--results", str(folder), "--set", f"seed={seed}", *arguments.set]
        missing = [part for part in arguments.parts if not (folder / LAST[part]).is_file()]
        if "manifold" in missing:
            manifold.main(["--out", str(folder / "run"), "--picture", str(folder / LAST["manifold"]), *changes])
        if "chance" in missing:
            chance.main(["--runs", str(arguments.runs), *changes])
    folders = {seed: arguments.out / f"seed{seed}" for seed in arguments.seeds}
    rows = [row_of(s, folder) for s, folder in folders.items() if all((folder / f"{f}.json").is_file() for f in LAST)]
    if not rows:
        return
    figures = {f"worst_{key}": max(row[f"sinkhorn_{key}"] for row in rows) for key in ("draws", "prior")}
    figures["rises_beyond_chance"] = sum(row["worst_rise_pooled"] > row["chance_pooled"] for row in rows)
    print(record("seeds", {**figures, "seeds": len(rows)}, rows, arguments.results))


if __name__ == "__main__":
    main()
