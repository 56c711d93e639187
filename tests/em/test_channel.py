"""Whole runs on observations of a channel: starts, measures, resuming, and what the network is trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import diffem
from diffem import InputError, Observations, operators, priors
from diffem.core.randomness import Stream
from diffem.em.conditioning import Simulations
from diffem.em.trainer import Trainer
from diffem.observations.features import features_of
from diffem.observations.lazy import as_lazy
from diffem.priors.family import Family

from .small import CONDITIONAL
from .test_resume import contents, same

RECIPE: dict[str, Any] = {
    **CONDITIONAL,
    "train": {**CONDITIONAL["train"], "measured": 0.0},  # type: ignore[dict-item]
    "e_step": {**CONDITIONAL["e_step"], "shard": 100},  # type: ignore[dict-item]
}
SIZE, PEAK = 4, 20.0


def samples(n: int) -> Tensor:
    angle = 6.3 * torch.rand(n, generator=torch.Generator().manual_seed(0))
    return torch.stack([1 + angle.cos(), 1 + angle.sin(), 1 + (2 * angle).cos(), angle.sin() ** 2], 1) / 2


def simulate(x: Tensor, rng: Any, exposure: Tensor) -> Tensor:
    return rng.poisson(PEAK * exposure * x.clamp(min=0))


def features(y: Tensor, exposure: Tensor) -> Tensor:
    return torch.cat([y / (PEAK * exposure), exposure], 1)


def observations(n: int = 136) -> Observations:
    """Photon counts, with a different exposure for each observation."""
    exposure = 0.5 + torch.rand(n, 1, generator=torch.Generator().manual_seed(1))
    A = operators.Channel(
        simulate, features, (SIZE,), estimate=lambda y, exposure: y / (PEAK * exposure), exposure=exposure
    )
    return Observations(A.simulate(samples(n), Stream(0, "y"), torch.arange(n)), A)


def fit(out: Path, obs: Observations | None = None, **options: Any) -> diffem.em.run.Run:  # type: ignore[name-defined]
    return diffem.fit(obs or observations(), RECIPE, out, progress=False, report=False, device="cpu", **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return fit(tmp_path_factory.mktemp("channel") / "run")


def test_an_interrupted_run_resumes_bit_for_bit(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the middle of a training, whose measurements are simulated at every step."""
    step, steps = Trainer.step, iter(range(1000))

    def interrupted(self: Trainer, *arguments: Any) -> Tensor:
        if next(steps) == 265:  # in the second block
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "again")
    monkeypatch.setattr(Trainer, "step", step)
    fit(tmp_path / "again")
    assert same(contents(run.path), contents(tmp_path / "again"))


def test_a_run_measures_draws_by_simulation(run: Any) -> None:
    for lap in run.laps:
        assert {"heldout_chi2", "simulation_score", "simulated_distance", "halves_distance"} <= lap.keys()
        assert "predictive_log_likelihood" not in lap
        assert len(lap["simulation_each"]) == 16
    assert run.laps[0]["heldout_chi2"] == pytest.approx(1, abs=0.4)  # the Gaussian start draws from the data's channel
    assert run.verdict.best is not None
    assert "simulated" in run.verdict.text


def test_a_loaded_prior_draws_for_its_channel_and_for_no_other(run: Any) -> None:
    prior, obs = diffem.load(run.path), observations()[:5]
    posterior = prior.posterior(obs)
    assert posterior.method == "conditional"
    whole = posterior.sample(steps=4)
    torch.testing.assert_close(prior.posterior(obs[2:4]).sample(steps=4, index=torch.tensor([2, 3])), whole[2:4])
    with pytest.raises(InputError, match="features with 5 channels, these have 4"):
        prior.posterior(Observations(obs.y, operators.Channel(lambda x, rng: rng.poisson(x.abs()), lambda y: y)))
    linear = Observations(obs.y, sigma=0.1)
    with pytest.raises(InputError, match="trained for a Channel"):
        prior.posterior(linear, method="conditional")
    assert prior.posterior(linear, method="mmps").method == "mmps"


def test_without_an_observation_the_network_is_the_prior(run: Any) -> None:
    prior, obs = diffem.load(run.path), observations()[:3]
    known = features_of(obs)
    none = type(known)(known.values, torch.zeros(3, dtype=torch.bool))
    x_t, sigma = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(2)), torch.tensor([0.1, 1.0, 5.0])
    torch.testing.assert_close(prior.denoise_pivot(x_t, sigma, none), prior(x_t, sigma))
    assert not torch.allclose(prior.denoise_pivot(x_t, sigma, known), prior(x_t, sigma))


def test_examples_have_fresh_measurements_at_their_addresses() -> None:
    """The features of an example do not depend on its batch, and differ from position to position and lap to lap."""
    obs = observations()
    made = Simulations(as_lazy(obs), 0.7, 0, torch.device("cpu"))
    x, others = samples(6) / 0.7, torch.tensor([5, 9, -1, 5, 9, 0])
    position = torch.arange(100, 106)
    whole = made.information(x, others, position, 1)
    part = made.information(x[3:], others[3:], position[3:], 1)
    assert torch.equal(whole.values[3:], part.values)
    assert whole.known.tolist() == [True, True, False, True, True, True]
    assert torch.equal(whole.values[:2, SIZE], obs.A._tensors["exposure"][[5, 9], 0])
    for other in (made.information(x, others, position + 6, 1), made.information(x, others, position, 2)):
        assert not torch.equal(whole.values[:, :SIZE], other.values[:, :SIZE])


def test_features_are_standardised_and_described_in_files() -> None:
    obs = observations()
    family = Family.of_channel("Channel", [features_of(obs[:50]), features_of(obs[50:])])
    shown = family.describe(features_of(obs), samples(136), torch.ones(()))
    assert shown.shape[1:] == family.shape == (SIZE + 2,)
    torch.testing.assert_close(shown[:, :-1].mean(0), torch.zeros(SIZE + 1), atol=1e-4, rtol=0)
    torch.testing.assert_close(shown[:, :-1].std(0, correction=0), torch.ones(SIZE + 1), atol=1e-4, rtol=0)
    assert Family.read(family.note()) == family
    with pytest.raises(InputError, match="features"):
        Family.read({**family.note(), "spread": [math.nan] * len(family.spread)})


@pytest.mark.parametrize("kind", ["gaussian", "network"])
def test_a_run_starts_from_a_given_prior(kind: str, run: Any, tmp_path: Path) -> None:
    """A Gaussian is conditioned on the linearised channel; a network without features first draws prior samples."""
    start = priors.fit_gaussian(Observations.clean(samples(200)))
    if kind == "network":
        start = diffem.load(run.path).ordinary()
    again = fit(tmp_path / kind, start=start, changes={"laps": 1, "stages": [], "train.steps": 16})
    assert [lap["lap"] for lap in again.laps] == [0, 1]
    assert ("heldout_chi2" in again.laps[0]) == (kind == "gaussian")
    assert "heldout_chi2" in again.laps[1]


def test_a_channel_without_an_estimate_needs_a_prior_to_start_from(tmp_path: Path) -> None:
    obs = observations()
    A = operators.Channel(simulate, features, (SIZE,), exposure=obs.A._tensors["exposure"])
    with pytest.raises(InputError, match=r"estimate=.*start=prior"):
        fit(tmp_path / "run", Observations(obs.y, A))


def test_other_methods_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"set e_step\.method to conditional"):
        fit(tmp_path / "run", changes={"e_step.method": "mmps"})
    assert not (tmp_path / "run").exists()
