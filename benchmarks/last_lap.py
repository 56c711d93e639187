"""The effect of the loss on measured values on prior samples: `python -m benchmarks.last_lap --run RUN [--workers 2]`.

Repeats the training of the last lap of a finished manifold run, from the weights before it and on its draws, with and
without the recipe's `train.measured`, with `--streams` different sets of random numbers. It compares samples of the
priors along the whole curve with 65,536 points of the truth.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from diffem.datasets.manifold import truth
from diffem.em.maximization import maximization
from diffem.em.split import split
from diffem.priors import DiffusionPrior
from diffem.priors.files import load_prior
from diffem.runs.draws import DrawStore
from diffem.runs.rundir import RunDir
from diffem.runs.schedule import largest

from .curve import along_truth
from .record import RESULTS, record
from .workers import shared_out

SAMPLES = 1 << 16


def trained_again(share: float, stream: int, arguments: argparse.Namespace) -> dict[str, Any]:
    run = RunDir(arguments.run)
    recipe = run.recipe()
    last, problem = recipe.laps, recipe.problem()
    obs = problem.obs[split(len(problem.obs), recipe.watch.held_out)[0]]
    store = DrawStore.of_lap(run, last, len(obs), recipe.e_step.shard)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prior, draws = load_prior(run.prior_file(last - 1), device), store.all().to(device)
    assert isinstance(prior, DiffusionPrior)
    options = recipe.train.model_copy(update={"measured": share})
    started = time.monotonic()
    training = maximization(
        prior,
        draws,
        options,
        steps=arguments.train or options.steps,
        seed=recipe.seed,
        lap=last + stream,
        measured_with=(obs.A, store.owners(recipe.e_step.draws), obs.cov),
        progress=False,
    )
    x = prior.sample(arguments.samples, steps=arguments.steps, seed=1, progress=False)
    row = {
        "measured": share,
        "stream": stream,
        "loss": training.losses[-1][1],
        "prior_along": along_truth(x, recipe.seed),
    }
    print(row, f"({time.monotonic() - started:.0f} s)", flush=True)
    return row


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--train", type=int, help="training steps; default: those of the recipe")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--steps", type=int, default=256, help="of sampling")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the trainings, on a CPU")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    recipe = RunDir(arguments.run).recipe()
    weight = largest(recipe.train.measured)
    cases = [(share, stream, arguments) for stream in range(arguments.streams) for share in (weight, 0.0)]
    rows = shared_out(trained_again, cases, arguments.workers)
    figures = {"perfect_prior_along": along_truth(truth(arguments.samples, recipe.seed), recipe.seed)}
    for share in (weight, 0.0):
        squares = [row["prior_along"] ** 2 for row in rows if row["measured"] == share]
        figures[f"prior_along_{share:g}"] = (sum(squares) / len(squares)) ** 0.5
    print(figures, record("last-lap", figures, rows, arguments.results))


if __name__ == "__main__":
    main()
