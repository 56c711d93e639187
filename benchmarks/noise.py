"""Noise levels that are not given: `python -m benchmarks.noise [--sigmas 0.05 0.1 0.3]`.

The recipe `digits` on observations with noise of 0.05, 0.1 and 0.3, with the level given and with `sigma="learn"`: the
error of the estimated level, and the mean squared error of posterior draws on missing pixels beside that of the run
that was given the level. A row `groups` has four groups of observations whose levels lie a factor of 10 apart from each
other, and trains for a short time only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import diffem
from diffem import Observations
from diffem.datasets.digits import digits, images
from diffem.em.evaluation import posterior_draws
from diffem.em.screening import largest_plausible
from diffem.metrics import mse_unmeasured
from diffem.runs.rundir import RunDir

from .record import record

DRAWS = 4  # per observation, whose errors are averaged
GROUPS = (0.01, 0.1, 1.0, 10.0)
SHORT = {"laps": 1, "train.first_steps": 300}


def draw_error(folder: Path, obs: Observations, truth: torch.Tensor) -> float:
    """Mean squared error of one posterior draw on missing pixels."""
    prior, recipe = diffem.load(folder), RunDir(folder).recipe()
    bound = largest_plausible(diffem.load(folder, 0), recipe.e_step.bound)
    drawn = posterior_draws(prior, obs, recipe, DRAWS, bound)
    return sum(mse_unmeasured(x, truth, obs) for x in drawn) / DRAWS


def compare(sigma: float, seed: int, folder: Path) -> dict[str, Any]:
    """The run that is given the level and the one that learns it, on the same observations."""
    problem = digits(seed, 0.5, sigma)
    given, truth = problem.obs, problem.reference
    assert truth is not None
    unknown = Observations(given.y, given.A, sigma="learn")
    row: dict[str, Any] = {"sigma": sigma, "seed": seed}
    for name, obs in (("given", given), ("learned", unknown)):
        run = diffem.fit(obs, "digits", folder / f"{sigma}-{name}", seed, progress=False, report=False)
        row[f"mse_draw_{name}"] = draw_error(run.path, obs, truth)
        row[f"seconds_{name}"] = sum(lap["seconds"] for lap in run.laps)
    row["path"] = [lap["noise_levels"][0] for lap in run.laps]
    row["interval"] = [run.laps[-1]["noise_low"][0], run.laps[-1]["noise_high"][0]]
    row["sigma_error"] = row["path"][-1] / sigma - 1
    row["draw_excess"] = row["mse_draw_learned"] / row["mse_draw_given"] - 1
    return row


def groups(seed: int, folder: Path) -> dict[str, Any]:
    """Four groups of observations with different noise levels."""
    mask = digits(seed, 0.5, 0.1).obs.A
    x, labels = images(), torch.arange(len(images())) % len(GROUPS)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    y = x + torch.tensor(GROUPS)[labels][:, None, None] * noise
    obs = Observations(y, mask, sigma="learn", groups=labels)
    run = diffem.fit(obs, "digits", folder / "groups", seed, changes=SHORT, progress=False, report=False)
    found = run.laps[-1]["noise_levels"]
    errors = [estimate / level - 1 for estimate, level in zip(found, GROUPS, strict=True)]
    return {"case": "groups", "levels": list(GROUPS), "estimates": found, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sigmas", type=float, nargs="+", default=[0.05, 0.1, 0.3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-noise"))
    arguments = parser.parse_args()
    rows = [groups(arguments.seed, arguments.out)]
    print(rows[-1], flush=True)
    figures = {"group_error": max(map(abs, rows[0]["errors"]))}
    for sigma in arguments.sigmas:
        rows.append(compare(sigma, arguments.seed, arguments.out))
        print(rows[-1], flush=True)
        figures[f"sigma_error_{sigma:g}"] = abs(rows[-1]["sigma_error"])
        figures["draw_excess"] = max(row["draw_excess"] for row in rows[1:])
        print(record("noise", figures, rows), flush=True)


if __name__ == "__main__":
    main()
