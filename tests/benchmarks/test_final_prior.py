"""The final prior of CIFAR-10 in small: exports while it trains, and a measurement whatever ends the training."""

import json
import sys

import pytest
import torch

import diffem
from benchmarks import final_prior
from diffem.em import maximization
from diffem.em.exports import export, read_card
from diffem.em.trainer import Trainer
from diffem.linalg import Isotropic
from diffem.priors import GaussianPrior

from ..em.small import observations
from ..em.test_chain import CHAIN

NETWORK = {"kind": "unet", "hidden": [8, 8], "blocks": 1, "heads": [0, 0], "embedding": 8}
FINAL = {"e_step": {"draws": 1, "steps": 2}, "train": {"steps": 4, "warmup": 2, "batch": 2}}


def test_a_training_is_exported_and_measured(assets, tmp_path, capsys):
    export(GaussianPrior(torch.zeros(3, 32, 32), Isotropic(1.0)), tmp_path / "start")
    changes = [f"start={tmp_path / 'start'}", f"network={NETWORK}", f"final={FINAL}", "precision=float32"]
    changes += ["watch.held_out=0", "watch.samples=2"]
    sizes = ["--samples", "12", "--steps", "2", "--batch", "4"]
    folders = ["--exports", f"{tmp_path}/exports", "--out", f"{tmp_path}/run", "--results", f"{tmp_path}/results"]
    final_prior.main(["--compile", *sizes, "--set", *changes])
    assert "the networks are compiled" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    final_prior.main([*folders, "--assets", str(assets), *sizes, "--set", *changes])
    result = json.loads((tmp_path / "results" / "cifar10-final.json").read_text())
    figures = result["figures"]
    assert (figures["final"], figures["images_seen"], figures["samples"]) == (1, 8, 12)
    assert figures["fid_0k"] > 0
    assert figures["gpu_minutes"] > 0
    assert "steps_done" not in figures
    assert (figures["laps_before"], figures["laps"]) == (0, 1)
    assert (tmp_path / "results" / "cifar10-final.png").is_file()
    measured = ["--measure", f"{tmp_path}/exports/newest", "--results", f"{tmp_path}/again", "--assets", str(assets)]
    final_prior.main([*measured, *sizes])
    again = json.loads((tmp_path / "again" / "cifar10-final.json").read_text())
    assert again["figures"] == figures
    card = read_card(tmp_path / "exports" / "newest")
    assert card["range"] == [-2.0, 255 / 64 - 2]
    assert card["training"]["operators"]["kind"] == "Mask"
    prior = diffem.load(tmp_path / "exports" / "newest")
    assert prior.sample(1, steps=2, progress=False).shape == (1, 3, 32, 32)


def test_a_training_that_fails_leaves_its_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(maximization, "_block_steps", lambda *_: 20)
    step, seen = Trainer.step, []

    def stopped(*arguments):
        seen.append(1)
        if len(seen) == 50:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(Trainer, "step", stopped)
    recipe, prior = {**CHAIN, "laps": 0}, GaussianPrior(torch.zeros(4), torch.eye(4))
    recipe["train"] = {**recipe["train"], "checkpoint_seconds": 1e-9}  # after every block of steps
    with pytest.raises(KeyboardInterrupt):
        diffem.fit(observations(), recipe, tmp_path / "run", start=prior, progress=False, report=False)
    newest = tmp_path / "exports" / "newest"
    newest.mkdir(parents=True)
    (newest / "old").touch()  # an earlier export, which is replaced as a whole
    assert final_prior.train([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "run", newest, 60.0, dict) == 3
    assert read_card(newest)["training"]["unfinished"]["steps"] == 40
    assert not (newest / "old").exists()
