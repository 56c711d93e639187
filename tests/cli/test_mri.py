"""From fastMRI files to figures and volumes through the command line alone, on runs that are as small as possible."""

import json

import numpy as np
import pytest
import torch

from benchmarks.undrawn import undrawn
from diffem import Observations
from diffem.metrics import mse
from diffem.metrics.images import ssim
from diffem.priors import GaussianPrior
from diffem.priors.files import save_prior

from ..command import diffem
from ..mri.volumes import write_volume

RECIPE = """
name: tiny
data: {{source: fastmri, path: {path}, slices: [0, null], accel: 2, {extra}}}
laps: 2
sigma_min: 0.02
sigma_max: 20.0
gaussian: {{rank: 4, rounds: 1}}
network: {{kind: mlp, hidden: [32]}}
e_step: {{steps: 4, iterations: 2, draws: 2, redraws: 0, shard: 16}}
train: {{steps: 40, batch: 16, augment: [hflip, crop]}}
watch: {{held_out: 2, draws: 2, samples: 16}}
"""


def fit(folder, coils, extra):
    (folder / "volumes").mkdir()
    for i in range(4):
        write_volume(folder / "volumes" / f"{i}.h5", coils=coils, seed=i, sigma=0.02, kspace=(24, 12), size=(12, 12))
    recipe = folder / "tiny.yaml"
    recipe.write_text(RECIPE.format(path=folder / "volumes", extra=extra.format(folder=folder)))
    with undrawn():
        result = diffem("fit", recipe, "-o", folder / "run")
    assert result.returncode == 0, result.stderr
    return " ".join(result.stdout.split())


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Magnitude images of single-coil files with simulated observations; the k-space is on disk."""
    folder = tmp_path_factory.mktemp("single")
    return folder, fit(folder, None, "size: 12, sigma: 0.05, cache: {folder}/cache")


@pytest.fixture(scope="module")
def multi(tmp_path_factory):
    """Complex images of multi-coil files with the acquired k-space and estimated maps."""
    folder = tmp_path_factory.mktemp("multi")
    return folder, fit(folder, 2, "mode: acquired, complex: true, coils: estimate, sigma: null")


def test_a_run_describes_its_data(single, multi):
    assert "24 slices of 4 volumes, simulated k-space at R = 2; noise level 0.05" in single[1]
    assert "estimated from the corners of k-space" in multi[1]
    for folder, output in (single, multi):
        metrics = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        assert [m["lap"] for m in metrics] == [0, 1, 2]
        assert (folder / "run/report.html").is_file()
        assert "22 observations for training" in output


def test_a_run_resumes_from_cached_k_space(single):
    folder, _ = single
    assert "all laps are done" in diffem("fit", folder / "tiny.yaml", "-o", folder / "run").stdout


@pytest.mark.parametrize(("name", "channels"), [("single", 1), ("multi", 2)])
def test_observe_posterior_and_export_work_together(name, channels, request, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    folder, _ = request.getfixturevalue(name)
    observations = tmp_path / "obs.safetensors"
    result = diffem("observe", folder / "run", "-o", observations, "-n", 3, "--set", "data.accel=4")
    assert result.returncode == 0, result.stderr
    assert f"3 observations of ({channels}, 12, 12)" in result.stdout
    for out in ("p.npz", "p.nii.gz"):
        result = diffem("posterior", folder / "run", observations, "-o", tmp_path / out, "--draws", 2, "--steps", 4)
        assert result.returncode == 0, result.stderr
    saved = np.load(tmp_path / "p.npz")
    assert saved["draws"].shape == (2, 3, channels, 12, 12)
    draws = nibabel.load(tmp_path / "p_draws.nii.gz")
    assert draws.shape == (12, 12, 3, 2)
    x = saved["draws"]
    u = (x[:, :, 0] + 2) / 4 if channels == 1 else (x[:, :, 0] + 1j * x[:, :, 1]) / 2
    assert np.array_equal(np.asarray(draws.dataobj), u.transpose(3, 2, 1, 0).astype(draws.get_data_dtype()))
    mean, std = (np.asarray(nibabel.load(tmp_path / f).dataobj) for f in ("p.nii.gz", "p_std.nii.gz"))
    assert np.allclose(mean, u.mean(0).transpose(2, 1, 0), atol=1e-6)
    assert np.allclose(std, u.std(0, ddof=1).transpose(2, 1, 0), atol=1e-6)
    assert std.dtype == np.float32
    assert "the values are intensities from 0 to 1" in result.stdout


@pytest.mark.parametrize("channels", [1, 2])
def test_a_volume_of_own_images_is_in_their_units(channels, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    shape = (channels, 4, 5)
    save_prior(GaussianPrior(torch.full(shape, 1000.0), torch.eye(channels * 20)), tmp_path / "prior.safetensors")
    np.save(tmp_path / "y.npy", np.full((3, *shape), 1000.0, dtype=np.float32))
    words = ("--sigma", 0.1, "--draws", 2)
    for out in ("p.npz", "p.nii"):
        result = diffem("posterior", tmp_path / "prior.safetensors", tmp_path / "y.npy", "-o", tmp_path / out, *words)
        assert result.returncode == 0, result.stderr
    assert "the values are in the units of x" in result.stdout
    x = np.load(tmp_path / "p.npz")["draws"]
    u = x[:, :, 0] if channels == 1 else x[:, :, 0] + 1j * x[:, :, 1]
    assert np.array_equal(np.asarray(nibabel.load(tmp_path / "p_draws.nii").dataobj), u.transpose(3, 2, 1, 0))


@pytest.mark.parametrize(("name", "channels"), [("single", 1), ("multi", 2)])
def test_figures_and_measures_by_one_command(name, channels, request, tmp_path):
    folder, _ = request.getfixturevalue(name)
    out = tmp_path / "out"
    words = ["--accel", "2,4", "--slices", 3, "--draws", 3, "--figures", 1, "--steps", 4]
    result = diffem("mri", folder / "run", "-o", out, *words)
    assert result.returncode == 0, result.stderr
    rows = json.loads((out / "measures.json").read_text())
    pictures = {"slice-000.png", "prior.png"}
    if name == "multi":  # the truth behind acquired k-space is unknown
        assert [row["measurement"] for row in rows] == ["R = 2", "R = 4"]
        assert "psnr_mean" not in rows[0]
        assert {p.name for p in out.glob("*.png")} == pictures
        return
    assert {p.name for p in out.glob("*.png")} == pictures | {"crop.png"}
    assert [row["measurement"] for row in rows] == ["R = 2", "R = 4", "6×6"]
    saved = {key: torch.from_numpy(value) for key, value in np.load(out / "r4.npz").items()}
    truth, mean = (saved["truth"] + 2) / 4, (saved["draws"].mean(0) + 2) / 4
    assert rows[1]["psnr_mean"] == pytest.approx(float((-10 * mse(mean, truth).log10()).mean()), abs=1e-3)
    assert rows[1]["ssim_zero"] == pytest.approx(float(ssim((saved["zero_filled"] + 2) / 4, truth).mean()), abs=1e-4)
    low, high = saved["chi2"].aminmax()
    assert low <= rows[1]["chi2"] <= high  # a mean over values instead of slices
    assert {"psnr_gaussian", "ssim_draw", "coverage90", "error_to_std"} <= rows[0].keys()
    assert rows[0]["measured"] > rows[1]["measured"]


def test_prepare_and_observe_images(tmp_path):
    from PIL import Image

    (tmp_path / "images").mkdir()
    for i in range(30):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i:02d}.png")
    result = diffem("prepare", tmp_path / "images", "--size", 16, "-o", tmp_path / "images.npz")
    assert "30 images of 16×16 in 1 group" in result.stdout
    words = ["--set", f"data.path={tmp_path / 'images.npz'}", "--set", "data.size=null", "--set", "data.resemblance=1"]
    result = diffem("observe", "mri-fast", *words, "-o", tmp_path / "o.safetensors", "--truth", tmp_path / "x.npy")
    assert result.returncode == 0, result.stderr
    obs, x = Observations.load(tmp_path / "o.safetensors"), torch.from_numpy(np.load(tmp_path / "x.npy"))
    assert x.shape == (13, 1, 16, 16)
    assert float(obs.chi2(x).mean()) == pytest.approx(1, abs=0.2)  # 13 × 90 values: 4 %


class TestBadInput:
    def refused(self, words, *arguments):
        result = diffem(*arguments)
        assert result.returncode == 2, (result.stdout, result.stderr)
        assert words in result.stderr
        assert "Traceback" not in result.stderr

    def test_damaged_volumes_are_named(self, single, tmp_path):
        folder, _ = single
        whole = (folder / "volumes" / "0.h5").read_bytes()
        (tmp_path / "0.h5").write_bytes(whole[:-2000])
        change = ["--set", f"data.path={tmp_path}"]
        self.refused(
            "0.h5 cannot be read: it is truncated", "fit", folder / "tiny.yaml", "-o", tmp_path / "run", *change
        )
        assert not (tmp_path / "run").exists()

    def test_bad_settings_are_named(self, single, tmp_path):
        folder, _ = single
        self.refused(
            "numbers separated by commas, got 'fast'", "mri", folder / "run", "--accel", "fast", "-o", tmp_path
        )
        self.refused(
            "only settings of the data source here", "mri", folder / "run", "--set", "train.lr=1", "-o", tmp_path
        )
        self.refused("at least 2, for a standard deviation", "mri", folder / "run", "--draws", 1, "-o", tmp_path)
        self.refused("must end in .npz", "prepare", folder, "-o", tmp_path / "x.zip")
