"""Bad input to every command: exit code 2, a message that names it, and no computation or output before."""

import re

import numpy as np
import pytest
import torch

from diffem import InputError, Observations, operators
from diffem.em.evaluation import _reference
from diffem.posterior import METHODS
from diffem.samplers import SAMPLERS

from ..command import diffem
from ..hostile.sound import EVENT, RECIPE, write_sound


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Valid inputs, a file, an empty folder, a run without laps, and observations of another shape."""
    folder = tmp_path_factory.mktemp("refusals")
    write_sound(folder)
    (folder / "file").write_text("x")
    np.save(folder / "array.npy", np.zeros((2, 4)))
    (folder / "empty").mkdir()
    (folder / "begun").mkdir()
    for name in ("recipe.yaml", "run.json"):
        (folder / "begun" / name).write_bytes((folder / "run" / name).read_bytes())
    mask = torch.ones(2, 3, 3, dtype=torch.bool)
    Observations(torch.zeros(2, 3, 3), operators.Mask(mask), sigma=0.1).save(folder / "other.safetensors")
    return folder


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}


QUICK = "-n 2 --steps 2"
DRAWS = "--draws 2 --steps 2 -o {home}/p.npz"
EVALUATE = "--draws 0 --samples 8 --steps 2"
MRI = "--accel 2 --slices 2 --draws 2 --steps 2 -o {home}/mri"

REFUSED = [
    # paths that are no runs, or runs without laps
    *((f"{command} {{home}}/{place} {rest}", words)
      for command, rest in [("sample", QUICK), ("posterior", "{home}/obs.safetensors " + DRAWS), ("report", ""),
                            ("evaluate", EVALUATE), ("export", "-o {home}/e"), ("mri", MRI), ("app", "--port 0")]
      for place, words in [("nowhere", "not a run"), ("empty", "not a run"), ("begun", "no lap of this run")]
      if (command, place) != ("app", "begun")),
    # files of another kind
    ("sample {home}/file -o {home}/x.npy " + QUICK, "cannot be read as a prior"),
    ("sample {home}/obs.safetensors " + QUICK + " -o {home}/x.npy", "not a prior of this library"),
    ("evaluate {home}/prior.safetensors " + EVALUATE, "not a run"),
    ("posterior {home}/run {home}/file " + DRAWS, "cannot be read as an observations file"),
    ("posterior {home}/run {home}/empty " + DRAWS, "not a file but a folder"),
    ("posterior {home}/run {home}/nowhere " + DRAWS, "No such file"),
    ("posterior {home}/run {home}/prior.safetensors " + DRAWS, "not an observations file of this library"),
    ("evaluate {home}/run --reference {home}/nowhere " + EVALUATE, "No such file"),
    ("evaluate {home}/run --reference {home}/file " + EVALUATE, "cannot be read as an array"),
    ("fit {home}/file -o {home}/new", "a recipe is a mapping"),
    ("fit {home}/run -o {home}/new", "unknown recipe"),
    ("prepare {home}/file -o {home}/x.npz", "not a folder, a tar archive or an .npz"),
    ("prepare {home}/empty -o {home}/x.npz", "images in"),
    ("app {home}/run --port 0 --observations {home}/file", "cannot be read as an observations file"),
    # another shape
    ("posterior {home}/run {home}/other.safetensors " + DRAWS,
     r"observations of x with shape \(4,\), as .*run, got \(3, 3\)"),
    ("posterior {home}/prior.safetensors {home}/other.safetensors " + DRAWS,
     r"must contain observations of x with shape \(4,\).*got \(3, 3\)"),
    # an array without its noise level
    ("posterior {home}/run {home}/array.npy " + DRAWS, r"is an array: give its noise level too \(--sigma 0.1"),
    # laps
    ("sample {home}/run --lap 1 " + QUICK, "lap 1 is not finished; finished laps are 0 to 0"),
    ("sample {home}/run --lap -1 " + QUICK, "lap -1 is not finished"),
    ("sample {home}/run --lap last " + QUICK, "'--lap': must be a number or 'best', got 'last'"),
    ("export {home}/run --lap 5 -o {home}/e", "lap 5 is not finished"),
    ("evaluate {home}/run --lap 5 " + EVALUATE, "lap 5 is not finished"),
    ("sample {home}/prior.safetensors --lap 7 -o {home}/x.npy " + QUICK, "the file of one prior: it has no lap 7"),
    ("posterior {home}/prior.safetensors {home}/obs.safetensors --lap 7 " + DRAWS, "it has no lap 7"),
    # output paths, which are checked before the computation
    ("sample {home}/prior.safetensors " + QUICK, "--out is required"),
    ("sample {home}/run -o {home}/x.gif " + QUICK, r"--out must end in \.npy or \.png"),
    ("sample {home}/run -o {home}/file/x.npy " + QUICK, "--out: .*file is a file, not a folder"),
    ("posterior {home}/run {home}/obs.safetensors -o {home}/p.npy",
     r"--out must end in \.npz, \.nii, \.nii\.gz or \.png"),
    ("posterior {home}/run {home}/obs.safetensors -o {home}/p.nii", "a volume needs image slices"),
    ("posterior {home}/run {home}/obs.safetensors -o {home}/file/p.npz", "is a file, not a folder"),
    ("export {home}/run -o {home}/file", "--out: .*file is a file, not a folder"),
    ("export {home}/run -o {home}/file/e", "--out: .*file is a file, not a folder"),
    ("prepare {home}/images -o {home}/x.zip", r"--out must end in \.npz"),
    ("prepare {home}/images -o {home}/file/x.npz", "is a file, not a folder"),
    ("observe {home}/recipe.yaml -o {home}/run/run.json", r"--out must end in \.safetensors"),
    ("observe {home}/recipe.yaml -o {home}/file/y.safetensors", "is a file, not a folder"),
    ("observe {home}/recipe.yaml -o {home}/y.safetensors --truth {home}/y.safetensors", r"--truth must end in \.npy"),
    ("mri {home}/run --accel 2 -o {home}/file", "--out: .*file is a file, not a folder"),
    ("fit {home}/recipe.yaml -o {home}/file", "is a file, not a folder"),
    ("fit {home}/recipe.yaml -o {home}/file/run", "Not a directory"),
    # numbers
    ("sample {home}/run -n 0", "-n"),
    ("sample {home}/run -n -3", "-n"),
    ("sample {home}/run -n 99999999999", "-n 99999999999 takes .* of memory"),
    ("sample {home}/run -n 2 --steps 0", "--steps"),
    ("sample {home}/run -n 2 --steps 99999999999", "--steps"),
    ("sample {home}/run --batch 0 " + QUICK, "--batch"),
    ("posterior {home}/run {home}/obs.safetensors -o {home}/p.npz --draws 0", "--draws"),
    ("posterior {home}/run {home}/obs.safetensors -o {home}/p.npz --draws 99999999999",
     "--draws 99999999999 takes .* of memory"),
    ("posterior {home}/run {home}/obs.safetensors --iterations 0 " + DRAWS, "--iterations"),
    ("evaluate {home}/run --range 1 1 " + EVALUATE, "--range must be two finite numbers, the lower first, got 1 1"),
    ("evaluate {home}/run --range 2 -2 " + EVALUATE, "--range"),
    ("evaluate {home}/run --range nan 2 " + EVALUATE, "--range"),
    ("prepare {home}/images --size 0 -o {home}/x.npz", "--size"),
    ("prepare {home}/images --size 99999999 -o {home}/x.npz", "--size"),
    ("observe {home}/recipe.yaml -o {home}/y.safetensors -n 0", "-n"),
    ("observe {home}/recipe.yaml -o {home}/y.safetensors -n -4", "-n"),
    ("mri {home}/run --slices 0 -o {home}/mri", "--slices"),
    ("mri {home}/run --figures -1 -o {home}/mri", "--figures"),
    ("mri {home}/run --crop 99 -o {home}/mri", "--crop must be at most 4"),
    ("mri {home}/run --steps 0 -o {home}/mri", "--steps"),
    ("mri {home}/run --batch 0 -o {home}/mri", "--batch"),
    ("mri {home}/run --accel 2,x -o {home}/mri", "--accel must be numbers"),
    ("mri {home}/run --accel 2,4,2 -o {home}/mri", "--accel contains an acceleration twice"),
    ("app {home}/run --port 70000", "--port"),
    # names
    ("sample {home}/run --sampler euler " + QUICK, "unknown sampler 'euler'; known: ddim"),
    ("posterior {home}/run {home}/obs.safetensors --sampler euler " + DRAWS, "unknown sampler 'euler'"),
    ("posterior {home}/run {home}/obs.safetensors --method best " + DRAWS,
     "unknown posterior method 'best'; known: .*sigma_x"),
    ("posterior {home}/run {home}/obs.safetensors --method dps --iterations 5 " + DRAWS,
     "--iterations needs a method with a linear solver"),
    # settings
    ("fit {home}/recipe.yaml --set laps -o {home}/new", "--set needs key=value"),
    ("fit {home}/recipe.yaml --set train.lrr=1 -o {home}/new", "unknown key 'train.lrr'"),
    ("fit {home}/recipe.yaml --set network.depth=1 -o {home}/new", "does not take these settings"),
    ("fit {home}/recipe.yaml --set data.depth=1 -o {home}/new", "does not accept these settings"),
    ("fit {home}/recipe.yaml --set train.betas=[2,3] -o {home}/new",
     "train.betas.0: input should be less than 1, got 2"),
    ("fit {home}/recipe.yaml --set sigma_min=50 -o {home}/new",
     r"recipe\.yaml: sigma_min 50.0 must lie below sigma_max 20.0$"),
    ("fit {home}/recipe.yaml --seed -1 -o {home}/new", "seed: input should be greater"),
    ("observe {home}/recipe.yaml --set laps=3 -o {home}/y.safetensors",
     "--set accepts only settings of the data source here.*got laps"),
    ("mri {home}/run --set laps=3 -o {home}/mri", "--set accepts only settings of the data source here.*got laps"),
    ("mri {home}/run --set data.accel=3 -o {home}/mri", "--set data.accel has no effect here"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_bad_input_is_refused_before_anything_is_done(home, command, words):
    before = contents(home)
    result = diffem(*(word.format(home=home) for word in command.split()))
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert re.search(words, " ".join(result.stderr.split())), result.stderr
    assert "Traceback" not in result.stderr
    assert contents(home) == before


def test_help_lists_the_entries_of_the_registries():
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", diffem("posterior", "--help").stdout).split())
    for name in (*METHODS, *SAMPLERS):
        assert re.search(rf"\b{name}\b", text), name


def test_one_draw_has_no_standard_deviation(home, tmp_path):
    """Earlier versions wrote NaN to .npz files and zero to NIfTI files."""
    options = ("--draws", 1, "--steps", 2, "-o", tmp_path / "p.npz")
    result = diffem("posterior", home / "run", home / "obs.safetensors", *options)
    assert result.returncode == 0, result.stderr
    saved = np.load(tmp_path / "p.npz")
    assert sorted(saved) == ["chi2", "draws", "mean"]
    assert np.array_equal(saved["mean"], saved["draws"][0])


def test_running_out_of_memory_is_one_line(home, monkeypatch):
    """An allocation that no check predicted can fail at any point."""

    def fail(*arguments, **options):
        return torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr("diffem.priors.GaussianPrior.sample", fail)
    result = diffem("sample", home / "run", "-n", 2, "--steps", 2, "-o", home / "x.npy")
    assert result.returncode == 1
    assert result.stderr.startswith("diffem: out of memory")
    assert len(result.stderr.splitlines()) == 1


def test_a_training_that_diverges_is_one_line(home, tmp_path):
    result = diffem("fit", home / "recipe.yaml", "-o", tmp_path / "run", "--set", "train.lr=1e30")
    assert result.returncode == 1
    (line,) = [text for text in result.stderr.splitlines() if text.startswith("diffem:")]
    assert re.search(r"the loss of lap 1 became .* 6 times .* lower train\.lr in a new run", line)


def test_samples_of_equal_number_are_not_mistaken_for_the_true_x(tmp_path):
    """Errors against unrelated samples would be meaningless; the residuals distinguish the two cases."""
    from diffem.runs.sources import make_problem

    options = {name: value for name, value in RECIPE["data"].items() if name != "source"}
    problem = make_problem("manifold", 0, {**options, "n": 256})
    truth = problem.reference
    assert tuple(truth.shape[1:]) == EVENT
    problem.reference = None  # as for a source without a truth
    for name, x, paired in (
        ("own", truth, True),
        ("shuffled", truth.roll(7, 0), False),
        ("others", truth.flip(0), False),
    ):
        np.save(tmp_path / f"{name}.npy", x.numpy())
        assert _reference(str(tmp_path / f"{name}.npy"), problem, None).paired is paired, name


def test_a_prior_file_has_no_laps(home):
    from diffem import load

    with pytest.raises(InputError, match="it has no lap 3 to choose"):
        load(home / "prior.safetensors", lap=3)
