"""Runs on observations of different kinds, with weights."""

from __future__ import annotations

import pytest
import torch

import diffem
from diffem import Observations, operators
from diffem.core.randomness import Stream
from diffem.em.augment import Augment
from diffem.em.examples import Examples
from diffem.em.noise_law import noise_law
from diffem.runs.recipe import Noise
from tests.em.small import RECIPE, observations


@pytest.fixture(scope="module")
def joined() -> Observations:
    """Masked vectors, clean ones, and sums of neighbouring entries."""
    generator = torch.Generator().manual_seed(1)
    angle = 6.3 * torch.rand(40, generator=generator)
    x = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos(), angle.sin() ** 2], 1)
    sums = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    y = x[8:] @ sums.T + 0.1 * torch.randn(32, 2, generator=generator)
    clean = Observations(x[:8], operators.Identity(), sigma=0.05)
    return Observations.concatenate(
        [observations(), clean, Observations(y, operators.Dense(sums), sigma=0.1)], weights=[1, 6, 1]
    )


def test_a_run_learns_from_all_kinds_and_evaluates_held_out_ones(joined, tmp_path):
    run = diffem.fit(joined, RECIPE, tmp_path / "run", progress=False, report=False)
    last = run.laps[-1]
    assert last["chi2"] < 2  # of the draws per measured value; rejected ones are drawn again
    assert last["predictive_log_likelihood"] > -3


def test_an_epoch_uses_each_draw_as_often_as_its_weight():
    draws, repeats = torch.zeros(5, 2), torch.tensor([1, 3, 1, 2, 1])
    law = noise_law(Noise(), 0.02, 20.0)
    examples = Examples(draws, 4, law, Augment([], (2,)), Stream(0, "training", 1), repeats=repeats)
    for epoch in range(2):
        rows = examples.rows(torch.arange(8 * epoch, 8 * epoch + 8))
        assert rows.bincount().tolist() == repeats.tolist()
