"""Appendix E: its problems, measures that separate right from wrong, and a tiny run."""

import json
import math

import pytest
import torch

from benchmarks import images, pages
from diffem.datasets import cifar10
from diffem.metrics import load_lpips
from diffem.nn.networks import make_network
from diffem.priors import DiffusionPrior
from diffem.priors.files import save_prior

from ..datasets.test_cifar10 import pixels, write_batch
from ..metrics.weights import write_lpips


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("assets")
    (folder / "cifar10").mkdir()
    write_batch(folder / "cifar10" / "test_batch.bin", pixels(4, seed=1))
    write_lpips(folder / "lpips" / "alexnet.ckpt")
    return folder


@pytest.fixture(scope="module")
def prior_file(tmp_path_factory):
    """An untrained network, which is sufficient as a prior for a run of the benchmark."""
    settings = {"hidden": [8, 8], "blocks": 1, "heads": [0, 0], "embedding": 8}
    torch.manual_seed(0)
    network = make_network("unet", (3, 32, 32), settings)
    file = tmp_path_factory.mktemp("prior") / "prior.safetensors"
    save_prior(DiffusionPrior(network, (3, 32, 32), settings={"kind": "unet", **settings}), file)
    return file


@pytest.mark.parametrize("task", images.TASKS)
def test_the_problems_have_their_noise_level(task):
    truth = cifar10.from_uint8(pixels(40))
    obs = images.problem(task, truth, seed=3)
    assert obs.x_shape == (3, 32, 32)
    # at least 40 · 192 squared normals: standard deviation of their mean 0.016
    assert float(obs.chi2(truth).mean()) == pytest.approx(1.0, abs=0.07)
    assert float(obs.cov.diagonal(()).sqrt()) == pytest.approx(2 * images.TASKS[task][0])
    # the problem of image i does not depend on the other images
    assert torch.equal(images.problem(task, truth[:7], seed=3).y, obs.y[:7])
    assert not torch.equal(images.problem(task, truth[:7], seed=4).y, obs.y[:7])


def test_boxes_and_pixels_have_their_size():
    index = torch.arange(200)
    hidden = ~images.box(index, 0).tensors()["mask"][:, 0]
    assert (hidden.flatten(1).sum(1) == 256).all()
    rows, columns = hidden.any(2), hidden.any(1)
    assert (rows.sum(1) == 16).all()
    assert (columns.sum(1) == 16).all()
    assert len(hidden.flatten(1).unique(dim=0)) > 100  # of 289 positions
    # 204,800 pixels, each measured with probability 0.1: standard deviation of the fraction 0.0007
    assert float(images.random(index, 0).tensors()["mask"].double().mean()) == pytest.approx(0.1, abs=0.003)


def test_motion_kernels_are_thin_and_sum_to_one():
    kernels = images.motion_kernels(torch.arange(50), seed=0)
    assert kernels.shape == (50, 9, 9)
    assert (kernels >= 0).all()
    assert torch.allclose(kernels.sum((1, 2)), torch.ones(50), atol=1e-5)  # a constant image does not change
    # paths are long and thin: they touch the box they are scaled to, and cover few of its pixels
    assert ((kernels > 0).any(2).sum(1).max(), (kernels > 0).any(1).sum(1).max()) == (9, 9)
    touched = (kernels > 0).flatten(1).sum(1)
    assert (touched >= 5).all()
    assert float(touched.double().mean()) < 40


def test_the_measures_separate_right_from_wrong(assets):
    lpips = load_lpips(assets / "lpips" / "alexnet.ckpt")
    truth = cifar10.from_uint8(pixels(4, seed=1))
    obs = images.problem("box", truth, 0)
    generator = torch.Generator().manual_seed(0)

    def draws(spread):
        return truth.clamp(-1.5, 1.5) + spread * torch.randn(4, 4, 3, 32, 32, generator=generator)

    near, far = (images.measures(draws(spread), truth, obs, lpips) for spread in (0.2, 0.8))
    assert all(values.shape == (4,) for values in near.values())
    for key in ("lpips", "lpips_64", "crps"):
        assert (near[key] < far[key]).all()
    for key in ("psnr", "ssim", "psnr_mean"):
        assert (near[key] > far[key]).all()
    assert (near["psnr_mean"] > near["psnr"]).all()
    broken = draws(0.2)
    broken[0, 1], broken[1, 1], broken[2, 2] = math.nan, 1e9, math.inf
    measured = images.measures(broken, truth, obs, lpips)
    assert measured["failed"].tolist() == [0, 0.5, 0.25, 0]
    assert all(torch.isfinite(values).all() for values in measured.values())


def test_methods_within_one_error_are_tied():
    def row(task, method, lpips, se=0.01):
        return {"task": task, "steps": 100, "method": method, "lpips": lpips, "lpips_se": se}

    rows = [row("box", "dps", 0.2), row("box", "mmps3", 0.1), row("random", "dps", 0.2), row("random", "mmps3", 0.205)]
    rows += [row("motion", "dps", 0.2), row("motion", "mmps3", 0.22)]
    assert images.first_or_tied(rows) == {"mmps3_first_or_tied_100": 2, "mmps3_first_or_tied_others_100": 2}
    rows += [row("box", "mmps5", 0.05)]
    assert images.first_or_tied(rows) == {"mmps3_first_or_tied_100": 1, "mmps3_first_or_tied_others_100": 2}


# of a blur at large noise levels, which is ill-conditioned
@pytest.mark.filterwarnings("ignore:method '(tmpd|diffpir)'.*did not converge:RuntimeWarning")
def test_a_tiny_run_writes_its_result(assets, prior_file, tmp_path):
    words = ["--prior", str(prior_file), "--assets", str(assets), "--images", "2", "--draws", "2", "--device", "cpu"]
    words += ["--results", str(tmp_path), "--picture", str(tmp_path / "images.png")]
    images.main([*words, "--steps", "2"])
    result = json.loads((tmp_path / "images.json").read_text())
    rows = {(row["task"], row["method"]): row for row in result["rows"]}
    names = ["dps", "pigdm", "tmpd", "diffpir", "mmps1", "mmps3", "mmps5"]
    assert list(rows) == [(task, name) for task in images.TASKS for name in names]
    assert rows["box", "dps"]["options"] == {"method": "dps", "zeta": 1.0}
    # two steps and the last denoising, for which dps and pigdm use the prior
    assert [rows["motion", name]["vjps"] for name in names] == [2, 2, 6, 0, 3, 9, 15]
    assert result["figures"]["lpips_random_mmps3_2"] == rows["random", "mmps3"]["lpips"]
    assert result["figures"]["mmps3_first_or_tied_2"] in range(5)
    assert (tmp_path / "images.png").read_bytes()[:4] == b"\x89PNG"
    # further steps are added to the existing rows, and the page shows all
    images.main([*words, "--steps", "1", "--tasks", "box", "--only", "mmps1", "--keep"])
    result = json.loads((tmp_path / "images.json").read_text())
    assert [(row["task"], row["method"], row["steps"]) for row in result["rows"]][:2] == [
        ("box", "mmps1", 1),
        ("box", "dps", 2),
    ]
    assert len(result["rows"]) == 29
    page = pages.RENDER["images"](result)
    assert f"{rows['random', 'mmps3']['lpips']:.3f}" in page
    assert "super-resolution" in page
