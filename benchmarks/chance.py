"""How much a lap can exceed the best earlier lap by chance: `python -m benchmarks.chance [--runs 32]`.

In each lap, draws are made from the exact posteriors of the manifold's observations: all of them, or the fraction that
the recipe renews. The divergences that `benchmarks/manifold.py` measures then differ by chance alone. Only laps from
`--settled` on count, because a real run has converged to the level of chance by then. Exact draws lie on the curve,
where optimal transport between two sets of points is sorting. W₂² between positions along the curve replaces the
Sinkhorn divergence here, and takes milliseconds without a GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from diffem.core.randomness import Stream
from diffem.datasets.manifold import truth
from diffem.em.expectation import fresh_count
from diffem.runs.recipe import load_recipe, parse_change

from .curve import LINE, even_truth, exact_places, lengths_of, moved, on_curve, worst_rise
from .record import RESULTS, record

POOL = 64  # exact draws computed for each observation; a lap uses one of them
MEASURES = ("draws", "pooled", "even")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="manifold")
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--points", type=int, default=16384)
    parser.add_argument("--settled", type=int, default=7)
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipe")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    recipe = load_recipe(arguments.recipe, dict(parse_change(text) for text in arguments.set))
    problem, points, seed = recipe.problem(), arguments.points, recipe.seed
    obs, n = problem.obs, len(problem.obs)
    A, dimension = obs.A.tensors()["matrix"], obs.x_shape[0]
    pool = exact_places(obs.y, A, recipe.data.options()["sigma"], seed, POOL)  # (n, POOL)
    even = lengths_of(even_truth(LINE, seed, dimension))
    random = on_curve(truth(points, seed, dimension), seed)[1]

    def measured(places: Tensor) -> list[float]:
        along = even[places.flatten()]  # the first draw of every observation, then the second, as in a run's files
        return [moved(along[:points], random), moved(along, random), moved(along, even)]

    def run(number: int, renewed: bool) -> list[list[float]]:
        """The three measures of every lap that counts."""
        held, laps = pool[:, : recipe.e_step.draws].T.clone(), []
        for lap in range(arguments.settled, recipe.laps + 1):
            turns, chances = (Stream(number, f"chance {purpose}", lap) for purpose in ("turns", "draws"))
            first = lap == arguments.settled
            count = n if renewed or first else fresh_count(n, recipe.e_step.fresh_at(lap))
            for d in range(recipe.e_step.draws):
                rows = turns.permutation(n, step=d)[:count]
                which = (chances.uniform(rows, (1,), step=d, dtype=torch.float64) * POOL).long()
                held[d, rows] = pool[rows].gather(1, which)[:, 0]
            laps.append(measured(held))
        return laps

    rows = []
    for renewed in (True, False):
        runs = [run(number, renewed) for number in range(arguments.runs)]
        for m, name in enumerate(MEASURES):
            values = torch.tensor([[lap[m] for lap in laps] for laps in runs], dtype=torch.float64)
            rises = torch.tensor([worst_rise(laps) for laps in values.tolist()], dtype=torch.float64)
            low, middle, high = rises.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
            row = {"renewed": "all" if renewed else "as the recipe", "measure": name, "mean": float(values.mean())}
            row |= {"spread": float(values.std()), "rise": middle, "rise_5": low, "rise_95": high}
            rows.append(row)
            print(row, flush=True)
    figures = {f"rise_{row['measure']}_{str(row['renewed']).split()[0]}": row["rise"] for row in rows}
    print(record("chance", {**figures, "runs": arguments.runs, "laps": recipe.laps}, rows, arguments.results))


if __name__ == "__main__":
    main()
