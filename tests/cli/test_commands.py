"""The command line, end to end on a small run, and its error messages."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from diffem import Observations, load, operators
from diffem.metrics import to_uint8
from diffem.posterior import METHODS
from diffem.runs.rundir import RunDir
from diffem.runs.sources import make_problem

from ..command import diffem
from ..metrics.extractors import write_extractor

SETTINGS = [
    "laps=1", "train.steps=64", "train.first_steps=64", "train.batch=32", "network.hidden=[32]", "e_step.steps=4",
    "gaussian.rounds=3", "watch.held_out=16", "watch.samples=32", "watch.draws=2", "e_step.redraws=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "digits"
    changes = [word for setting in SETTINGS for word in ("--set", setting)]
    result = diffem("fit", "digits", "-o", folder, *changes)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_fit_shows_laps_and_ends_with_the_report(run):
    folder, output = run
    assert "1733 observations" in output or "1781 observations" in output
    assert output.strip().splitlines()[-1] == f"report  {folder}/report.html"
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 5
    assert (
        "://" not in page
    )  # the page is self-contained; inlined pictures are letters and digits, in which any word can occur by chance
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [m["lap"] for m in metrics] == [0, 1]
    assert {
        "heldout_chi2",
        "predictive_log_likelihood",
        "observation_distance",
        "rejected",
        "guards",
        "loss",
    } <= metrics[1].keys()
    assert RunDir(folder).info()["status"] == "finished"


def test_a_repeated_command_does_nothing(run):
    folder, _ = run
    changes = [word for setting in SETTINGS for word in ("--set", setting)]
    result = diffem("fit", "digits", "-o", folder, *changes)
    assert result.returncode == 0
    assert "all laps are done" in result.stdout


def test_sample_writes_arrays_and_pictures(run, tmp_path):
    folder, _ = run
    for name in ("x.npy", "x.png"):
        result = diffem("sample", folder, "-n", 9, "-o", tmp_path / name, "--steps", 4)
        assert result.returncode == 0, result.stderr
    assert np.load(tmp_path / "x.npy").shape == (9, 8, 8)
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


def test_export_writes_a_folder_that_can_be_loaded(run, tmp_path):
    from diffem.em import exports as hub

    folder, _ = run
    result = diffem("export", folder, "-o", tmp_path / "prior", "--notes", "Digits.")
    assert result.returncode == 0, result.stderr
    card = hub.read_card(tmp_path / "prior")
    assert card["training"]["operators"]["kind"] == "Mask"
    assert card["range"] == [-2, 2]
    x_t = torch.randn(2, 8, 8)
    assert torch.equal(hub.load(tmp_path / "prior")(x_t, 1.0), load(folder)(x_t, 1.0))


def test_posterior_writes_draws_with_their_mean(run, tmp_path):
    folder, _ = run
    mask = torch.rand(3, 8, 8) < 0.5
    Observations(torch.randn(3, 8, 8), operators.Mask(mask), sigma=0.1).save(tmp_path / "obs.safetensors")
    result = diffem(
        "posterior", folder, tmp_path / "obs.safetensors", "-o", tmp_path / "p.npz", "--draws", 2, "--steps", 4
    )
    assert result.returncode == 0, result.stderr
    saved = np.load(tmp_path / "p.npz")
    assert saved["draws"].shape == (2, 3, 8, 8)
    assert np.allclose(saved["mean"], saved["draws"].mean(0), atol=1e-6)
    assert saved["std"].shape == (3, 8, 8)


def test_iterations_are_for_the_methods_that_have_a_solver():
    """The registry decides: every method with a parameter `iterations`, including sigma_x, and no other."""
    from diffem.cli.drawing import methods_with_iterations

    solving = {name for name, method in METHODS.items() if hasattr(method, "iterations")}
    assert set(methods_with_iterations()) == solving >= {"mmps", "sigma_x", "tmpd"}
    assert not solving & {"conditional", "dps", "exact"}


def test_posterior_counts_draws_that_fail_the_screening(run, tmp_path):
    """Values that no digit has, half of them hidden, so that no draw is plausible."""
    folder, _ = run
    mask = torch.rand(3, 8, 8) < 0.5
    Observations(50 * torch.randn(3, 8, 8), operators.Mask(mask), sigma=0.1).save(tmp_path / "obs")
    result = diffem("posterior", folder, tmp_path / "obs", "-o", tmp_path / "p.npz", "--draws", 2, "--steps", 4)
    assert result.returncode == 0
    assert "the screening of the E-step rejects 6 of 6 draws" in result.stderr


def test_posterior_uses_the_options_of_the_run(run, tmp_path):
    """Options that are not given are those of the run; given options take precedence."""
    folder, _ = run
    Observations(torch.randn(3, 8, 8), operators.Mask(torch.rand(3, 8, 8) < 0.5), sigma=0.1).save(tmp_path / "obs")
    draws = {}
    for name, words in {
        "absent": (),
        "said": ("--method", "mmps", "--iterations", 3, "--sampler", "ddpm2"),
        "few": ("--batch", 2),
        "other": ("--iterations", 1),
        "particles": ("--sampler", "tds"),
    }.items():
        asked = ("--draws", 2, "--steps", 4, *words)
        result = diffem("posterior", folder, tmp_path / "obs", "-o", tmp_path / f"{name}.npz", *asked)
        assert result.returncode == 0, result.stderr
        draws[name] = np.load(tmp_path / f"{name}.npz")["draws"]
    assert np.array_equal(draws["absent"], draws["said"])
    # rounding, which can decide whether the guard stops a solve
    assert np.median(np.abs(draws["absent"] - draws["few"])) < 1e-5
    assert not np.allclose(draws["absent"], draws["other"], atol=1e-3)
    assert not np.allclose(draws["absent"], draws["particles"], atol=1e-3)


def test_evaluate_prints_measures_against_the_truth(run):
    folder, _ = run
    result = diffem("evaluate", folder, "--reference", "source", "--draws", 2, "--samples", 32)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert {"mse_draw", "mse_mean2", "coverage90", "sliced_wasserstein", "frechet", "heldout_chi2"} <= values.keys()
    assert "mse_draw" not in json.loads(diffem("evaluate", folder, "--samples", 32).stdout)


def test_evaluate_measures_images_with_an_extractor(run, tmp_path, monkeypatch):
    """FID and KID with an extractor named on the command line, against pixels whose range is an option."""
    folder, _ = run
    monkeypatch.setenv("DIFFEM_CACHE", str(tmp_path / "cache"))
    x = make_problem("digits", 0, {}).reference[:100]
    np.savez(tmp_path / "truth.npz", images=to_uint8(x, (-2, 2))[:, 0].numpy())
    options = ["--draws", 0, "--samples", 32, "--steps", 4, "--extractor", write_extractor(tmp_path / "small.pt")]
    result = diffem("evaluate", folder, "--reference", tmp_path / "truth.npz", "--range", -2, 2, *options)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["fid"] > 0
    assert (values["samples"], values["reference_images"]) == (32, 100)
    assert {"kid", "kid_std", "frechet"} <= values.keys()
    assert "mse_draw" not in values
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_report_writes_the_page_again(run):
    folder, _ = run
    (folder / "report.html").unlink()
    assert diffem("report", folder).returncode == 0
    assert (folder / "report.html").is_file()


def test_recipes_and_version():
    listing = diffem("recipes").stdout
    assert all(name in listing for name in ("digits", "manifold", "manifold-quick"))
    command = [sys.executable, "-m", "diffem", "--version"]  # a separate process, once
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("diffem 0.")


class TestBadInput:
    """One clear message, exit code 2, nothing overwritten."""

    def refused(self, words, *arguments):
        import re

        result = diffem(*arguments)
        assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
        assert re.search(words, result.stderr, re.DOTALL), result.stderr
        assert "Traceback" not in result.stderr
        return result

    def test_bad_recipes_and_keys_are_named(self, tmp_path):
        self.refused("unknown recipe 'nope'.*digits", "fit", "nope", "-o", tmp_path / "x")
        self.refused("unknown key 'train.lrr'", "fit", "digits", "--set", "train.lrr=1", "-o", tmp_path / "x")
        self.refused("train.lr", "fit", "digits", "--set", "train.lr=high", "-o", tmp_path / "x")
        self.refused(
            "unknown network 'transformer'",
            "fit",
            "digits",
            "--set",
            "network={kind: transformer}",
            "-o",
            tmp_path / "x",
        )
        self.refused("unknown sampler 'euler'", "fit", "digits", "--set", "e_step.sampler=euler", "-o", tmp_path / "x")
        assert not (tmp_path / "x").exists()

    def test_folders_with_other_contents(self, run, tmp_path):
        folder, _ = run
        before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file() and f.name != ".lock"}
        words = r"another recipe.*train.lr: 0.001 → 0.5 \(old → new\); restore the old values, or choose another folder"
        self.refused(words, "fit", "digits", "-o", folder, "--set", "train.lr=0.5",
                     *[w for s in SETTINGS for w in ("--set", s)])  # fmt: skip
        assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file() and f.name != ".lock"} == before
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "thesis.tex").write_text("precious")
        self.refused("not empty and contains no run", "fit", "digits", "-o", tmp_path / "full")
        assert (tmp_path / "full" / "thesis.tex").read_text() == "precious"
        self.refused("no recipe.yaml", "sample", tmp_path / "full")
        self.refused("is not a run folder: the folder does not exist", "report", tmp_path / "nowhere")

    def test_a_run_of_another_version(self, run, tmp_path):
        import shutil

        folder, _ = run
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        info = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps({**info, "version": "9.0.0"}))
        self.refused(
            r"version 9.0.0 of diffem, this is version 0",
            "fit",
            "digits",
            "-o",
            copy,
            *[w for s in SETTINGS for w in ("--set", s)],
        )

    def test_damaged_files_are_named(self, run, tmp_path):
        import shutil

        folder, _ = run
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        prior = copy / "laps/001/prior.safetensors"
        prior.write_bytes(prior.read_bytes()[:-100])
        self.refused("prior.safetensors cannot be read", "sample", copy)
        (copy / "laps/001/samples.npy").write_bytes(b"nonsense")
        # recomputed from the lap's prior, which cannot be read either
        self.refused("prior.safetensors cannot be read", "report", copy)
        (copy / "run.json").write_text("{")
        self.refused("run.json cannot be read", "report", copy)
        self.refused("obs.safetensors cannot be read", "posterior", folder, tmp_path / "obs.safetensors", "-o", "p.npz")
        self.refused("lap 7 is not finished; finished laps are 0 to 1", "sample", folder, "--lap", 7)
        self.refused("must end in .npy or .png", "sample", folder, "-n", 2, "--steps", 2, "-o", tmp_path / "x.gif")
