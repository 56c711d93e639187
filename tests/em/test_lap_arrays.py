"""`samples.npy` and `posterior.npy` of a finished lap: `fit` and `report` recompute missing or damaged files."""

import shutil

import numpy as np
import pytest
import torch

import diffem
from diffem import InputError
from diffem.app.viewer import Viewer
from diffem.report.page import write_report
from diffem.runs.lap_arrays import AXES, read_lap_array
from diffem.runs.rundir import RunDir

from .small import RECIPE, observations

SHORT = {**RECIPE, "train": {**RECIPE["train"], "steps": 4}, "watch": {"held_out": 8, "draws": 2, "samples": 8}}
DAMAGE = {
    "missing": lambda file: file.unlink(),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-3]),
    "a flipped bit": lambda file: file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1])),
    "another lap's": lambda file: shutil.copy(file.parents[1] / "001" / file.name, file),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


def fit(out):
    torch.set_num_threads(1)
    return diffem.fit(observations(), SHORT, out, progress=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("arrays") / "run").path


@pytest.mark.parametrize(
    ("maker", "damage"), [*(("fit", damage) for damage in DAMAGE), ("report", "missing"), ("report", "a flipped bit")]
)
def test_missing_samples_and_draws_are_recomputed_for_the_report(maker, damage, finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    files = {(lap, name): out / "laps" / f"{lap:03d}" / name for lap in (0, 2) for name in AXES}
    expected, metrics = {key: np.load(file) for key, file in files.items()}, RunDir(out).metrics()
    for (lap, name), file in files.items():
        DAMAGE[damage](file)
        with pytest.raises(InputError, match=name):
            read_lap_array(RunDir(out), lap, name)
        with pytest.raises(InputError, match=name):
            Viewer(out).read_saved(lap, name.removesuffix(".npy"))
    fit(out) if maker == "fit" else write_report(out, observations())
    for (lap, name), array in expected.items():
        assert np.array_equal(read_lap_array(RunDir(out), lap, name), array)
    assert RunDir(out).metrics() == metrics  # the measures, and the checksums among them


def test_a_report_without_observations_makes_samples_but_not_draws(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "laps/002/samples.npy").unlink()
    write_report(out)
    (out / "laps/002/posterior.npy").unlink()
    with pytest.raises(
        InputError, match=r"002/posterior.npy is missing or damaged; .* call diffem.fit with this folder"
    ):
        write_report(out)
    fit(out)
    write_report(out)


def test_laps_measured_before_there_were_checksums(finished, tmp_path):
    """Files without a checksum are read, and recomputed if they are missing."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    run = RunDir(out)
    for lap, metrics in enumerate(run.metrics()):
        del metrics["files"]
        run.finish_lap(lap, metrics)
    np.save(out / "laps/001/samples.npy", np.zeros((3, 4), np.float32))
    (out / "laps/002/samples.npy").unlink()
    fit(out)
    assert not read_lap_array(run, 1, "samples.npy").any()
    assert read_lap_array(run, 2, "samples.npy").any()
    assert list(run.metrics()[2]["files"]) == ["samples.npy"]
