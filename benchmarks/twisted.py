"""What limits weighted draws: `python -m benchmarks.twisted [--seeds 4] [--problems 6]`.

Two experiments with `tds`, on mixtures whose posterior is known exactly:

- *Steps or particles?* Three clusters in the plane, and one measured value that two of them explain. The measures are
  the sliced W₁ distance to exact draws and the fraction of draws in the upper cluster. The fraction has a standard
  error and shows a bias that the distance can hardly resolve.
- *Unequal noise.* Six clusters in R⁸ and six measured values whose noise levels differ by a factor of 100, with solvers
  that converge and solvers that do not.

The floor is the distance between two sets of exact draws.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffem import Observations, operators, priors
from diffem.linalg import Diagonal
from diffem.metrics import sliced_wasserstein
from diffem.posterior import Exact

from .record import RESULTS, record

DOUBLE = torch.float64
SETS = 8  # sets of exact draws over which distances are averaged
UPPER = -1.2  # second coordinate above which a draw belongs to the upper cluster
SHARE_DRAWS = 400_000  # number of exact draws for the exact fraction, with a standard error of 0.0008
# (steps, particles, order)
PLANE = [
    *[(steps, 16, 1) for steps in (32, 64, 128, 256, 512, 1024)],
    *[(steps, 16, 2) for steps in (32, 64, 128, 256)],
    *[(64, particles, 1) for particles in (4, 64, 256)],
    *[(256, particles, 1) for particles in (4, 64)],
]
SOLVERS: dict[str, dict[str, Any]] = {
    "cg, 3 iterations (default)": {"method": "mmps"},  # without a name, a mixture is conditioned exactly
    "cg, 1 iteration": {"method": "mmps", "iterations": 1},
    "direct": {"method": "mmps", "solver": "direct"},
}
UNEQUAL = [(name, particles) for name in SOLVERS for particles in (4, 16, 64) if name.endswith("t)") or particles == 16]


def plane() -> tuple[priors.MixturePrior, Observations]:
    """Three clusters, and one value that hardly distinguishes two of them."""
    means = torch.tensor([[1.6, 0.35], [0.18, -1.2], [0.09, -2.7]], dtype=DOUBLE)
    weights, stds = torch.tensor([0.25, 0.38, 0.37], dtype=DOUBLE), torch.tensor([0.51, 0.27, 0.44], dtype=DOUBLE)
    A = operators.Dense(torch.tensor([[-0.86, 0.3]], dtype=DOUBLE))
    return priors.MixturePrior(weights, means, stds), Observations(torch.tensor([[-1.5]], dtype=DOUBLE), A, sigma=0.2)


def unequal_noise(
    seed: int, size: int = 8, measured: int = 6
) -> tuple[priors.MixturePrior, Observations, Observations]:
    """Six clusters in R⁸ and six values with noise levels from 0.1 to 10.

    The values divided by their noise levels are returned too, for the exact posterior.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    weights = torch.rand(6, generator=generator, dtype=DOUBLE) + 0.2
    prior = priors.MixturePrior(weights, 3 * normal(6, size), torch.full((6,), 0.7, dtype=DOUBLE))
    matrix, spread = normal(measured, size) / math.sqrt(size), torch.logspace(-1, 1, measured, dtype=DOUBLE)
    x = prior.exact_sample(torch.rand(1, generator=generator, dtype=DOUBLE), normal(1, size))
    y = x @ matrix.T + spread * normal(1, measured)
    obs = Observations(y, operators.Dense(matrix), cov=Diagonal(spread**2))
    return prior, obs, Observations(y / spread, operators.Dense(matrix / spread.unsqueeze(1)), sigma=1.0)


def exact_draws(prior: priors.MixturePrior, obs: Observations, count: int, seed: int) -> Tensor:
    """Exact draws `(count, *event)` from the posterior of one observation."""
    posterior = prior.posterior(obs, method="exact")
    assert isinstance(posterior, Exact)
    return posterior.exact_sample(count, seed=seed)[:, 0]


def floors(exact: tuple[Tensor, ...]) -> Tensor:
    """The mean distance of each set of exact draws to the other sets, `(sets,)`."""
    between = torch.tensor([[sliced_wasserstein(a, b) for b in exact] for a in exact], dtype=DOUBLE)
    return between.sum(1) / (len(exact) - 1)


def to_exact(x: Tensor, exact: tuple[Tensor, ...]) -> float:
    return float(torch.tensor([sliced_wasserstein(x, a) for a in exact]).mean())


def mean_and_error(values: list[float]) -> tuple[float, float]:
    t = torch.tensor(values, dtype=DOUBLE)
    return float(t.mean()), float(t.std()) / math.sqrt(len(t)) if len(t) > 1 else math.nan


def measure_plane(seeds: int, draws: int) -> list[dict[str, Any]]:
    prior, obs = plane()
    exact = exact_draws(prior, obs, SETS * draws, seed=1).split(draws)
    share = float((exact_draws(prior, obs, SHARE_DRAWS, seed=2)[:, 1] > UPPER).double().mean())
    floor, rows = float(floors(exact).mean()), []
    for steps, particles, order in PLANE:
        distances, shares = [], []
        for seed in range(seeds):
            x = prior.posterior(obs, "mmps", solver="direct").sample(
                draws, steps, "tds", seed, particles=particles, order=order, progress=False
            )[:, 0]
            distances.append(to_exact(x, exact))
            shares.append(float((x[:, 1] > UPPER).double().mean()))
        w1, w1_se = mean_and_error(distances)
        row = {"problem": "plane", "steps": steps, "particles": particles, "order": order, "draws": seeds * draws}
        row |= {"w1": w1, "w1_se": w1_se, "floor": floor, "share": sum(shares) / seeds - share}
        row["share_se"] = math.sqrt(share * (1 - share) / (seeds * draws))
        rows.append(row)
        print(row, flush=True)
    return rows


def measure_unequal(problems: int, draws: int, steps: int = 128) -> list[dict[str, Any]]:
    rows = []
    for name, particles in UNEQUAL:
        ratios, effective = [], []
        for seed in range(problems):
            prior, obs, whitened = unequal_noise(seed)
            exact = exact_draws(prior, whitened, SETS * draws, seed).split(draws)
            x, statistics = prior.posterior(obs, **SOLVERS[name]).sample(
                draws, steps, "tds", seed, particles=particles, return_stats=True, progress=False
            )
            ratios.append(to_exact(x[:, 0], exact) / float(floors(exact).mean()))
            effective.append(float(statistics.effective.mean()))
        ratio, error = mean_and_error(ratios)
        row = {"problem": "unequal", "solver": name, "particles": particles, "steps": steps, "ratio": ratio}
        row |= {"ratio_se": error, "problems": problems, "effective": sum(effective) / problems}
        rows.append(row)
        print(row, flush=True)
    return rows


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="sets of draws per setting in the plane")
    parser.add_argument("--problems", type=int, default=6, help="with unequal noise")
    parser.add_argument("--draws", type=int, nargs=2, default=[1000, 250], help="draws per set, in the plane and in R⁸")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    unequal = measure_unequal(arguments.problems, arguments.draws[1])
    rows = [*measure_plane(arguments.seeds, arguments.draws[0]), *unequal]
    default = next(row for row in unequal if row["solver"] == "cg, 3 iterations (default)" and row["particles"] == 16)
    print(record("twisted", {"unequal_ratio_default": default["ratio"]}, rows, arguments.results))


if __name__ == "__main__":
    main()
