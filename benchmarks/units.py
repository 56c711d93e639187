"""Do results depend on the units of the data? `python -m benchmarks.units`

Three problems with exact answers, at scales from 1e-6 to 1e6:
- the spread of posterior draws of a Gaussian and of a mixture prior, relative to the spread of exact draws;
- the log-likelihood that the Gaussian start reaches with dense operators, against that of the true Gaussian.
"""

from __future__ import annotations

import argparse
import math

import torch

from diffem import Observations, operators, priors
from diffem.priors import FitHistory

from .record import record

SCALES = (1e-6, 1e-3, 1.0, 1e3, 1e4, 1e6)
DRAWS, STEPS = 2048, 128
SIZE, MEASURED, OBSERVATIONS, ROUNDS = 8, 5, 2000, 512


def gaussian_spread(scale: float) -> float:
    """Standard deviation of draws over the exact one, averaged over coordinates."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, dtype=torch.float64, generator=generator) / math.sqrt(6)
    cov = root @ root.T + 0.1 * torch.eye(6, dtype=torch.float64)
    rows = torch.randn(3, 6, dtype=torch.float64, generator=generator)
    exact = cov - cov @ rows.T @ torch.linalg.solve(rows @ cov @ rows.T + 0.01 * torch.eye(3).double(), rows @ cov)
    prior = priors.GaussianPrior(torch.zeros(6, dtype=torch.float64), scale**2 * cov)
    obs = Observations(scale * torch.ones(1, 3, dtype=torch.float64), operators.Dense(rows), sigma=0.1 * scale)
    x = prior.posterior(obs, solver="direct").sample(DRAWS, steps=STEPS, progress=False)[:, 0] / scale
    return float((x.std(0) / exact.diagonal().sqrt()).mean())


def mixture_spread(scale: float) -> float:
    """The same ratio for a mixture of two Gaussians, if both are equally likely given y."""
    means = scale * torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    prior = priors.MixturePrior(torch.ones(2).double(), means, scale * torch.full((2,), 0.3).double())
    A = operators.Dense(torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    obs = Observations(torch.zeros(1, 1, dtype=torch.float64), A, sigma=0.1 * scale)
    x = prior.posterior(obs, solver="direct").sample(DRAWS, steps=STEPS, progress=False)[:, 0]
    exact = prior.posterior(obs, method="exact").exact_sample(DRAWS)[:, 0]  # type: ignore[attr-defined]
    return float((x.std(0) / exact.std(0)).mean())


def start_below_truth(scale: float) -> float:
    """Total log-likelihood of the true Gaussian minus that of the fitted one, in nats, over all observations."""
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(SIZE, SIZE, dtype=torch.float64, generator=generator) / math.sqrt(SIZE)
    x = torch.randn(OBSERVATIONS, SIZE, dtype=torch.float64, generator=generator) @ root.T
    rows = torch.randn(OBSERVATIONS, MEASURED, SIZE, dtype=torch.float64, generator=generator)
    noise = 0.1 * torch.randn(OBSERVATIONS, MEASURED, dtype=torch.float64, generator=generator)
    y = (rows @ x.unsqueeze(-1)).squeeze(-1) + noise
    obs = Observations(scale * y, operators.Dense(rows), sigma=0.1 * scale)
    history = FitHistory()
    priors.fit_gaussian(obs, rounds=ROUNDS, history=history, progress=False)
    total = rows @ (root @ root.T) @ rows.mT + 0.01 * torch.eye(MEASURED, dtype=torch.float64)
    law = torch.distributions.MultivariateNormal(torch.zeros(MEASURED, dtype=torch.float64), total)
    truth = float(law.log_prob(y).sum()) - y.numel() * math.log(scale)
    return truth - history.log_likelihood[-1] * y.numel()


def main() -> None:
    rows = []
    print(f"{'scale':>8} {'Gaussian':>9} {'mixture':>8} {'start below truth [nats]':>25}")
    for scale in SCALES:
        row = {"scale": scale, "gaussian_spread": gaussian_spread(scale), "mixture_spread": mixture_spread(scale)}
        row["start_below_truth"] = start_below_truth(scale)
        rows.append(row)
        print(
            f"{scale:8.0e} {row['gaussian_spread']:9.3f} {row['mixture_spread']:8.3f} {row['start_below_truth']:25.2f}"
        )
    spreads = [row[key] for row in rows for key in ("gaussian_spread", "mixture_spread")]
    figures = {"smallest_spread": min(spreads), "largest_spread": max(spreads)}
    figures["start_range_nats"] = max(r["start_below_truth"] for r in rows) - min(r["start_below_truth"] for r in rows)
    record("units", figures, rows)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it has no options
    main()
