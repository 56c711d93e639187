"""Both methods of the E-step on two small problems: `python -m benchmarks.esteps [--only digits curve] [--out FOLDER]`.

- digits: the recipe `digits` with `mmps`, its default, and with `conditional` in the same number of laps and in more,
  shorter laps. Rows contain the error on missing pixels of one draw and of the mean of 16, and the seconds of E-steps
  and M-steps.
- curve: the recipe `manifold-quick`, which uses TDS with `mmps`, compared with four laps of it followed by four with
  `conditional`, with networks of two widths. Rows contain the mean squared distance of the draws from the true curve.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import diffem
from diffem.em.split import split
from diffem.runs.draws import DrawStore
from diffem.runs.rundir import RunDir

from .curve import without_floor
from .digits import measure
from .record import record

CONDITIONAL: dict[str, Any] = {"e_step.method": "conditional"}
DIGITS: dict[str, dict[str, Any]] = {
    "mmps": {},
    "conditional": CONDITIONAL,
    "conditional, twelve short laps": CONDITIONAL
    | {"laps": 12, "train.steps": 800, "train.first_steps": 3000, "train.restart": False, "e_step.fresh": 0.5},
}
AFTERWARDS = {"lap": 5, "e_step": {"method": "conditional", "sampler": "ddpm2", "sampler_options": {}}}
CURVE: dict[str, dict[str, Any]] = {
    "mmps": {},
    "conditional after four laps, width 128": {"stages": [AFTERWARDS]},
    "conditional after four laps, width 256": {"stages": [AFTERWARDS], "network.hidden": [256, 256, 256]},
}


def digits(name: str, folder: Path) -> dict[str, Any]:
    row = measure(0, folder, DIGITS[name])
    laps = RunDir(folder).metrics()[1:]
    return {
        "problem": "digits",
        "method": name,
        **{key: row[key] for key in ("mse_draw", "mse_mean16", "coverage90", "mse_per_lap", "seconds")},
        "e_seconds": sum(lap["e_seconds"] for lap in laps),
        "m_seconds": sum(lap["m_seconds"] for lap in laps),
    }


def curve(name: str, folder: Path) -> dict[str, Any]:
    changes = {**CURVE[name], "e_step.keep": 100}
    if "stages" in changes:
        changes["train.conditioned"] = 0.5
    diffem.fit(None, "manifold-quick", folder, changes=changes)
    run = RunDir(folder)
    recipe = run.recipe()
    problem = recipe.problem()
    assert problem.reference is not None
    index, _ = split(len(problem.obs), recipe.watch.held_out)
    laps = []
    for k in range(1, recipe.laps + 1):
        draws = DrawStore.of_lap(run, k, len(index), recipe.e_step.shard).all()
        laps.append(without_floor(draws[: len(index)], problem.reference[index], recipe.seed)["off_curve"])
    metrics = run.metrics()
    return {
        "problem": "curve",
        "method": name,
        "off_curve_per_lap": laps,
        "seconds": sum(lap["seconds"] for lap in metrics),
        "e_seconds": sum(lap["e_seconds"] for lap in metrics[1:]),
        "m_seconds": sum(lap["m_seconds"] for lap in metrics[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=["digits", "curve"], choices=["digits", "curve"])
    parser.add_argument("--out", type=Path, default=Path("runs/esteps"))
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for problem, make, methods in (("digits", digits, DIGITS), ("curve", curve, CURVE)):
        for number, name in enumerate(methods if problem in arguments.only else {}):
            rows.append(make(name, arguments.out / f"{problem}-{number}"))
            print(rows[-1], flush=True)
            figures: dict[str, float] = {}
            for row in rows:
                key = f"{row['problem']}_{row['method'].replace(', ', '_').replace(' ', '_')}"
                figures[f"{key}_seconds"] = row["seconds"]
                if row["problem"] == "digits":
                    figures |= {f"{key}_mse_draw": row["mse_draw"], f"{key}_mse_mean16": row["mse_mean16"]}
                else:
                    figures[f"{key}_off_curve"] = row["off_curve_per_lap"][-1]
            record("esteps", figures, rows)


if __name__ == "__main__":
    main()
