"""The exact bias of every sampler on Gaussians: `python -m benchmarks.samplers`.

With a Gaussian prior and exact E[x | x_t, y], a draw is linear in its random numbers, x_0 = c + Σ b_i z_i. Row i of a
batch sets z_i to 1 and the others to 0. This gives every b_i, and therefore the mean and standard deviation of the
sampler without Monte-Carlo error.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from diffem import Observations, operators, priors
from diffem.samplers import SAMPLERS, draw, get_sampler, schedule

from .record import record

STEPS = (16, 18, 32, 64, 128, 256, 512, 1024)


class UnitNoise:
    """Random numbers whose row i of the batch is 1 at address i and 0 elsewhere; the last row is 0."""

    def normal(
        self, index: Tensor, shape: tuple[int, ...], *, step: int = 0, draw: Tensor | None = None, dtype: torch.dtype
    ) -> Tensor:
        z = torch.zeros(len(index), *shape, dtype=dtype)
        z[step] = 1
        return z


def moments(denoiser, name: str, steps: int) -> tuple[float, float]:
    """Mean and standard deviation of the draws of a linear denoiser in one dimension."""
    sampler = get_sampler(name)
    rows = 2 + steps * sampler.noises_per_step
    mean = torch.zeros(1, dtype=torch.float64)
    x = draw(lambda x_t, sigma: denoiser(x_t, sigma), mean, torch.arange(rows), schedule(steps), sampler, UnitNoise())  # type: ignore[arg-type]
    return float(x[-1]), float((x[:-1] - x[-1]).square().sum().sqrt())


def main() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    prior = priors.GaussianPrior(torch.zeros(1, dtype=torch.float64), one)
    sigma_y, y = 0.5, 2.0
    obs = Observations(torch.full((1, 1), y, dtype=torch.float64), operators.Identity(), sigma=sigma_y)
    variance = 1 / (1 + 1 / sigma_y**2)
    exact_mean, exact_std = variance * y / sigma_y**2, variance**0.5

    rows, figures = [], {}
    # without weights, tds equals ddpm
    for name in (name for name in SAMPLERS if not get_sampler(name).needs_likelihood):
        for steps in STEPS:
            _, prior_std = moments(prior, name, steps)
            n = 2 + steps * get_sampler(name).noises_per_step
            posterior = prior.posterior(obs[[0] * n], iterations=1)
            mean, std = moments(posterior, name, steps)
            row = {
                "sampler": name,
                "steps": steps,
                "evaluations": steps * get_sampler(name).evaluations_per_step + 1,
                "prior_std": prior_std - 1,
                "posterior_mean": (mean - exact_mean) / exact_std,
                "posterior_std": std / exact_std - 1,
            }
            rows.append(row)
            print(
                f"{name:6} {steps:5} prior std {row['prior_std']:+.2%}  posterior mean "
                f"{row['posterior_mean']:+.2%} of a std, std {row['posterior_std']:+.2%}"
            )
            if steps == 256:
                figures[f"prior_std_{name}_256"] = row["prior_std"]
    print(record("samplers", figures, rows))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it has no options
    main()
