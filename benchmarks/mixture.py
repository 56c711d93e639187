"""A mixture of 25 Gaussians with an exact posterior: `python -m benchmarks.mixture [--quick] [--dimensions 8 80 800]`.

The prior has means (−8i, −8j), i, j ∈ {−2 … 2}, repeated d/2 times, unit covariances, and weights ∝ squared standard
normals. The observation has m values of a new x through a Gaussian matrix whose singular values are replaced by sorted
uniform numbers. The noise level σ_y is a uniform number times the largest singular value. Every method draws from the
posterior of the same problems. The figure is the sliced W₁ distance to exact draws. The floor is the distance between
two sets of exact draws.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from diffem import Observations, operators, priors
from diffem.core.randomness import Stream
from diffem.metrics import sliced_wasserstein
from diffem.posterior import Exact
from diffem.samplers import DEFAULT_SAMPLER, SAMPLERS

from .record import RESULTS, commit, earlier, machine, record
from .workers import shared_out

SIGMA_MAX = {8: 1e2, 80: 1e3, 800: 5e3}  # must exceed the norm of the data
Entry: TypeAlias = tuple[str, str]  # method, sampler
FULL = {"method": "mmps", "solver": "direct"}
# Hyper-parameters are the published ones, which are the library's defaults: DPS ζ' = 0.5, DiffPIR λ = 8. The other
# methods have none.
METHODS: dict[str, dict[str, Any]] = {
    "exact": {"method": "exact"},
    "mmps, full solve": FULL,
    "mmps, cg(1)": {"method": "mmps", "solver": "cg", "iterations": 1},
    **{name: {"method": name} for name in ("sigma_x", "sigma_t", "identity", "dps", "pigdm", "tmpd", "diffpir")},
}


def problem(dimension: int, measured: int, seed: int, device: str = "cpu") -> tuple[priors.MixturePrior, Observations]:
    """The prior and one observation, in float64."""

    def uniform(purpose: str, *shape: int) -> Tensor:
        return Stream(seed, f"mixture {purpose}").uniform(
            torch.zeros(1, dtype=torch.int64), shape, dtype=torch.float64
        )[0]

    def normal(purpose: str, *shape: int) -> Tensor:
        return Stream(seed, f"mixture {purpose}").normal(torch.zeros(1, dtype=torch.int64), shape, dtype=torch.float64)[
            0
        ]

    places = [(-8.0 * i, -8.0 * j) for i in range(-2, 3) for j in range(-2, 3)]
    means = torch.tensor(places, dtype=torch.float64).repeat(1, dimension // 2)
    sigma_max = SIGMA_MAX.get(dimension, 40 * math.sqrt(dimension))
    prior = priors.MixturePrior(normal("weights", 25) ** 2, means, torch.ones(25), sigma_max=sigma_max)
    u, s, wt = torch.linalg.svd(normal("operator", measured, dimension), full_matrices=False)
    s = uniform("singular values", measured).sort(descending=True).values
    A = operators.Dense((u * s) @ wt)
    sigma = float(uniform("noise level") * s[0])
    x = prior.exact_sample(uniform("component", 1), normal("truth", 1, dimension))
    obs = Observations(A(x) + sigma * normal("noise", 1, measured), A, sigma=sigma)
    return prior.to(device), obs.to(device)


def entries(arguments: argparse.Namespace) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Combinations to measure: all methods with the default sampler, and on request all samplers.

    Returns:
        Tuples (method, sampler, options of the method, options of the sampler).
    """
    methods = [(name, DEFAULT_SAMPLER, options, {}) for name, options in METHODS.items()]
    others = [name for name in SAMPLERS if name not in (DEFAULT_SAMPLER, "tds")]
    swept = ("exact", "mmps, full solve") if arguments.samplers else ()
    samplers = [(name, sampler, METHODS[name], {}) for name in swept for sampler in others]
    twisted = [("mmps, full solve", "tds", FULL, {"particles": arguments.particles})]
    return [e for e in (*methods, *twisted, *samplers) if not arguments.only or e[0] in arguments.only]


def distance(x: Tensor, exact: Tensor) -> float:
    return sliced_wasserstein(x, exact) if torch.isfinite(x).all() else math.inf


def summary(values: list[float]) -> dict[str, Any]:
    """Mean over seeds, and half the width of its 95 % interval."""
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)
    return {
        "w1": mean,
        "interval": 1.96 * math.sqrt(variance / len(values)),
        "seeds": len(values),
        "values": [round(v, 4) for v in values],
    }


def measure(dimension: int, measured: int, seed: int, arguments: argparse.Namespace) -> dict[Entry, dict[str, float]]:
    """Measure one problem: for every method the distance of its draws, the time, and the effective sample size."""
    prior, obs = problem(dimension, measured, seed, arguments.device)
    posterior = prior.posterior(obs, method="exact")
    assert isinstance(posterior, Exact)
    # separate exact sets for every problem: shared random numbers would correlate the errors of all problems
    exact, again = (posterior.exact_sample(arguments.samples, seed=2 * seed + k)[:, 0] for k in (0, 1))
    found: dict[Entry, dict[str, float]] = {("floor", ""): {"w1": distance(again, exact), "seconds": 0.0}}
    for name, sampler, options, sampler_options in entries(arguments):
        start = time.monotonic()
        x, statistics = prior.posterior(obs, **options).sample(
            draws=arguments.samples,
            steps=arguments.steps,
            sampler=sampler,
            seed=seed,
            batch_size=arguments.batch,
            return_stats=True,
            progress=False,
            **sampler_options,
        )
        w1 = distance(x[:, 0], exact)
        effective = float(statistics.effective.mean())
        found[name, sampler] = {"w1": w1, "seconds": time.monotonic() - start, "effective": effective}
    print(f"d {dimension} m {measured} seed {seed}: {sum(f['seconds'] for f in found.values()):.0f} s", flush=True)
    return found


def rows_of(
    dimension: int, measured: int, seeds: list[dict[Entry, dict[str, float]]], steps: int
) -> list[dict[str, Any]]:
    rows = []
    for name, sampler in seeds[0]:
        row: dict[str, Any] = {"d": dimension, "m": measured, "method": name, "sampler": sampler, "steps": steps}
        row |= summary([found[name, sampler]["w1"] for found in seeds])
        row["seconds"] = sum(found[name, sampler]["seconds"] for found in seeds) / len(seeds)
        if sampler == "tds":
            row["effective"] = sum(found[name, sampler]["effective"] for found in seeds) / len(seeds)
        rows.append(row)
        print(f"  {name:18} {sampler:6} {row['w1']:.3f} ± {row['interval']:.3f}  ({row['seconds']:.1f} s)", flush=True)
    return rows


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="d = 8 with 3 seeds, 300 samples, 100 steps: minutes on a CPU"
    )
    parser.add_argument("--dimensions", type=int, nargs="+", default=[8])
    parser.add_argument("--measured", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1, help="processes that share the problems, on a CPU")
    parser.add_argument(
        "--samplers", action="store_true", help="also every sampler, with the exact denoiser and with mmps"
    )
    parser.add_argument("--batch", type=int, help="trajectories at a time")
    parser.add_argument("--only", nargs="+", choices=["floor", *METHODS], help="only these methods, and the floor")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep rows of the last result that are not measured now or used more problems",
    )
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.seeds, arguments.samples, arguments.steps = 3, 300, 100
    settings = [(d, m) for d in arguments.dimensions for m in arguments.measured]
    problems = [(d, m, seed, arguments) for d, m in settings for seed in range(arguments.seeds)]
    found = shared_out(measure, problems, arguments.workers)
    per_setting = [found[i : i + arguments.seeds] for i in range(0, len(found), arguments.seeds)]
    pairs = zip(settings, per_setting, strict=True)
    rows = [row for (d, m), seeds in pairs for row in rows_of(d, m, seeds, arguments.steps)]
    if arguments.keep:
        here = {"commit": commit(), "machine": machine()}
        rows = together([here | row for row in rows], earlier("mixture", arguments.results))
    main_rows = [row for row in rows if row["sampler"] in ("", DEFAULT_SAMPLER, "tds")]
    figures = {f"w1_{row['d']}_{row['m']}_{_key(row)}": row["w1"] for row in main_rows}
    print(record("mixture", figures, rows, arguments.results))


def together(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the rows measured now with earlier rows of other entries or of more problems."""
    found = {_place(row): row for row in before}
    for row in rows:
        if (old := found.get(_place(row))) is None or old["seeds"] <= row["seeds"]:
            found[_place(row)] = row
    return [found[place] for place in sorted(found)]


def _place(row: dict[str, Any]) -> tuple[int, int, int, str, str]:
    order = ["floor", *METHODS].index(row["method"])
    return row["d"], row["m"], order, row["method"], row["sampler"]


def _key(row: dict[str, Any]) -> str:
    if row["sampler"] == "tds":
        return "tds"
    return row["method"].replace(", full solve", "").replace(", cg(1)", "_cg1")


if __name__ == "__main__":
    main()
