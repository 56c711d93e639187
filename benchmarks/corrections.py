"""The effect of corrector steps at low noise: `python -m benchmarks.corrections [--observations 1024] [--train 16384]`.

A network is trained on points of the manifold's curve, so that the distance of its draws from the curve is due to the
sampler alone. Then x ~ q(x | y, A) is drawn for observations of the recipe `manifold` with the predictor–corrector,
with corrections at all noise levels or only above 0.1. An exact draw lies on the curve.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from diffem.datasets.manifold import truth
from diffem.em.maximization import maximization
from diffem.nn.networks import make_network
from diffem.priors import DiffusionPrior
from diffem.runs.recipe import load_recipe

from .curve import STRAY, distance_from_curve
from .record import record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--observations", type=int, default=1024)
    parser.add_argument("--train", type=int, default=16384, help="steps")
    parser.add_argument("--steps", type=int, nargs="*", default=[128, 512, 2048, 4096])
    arguments = parser.parse_args()
    recipe = load_recipe("manifold", {"train.measured": 0})
    problem = recipe.problem()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    points = truth(len(problem.obs), recipe.seed).to(device)
    network = recipe.network.options("kind")
    torch.manual_seed(0)
    prior = DiffusionPrior(
        make_network(recipe.network.kind, (points.shape[1],), network).to(device),
        mean=points.mean(0),
        sigma_min=recipe.sigma_min,
        sigma_max=recipe.sigma_max,
    )
    maximization(prior, points, recipe.train, steps=arguments.train, seed=recipe.seed, lap=1)
    posterior = prior.posterior(
        problem.obs[: arguments.observations].to(device), solver="cg", iterations=recipe.e_step.iterations
    )
    rows: list[dict[str, Any]] = []
    for steps in arguments.steps:
        for down_to in (0.0, 0.1):
            began = time.monotonic()
            x, statistics = posterior.sample(steps=steps, sampler="pc", down_to=down_to, return_stats=True)
            distance = distance_from_curve(x, recipe.seed)
            near = distance <= STRAY
            rows.append(
                {
                    "steps": steps,
                    "down_to": down_to,
                    "off_curve": float(distance[near].square().mean()),
                    "off_curve_median": float(distance.square().median()),
                    "strays": float((~near).double().mean()),
                    "guards": float(statistics.guards.sum() / statistics.evaluations.sum()),
                    "seconds": time.monotonic() - began,
                }
            )
            print({name: round(value, 6) for name, value in rows[-1].items()}, flush=True)
    print(record("corrections", {"observations": arguments.observations, "training_steps": arguments.train}, rows))


if __name__ == "__main__":
    main()
