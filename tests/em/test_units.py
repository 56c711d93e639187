"""Data in other units give the same run in other units: data × c give priors, draws and noise levels × c."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.datasets.digits import digits
from diffem.datasets.manifold import manifold
from diffem.priors import FitHistory

RECIPE: dict[str, Any] = {
    "name": "units",
    "data": {"source": "given"},
    "laps": 2,
    "gaussian": {"rounds": 6},
    "network": {"kind": "mlp", "hidden": [32, 32], "embedding": 16},
    "e_step": {"steps": 6, "plausible": 4.0, "bound": 4.0, "chi2": 10.0},
    "train": {"steps": 30, "batch": 32, "measured": 0.5, "ema": 0.9},
    "watch": {"held_out": 16, "draws": 4, "samples": 16},
}
PROBLEMS = {
    "masks": lambda: digits(0).obs[:96],
    "dense": lambda: manifold(0, n=96).obs,
}


def fit(obs: Observations, path: Path) -> diffem.Run:
    return diffem.fit(obs, RECIPE, path, progress=False)


@pytest.mark.parametrize(
    ("problem", "exponents"),
    [
        ("masks", (-20, 10)),
        ("dense", (-10, 20)),
        pytest.param("masks", (-10, 20), marks=pytest.mark.slow),
        pytest.param("dense", (-20, 10), marks=pytest.mark.slow),
    ],
)
def test_a_run_on_scaled_data_is_the_scaled_run_bit_for_bit(
    problem: str, exponents: tuple[int, ...], tmp_path: Path
) -> None:
    obs = PROBLEMS[problem]()
    plain = fit(obs, tmp_path / "plain")
    for factor in (2.0**k for k in exponents):  # multiplying by a power of two rounds nothing
        scaled = fit(obs.scaled(factor), tmp_path / f"{factor}")
        for lap in (0, 1, 2):
            ours, theirs = diffem.load(plain.path, lap), diffem.load(scaled.path, lap)
            assert theirs.scale == factor * ours.scale
            assert (theirs.sigma_min, theirs.sigma_max) == (factor * ours.sigma_min, factor * ours.sigma_max)
            assert torch.equal(theirs.mean, factor * ours.mean)
            if lap:
                weights = theirs.network.state_dict()  # type: ignore[union-attr]
                for name, weight in ours.network.state_dict().items():  # type: ignore[union-attr]
                    assert torch.equal(weights[name], weight), (lap, name)
            for name in ("samples.npy", "posterior.npy", *(["draws/00000.npy"] if lap else [])):
                ours_x, theirs_x = (np.load(run.path / "laps" / f"{lap:03d}" / name) for run in (plain, scaled))
                np.testing.assert_array_equal(theirs_x, np.float32(factor) * ours_x, err_msg=f"{lap} {name}")
        # what a lap measures: ratios stay, densities per value fall by log c, distances grow by c
        for ours_m, theirs_m in zip(plain.laps, scaled.laps, strict=True):
            for key in ("chi2", "heldout_chi2", "rejected", "guards", "loss"):
                assert theirs_m.get(key) == ours_m.get(key), (ours_m["lap"], key)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize(("problem", "rank"), [("masks", None), ("masks", 4), ("dense", None), ("dense", 2)])
def test_the_gaussian_start_reaches_the_same_likelihood_in_any_units(
    problem: str, rank: int | None, factor: float
) -> None:
    obs = PROBLEMS[problem]()
    reached = []
    for c in (1.0, factor):
        history = FitHistory()
        priors.fit_gaussian(obs.scaled(c), rank, rounds=8, history=history, progress=False)
        reached.append(history.log_likelihood[-1] + math.log(c))  # per value, in the units of the unscaled data
    # y in float32 carries 6e-8 relative rounding, which moves eight rounds by about as much
    assert reached[1] == pytest.approx(reached[0], abs=1e-6)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("method", ["mmps", "sigma_t", "sigma_x", "identity", "dps", "pigdm", "tmpd", "diffpir"])
def test_posterior_draws_have_the_same_spread_in_any_units(method: str, factor: float) -> None:
    torch.manual_seed(0)
    root = torch.randn(6, 6, dtype=torch.float64)
    mean, cov = torch.randn(6, dtype=torch.float64), root @ root.T + 0.1 * torch.eye(6, dtype=torch.float64)
    A = operators.Dense(torch.randn(3, 6, dtype=torch.float64))
    y = torch.randn(1, 3, dtype=torch.float64)

    def draws(c: float) -> torch.Tensor:
        prior = priors.GaussianPrior(c * mean, c**2 * cov)
        return prior.posterior(Observations(c * y, A, sigma=0.1 * c), method=method).sample(64, steps=16)

    # the same random numbers: what differs is rounding, 1e-16 times the condition of the systems
    torch.testing.assert_close(draws(factor) / factor, draws(1.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sampler", ["ddpm2", "heun", "pc", "tds"])
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_mixtures_and_samplers_have_no_units_of_their_own(sampler: str, factor: float) -> None:
    torch.manual_seed(0)
    weights, means, stds = torch.rand(3).double(), torch.randn(3, 2).double(), 0.1 + torch.rand(3).double()
    A, y = operators.Dense(torch.tensor([[1.0, 0.5]]).double()), torch.tensor([[0.3]]).double()

    def draws(c: float) -> torch.Tensor:
        prior = priors.MixturePrior(weights, c * means, c * stds)
        posterior = prior.posterior(Observations(c * y, A, sigma=0.1 * c)).sample(32, steps=16, sampler=sampler)
        return torch.cat([posterior.flatten(0, 1), prior.sample(32, steps=16, sampler=sampler)])

    torch.testing.assert_close(draws(factor) / factor, draws(1.0), rtol=1e-6, atol=1e-6)


def test_noise_far_below_the_range_extends_it() -> None:
    """Each observation has its own last noise level; every draw has the spread of its own posterior."""
    prior = priors.GaussianPrior(torch.zeros(4).double(), torch.eye(4).double())
    noise = torch.tensor([1.0, 1e-1, 1e-2, 1e-3, 1e-5], dtype=torch.float64)
    mask = torch.tensor([True, True, False, False]).expand(5, 4)
    obs = Observations(torch.zeros(5, 4).double(), operators.Mask(mask), sigma=noise)
    posterior = prior.posterior(obs, "mmps")
    assert posterior.last_levels.tolist() == [prior.sigma_min] * 4 + [prior.sigma_min / 512]  # below 1e-5 / 4
    spread = posterior.sample(1024, steps=64).std(0)
    # 2048 values give the standard deviation to 1.6 %, and 64 steps to 1 %
    exact = 1 / (1 + 1 / noise**2).sqrt()
    narrower = 1 / (1 + (posterior.last_levels / exact) ** 2).sqrt()  # by the last denoising, which returns a mean
    torch.testing.assert_close(spread[:, :2].square().mean(1).sqrt(), exact * narrower, rtol=0.06, atol=0)
    torch.testing.assert_close(spread[:, 2:].square().mean(1).sqrt(), torch.ones(5).double(), rtol=0.06, atol=0)


def test_draws_for_precise_and_noisy_observations_are_scaled_bit_for_bit() -> None:
    prior = priors.MixturePrior(
        torch.tensor([0.4, 0.6]), torch.tensor([[0.0, 1.0], [-1.0, 2.0]]), torch.tensor([0.3, 0.5])
    )
    obs = Observations(torch.linspace(-1, 2, 24).reshape(12, 2), sigma=torch.logspace(-6, 0, 12))
    x = prior.posterior(obs, "mmps").sample(2, steps=8)
    for factor in (2.0**-20, 2.0**20):
        scaled = priors.MixturePrior(prior.weights, factor * prior.means, factor * prior.stds)
        assert torch.equal(scaled.posterior(obs.scaled(factor), "mmps").sample(2, steps=8), factor * x)


def test_a_prior_of_the_first_format_has_unit_scale(tmp_path: Path) -> None:
    from diffem.files.writing import write_tensors
    from diffem.priors.files import load_prior, pack

    network = diffem.nn.networks.make_network("mlp", (3,), {"hidden": [8]})  # type: ignore[attr-defined]
    prior = priors.DiffusionPrior(network, (3,), settings={"kind": "mlp", "hidden": [8]})
    tensors, description = pack(prior)
    old = {name: value for name, value in description.items() if name not in ("scale", "trained_min")}
    write_tensors(tmp_path / "old.safetensors", tensors, {**old, "format": "diffem-prior-1"})
    again = load_prior(tmp_path / "old.safetensors")
    x = torch.randn(5, 3)
    assert again.scale == 1.0
    assert torch.equal(again(x, 0.7), prior(x, 0.7))
