"""Detection rates of the checks of the model: `python -m benchmarks.watch [--repeats 50] [--kinds dense blur]`.

There are four kinds of small data: masks over 8 numbers, dense operators (5 combinations of 8 numbers), blurs (signals
of 12 numbers, each with its own kernel), and one combination of 8 numbers per observation. x is Gaussian, so that the
exact likelihood is known. Each kind has five cases: the correct model; the noise level stated at twice and at half its
true value; operators in another order; operators shifted by one entry against y.

With the correct model a whole run is made, the Gaussian start and two laps of a small network, and any warning is a
false alarm. With a wrong model only the check at the start is made, and any warning counts; `named` counts the warnings
that name the right cause. `exact` is the detection rate of the exact likelihood-ratio test, which is given the
distribution of x and the mistake to look for, and rejects the correct model in 5 % of cases.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffem
from diffem import Observations, operators, priors
from diffem.em.model_check import check_model
from diffem.em.model_check.noise import log_evidence
from diffem.em.split import split
from diffem.em.start import Fitting, gaussian_start
from diffem.runs.recipe import Recipe, load_recipe

from .record import record

OBSERVATIONS, SIGMA, DOUBLE = 576, 0.3, torch.float64
MIXED = 16  # operators of other observations in the likelihood of a shuffled observation
FAULTS = ("right", "noise_x2", "noise_half", "shuffled", "shifted")
NAMED = {
    "noise_x2": ("too large",),
    "noise_half": ("too small",),
    "shuffled": ("do not belong together",),
    "shifted": ("do not belong together", "shifted by one entry"),
}
RECIPE: dict[str, Any] = {
    "name": "watch",
    "data": {"source": "given"},
    "laps": 2,
    "sigma_min": 0.02,
    "sigma_max": 20.0,
    "network": {"kind": "mlp", "hidden": [64, 64], "embedding": 16},
    "e_step": {"steps": 16, "iterations": 2, "shard": 1024},
    "train": {"steps": 800, "first_steps": 1200, "batch": 128, "lr": 2.0e-3, "final_lr": 1.0e-5, "ema": 0.99},
    "watch": {"held_out": 64, "samples": 64},
}


@dataclass(frozen=True)
class Data:
    """Observations y `(n, *measurement)` through A with noise level SIGMA, and the distribution of x."""

    y: Tensor
    A: operators.Operator
    prior: priors.GaussianPrior
    stated: float = SIGMA

    @property
    def obs(self) -> Observations:
        return Observations(self.y, self.A, sigma=self.stated)


def masks(n: int, generator: torch.Generator) -> tuple[int, operators.Operator]:
    return 8, operators.Mask(torch.rand(n, 8, generator=generator) < 0.6)


def dense(n: int, generator: torch.Generator) -> tuple[int, operators.Operator]:
    return 8, operators.Dense(torch.randn(n, 5, 8, generator=generator, dtype=DOUBLE) / math.sqrt(8))


def one(n: int, generator: torch.Generator) -> tuple[int, operators.Operator]:
    return 8, operators.Dense(torch.randn(n, 1, 8, generator=generator, dtype=DOUBLE) / math.sqrt(8))


def blur(n: int, generator: torch.Generator) -> tuple[int, operators.Operator]:
    width = 0.4 + 1.6 * torch.rand(n, 1, 1, generator=generator, dtype=DOUBLE)
    kernel = torch.exp(-0.5 * (torch.arange(-2, 3, dtype=DOUBLE) / width).square())
    return 12, operators.Blur(kernel / kernel.sum(-1, keepdim=True))


KINDS: dict[str, Callable[[int, torch.Generator], tuple[int, operators.Operator]]] = {
    "masks": masks,
    "dense": dense,
    "blur": blur,
    "one value": one,
}


def make(kind: str, seed: int) -> Data:
    """Neighbouring entries of x are correlated; mean and scale differ between entries."""
    generator = torch.Generator().manual_seed(seed)
    size, A = KINDS[kind](OBSERVATIONS, generator)
    mean, scale = torch.randn(2, size, generator=generator, dtype=DOUBLE)
    scale = (scale / 2).exp()
    place = torch.arange(size, dtype=DOUBLE)
    cov = torch.exp(-(place[:, None] - place).abs() / 3) * scale[:, None] * scale
    shape = (1, size) if kind == "blur" else (size,)
    prior = priors.GaussianPrior(mean.reshape(shape) / 2, cov)
    y = A(prior.exact_sample(torch.randn(OBSERVATIONS, *shape, generator=generator, dtype=DOUBLE)))
    y = y + SIGMA * torch.randn(y.shape, generator=generator, dtype=DOUBLE)
    return Data(Observations(y, A, sigma=SIGMA).y, A, prior)  # 0 for unmeasured entries


def spoil(data: Data, fault: str, seed: int) -> Data:
    if fault == "shuffled":
        order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(seed))
        return replace(data, A=data.A[order])
    if fault == "shifted":
        return replace(data, y=data.y.roll(1, -1))
    return replace(data, stated=SIGMA * {"noise_x2": 2.0, "noise_half": 0.5}.get(fault, 1.0))


def flagged(data: Data, recipe: Recipe, whole: bool) -> list[str]:
    """The warnings of a whole run, or of its start."""
    obs = data.obs.to(torch.float32)
    if whole:
        with tempfile.TemporaryDirectory() as folder:
            run = diffem.fit(obs, recipe, Path(folder) / "run", progress=False)
            return [text for lap in run.laps for text in lap["warnings"]]
    train, held = split(len(obs), recipe.watch.held_out)
    prior, _ = gaussian_start(recipe, obs[train], Fitting(torch.device("cpu"), progress=False))
    return check_model(prior, obs[train], obs[held], recipe).warnings


def likelihood_ratio(data: Data, fault: str) -> float:
    """log p(y | this mistake was made) − log p(y | no mistake), under the true distribution of x.

    The mistake is in the stated A or noise level, so for a wrong noise level the true level is the other one.
    """
    stated = data.obs
    right = log_evidence(data.prior, stated)
    if fault in ("noise_x2", "noise_half"):
        factor = 0.5 if fault == "noise_x2" else 2.0
        other = log_evidence(data.prior, Observations(data.y, data.A, sigma=factor * data.stated))
    elif isinstance(data.A, operators.Mask):
        # a measured value that is exactly 0 has no density under the right model
        mask = stated.measured
        return math.inf if bool((stated.y[mask.expand_as(stated.y)] == 0).any()) else -math.inf  # type: ignore[union-attr]
    elif fault == "shifted":
        other = log_evidence(data.prior, Observations(data.y.roll(-1, -1), data.A, sigma=data.stated))
    else:
        index, n = torch.arange(len(data.y)), len(data.y)
        turned = [
            Observations(data.y, data.A[(index + k * n // MIXED + 1) % n], sigma=data.stated) for k in range(MIXED)
        ]
        other = torch.stack([log_evidence(data.prior, obs) for obs in turned]).logsumexp(0) - math.log(MIXED)
    return float((other - right).sum())


def exact_rate(kind: str, fault: str, repeats: int) -> float:
    """Detection rate of the exact likelihood ratio at 5 % false alarms; its distribution is approximated as normal."""
    right = torch.tensor([likelihood_ratio(make(kind, seed), fault) for seed in range(repeats)], dtype=DOUBLE)
    wrong = torch.tensor(
        [likelihood_ratio(spoil(make(kind, seed), fault, seed), fault) for seed in range(repeats)], dtype=DOUBLE
    )
    limit = right.mean() + 1.645 * right.std() if bool(right.isfinite().all()) else torch.zeros(())
    return float((wrong > limit).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    arguments = parser.parse_args()
    recipe, rows = load_recipe(RECIPE), []
    torch.set_num_threads(1)
    for kind in arguments.kinds:
        for fault in arguments.faults:
            texts = [
                flagged(spoil(make(kind, seed), fault, seed), recipe, fault == "right")
                for seed in range(arguments.repeats)
            ]
            row: dict[str, Any] = {"data": kind, "fault": fault, "repeats": arguments.repeats}
            row["flagged"] = sum(bool(text) for text in texts) / len(texts)
            if fault != "right":
                named = [any(name in w for w in text for name in NAMED[fault]) for text in texts]
                row |= {"named": sum(named) / len(texts), "exact": exact_rate(kind, fault, arguments.repeats)}
            rows.append(row)
            print(row, *{w for text in texts for w in text if fault == "right"}, sep="\n", flush=True)
    if set(arguments.kinds) == set(KINDS) and set(arguments.faults) == set(FAULTS):
        print(record("watch", figures(rows), rows))


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The fraction of correct runs with a warning; for wrong models, the smaller fraction of dense and blurred data."""

    def of(fault: str, kinds: tuple[str, ...]) -> list[float]:
        return [row["flagged"] for row in rows if row["fault"] == fault and row["data"] in kinds]

    alarms = of("right", tuple(KINDS))
    values = {"false_alarms": sum(alarms) / len(alarms), "repeats": rows[0]["repeats"]}
    for fault in FAULTS[1:]:
        values[fault] = min(of(fault, ("dense", "blur") if fault != "shifted" else ("dense", "masks")))
        values |= {f"{fault}_{kind.replace(' ', '_')}": of(fault, (kind,))[0] for kind in KINDS}
    return values


if __name__ == "__main__":
    main()
