"""The optimizer from lap to lap, with `train.restart: false`."""

from __future__ import annotations

import shutil

import pytest
import torch

import diffem
from diffem.files.tensors import read_tensors

from .small import observations

RECIPE = {
    "name": "optimizer",
    "data": {"source": "given"},
    "laps": 3,
    "gaussian": {"rounds": 2},
    "network": {"kind": "mlp", "hidden": [8], "embedding": 8},
    "e_step": {"steps": 3, "iterations": 1},
    "train": {"steps": 5, "batch": 8, "restart": False},
    "watch": {"held_out": 0, "draws": 2, "samples": 4},
}


def fit(out, stages=(), **train) -> diffem.Run:
    recipe = {**RECIPE, "train": {**RECIPE["train"], **train}, "stages": list(stages)}
    return diffem.fit(observations(40), recipe, out, progress=False, report=False)


@pytest.mark.parametrize(
    ("stages", "train"),
    [
        ([{"lap": 2, "train": {"ema": 0.9}}], {}),
        (
            [
                {"lap": 2, "network": {"hidden": [6]}, "train": {"conditioned": 0.0}},
                {"lap": 3, "train": {"conditioned": 0.5}},
            ],
            {"conditioned": 0.5},
        ),
    ],
    ids=["averaged weights begin", "inputs for operators return"],
)
def test_a_stage_may_change_what_is_trained(stages, train, tmp_path):
    run = fit(tmp_path / "run", stages, **train)
    assert len(run.laps) == 4
    assert not any(lap["notes"] for lap in run.laps[1:])


@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_optimizer_continues_from_the_lap_before(first, tmp_path):
    """Its step counter is that of all laps since the first one with a new optimizer."""
    run = fit(tmp_path / "run", [{"lap": first, "train": {"restart": False}}], restart=True)
    tensors, _ = read_tensors(run.path / "laps/003/optimizer.safetensors")
    assert float(tensors["adam.0.step"]) == 5 * min(3, 5 - first)


def test_a_lap_that_is_trained_again_without_the_state_of_the_optimizer_says_so(tmp_path):
    run = fit(tmp_path / "run")
    weights = next(run.prior.network.parameters()).clone()
    shutil.rmtree(run.path / "laps/003")  # the state at the end of lap 2 was removed when lap 3 was trained
    run = fit(tmp_path / "run")
    assert not torch.equal(next(run.prior.network.parameters()), weights)
    assert "the optimizer state of lap 2 is missing" in " ".join(run.laps[3]["notes"])
