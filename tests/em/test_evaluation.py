"""Evaluation: the accepted forms of clean data, the conditions for image metrics, and the whole path on images."""

import json

import numpy as np
import pytest
import torch

import diffem
from diffem.datasets import cifar10
from diffem.em import evaluation
from diffem.em.evaluation import evaluate
from diffem.observations.problem import Problem
from diffem.runs.sources import make_problem

from ..assets import asset
from ..datasets.test_cifar10 import pixels, write_batch
from ..metrics.extractors import write_extractor


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFFEM_INCEPTION", raising=False)


def write_batches(folder, x):
    folder.mkdir()
    for k, part in enumerate(x.chunk(5), 1):
        write_batch(folder / f"data_batch_{k}.bin", part)
    return folder


class TestReference:
    @pytest.fixture
    def problem(self, tmp_path):
        folder = write_batches(tmp_path / "images", pixels(20))
        return make_problem("cifar10", 0, {"folder": str(folder)})

    def test_the_same_images_in_every_form(self, problem, tmp_path):
        """A folder, an archive, pixels and numbers: the same true x, recognised as that of the observations."""
        x = problem.reference
        np.savez(tmp_path / "a.npz", images=pixels(20).numpy().transpose(0, 2, 3, 1))
        np.save(tmp_path / "pixels.npy", pixels(20).numpy())
        np.save(tmp_path / "x.npy", x.numpy())
        for name in ("images", "a.npz", "pixels.npy", "x.npy"):
            truth = evaluation._reference(str(tmp_path / name), problem, problem.range)
            assert torch.equal(truth.x, x), name
            assert truth.paired, name
            assert truth.pixels is None or torch.equal(truth.pixels, pixels(20)), name
        assert torch.equal(evaluation._reference("source", problem, None).x, x)

    def test_other_images_are_not_the_truth_behind_the_observations(self, problem, tmp_path):
        write_batch(tmp_path / "other.bin", pixels(20, seed=1))
        truth = evaluation._reference(str(tmp_path / "other.bin"), problem, problem.range)
        assert not truth.paired
        assert torch.equal(truth.x, cifar10.from_uint8(pixels(20, seed=1)))

    def test_bad_references_are_named(self, problem, tmp_path):
        np.save(tmp_path / "pixels.npy", pixels(20).numpy())
        for name, given, words in (
            ("pixels.npy", problem, "contains pixels.*--range LOW HIGH"),
            ("missing.npy", problem, "cannot be read"),
            ("missing.npz", problem, "cannot be read"),
        ):
            with pytest.raises(ValueError, match=words):
                evaluation._reference(str(tmp_path / name), given, None)
        with pytest.raises(ValueError, match="does not provide the true x"):
            evaluation._reference("source", Problem(problem.obs), None)


class TestExtractor:
    def test_a_requested_extractor_that_cannot_be_used_is_an_error(self, tmp_path):
        path = write_extractor(tmp_path / "small.pt")
        for arguments, words in (
            ((path, None, (8, 8), (0, 1)), "set --reference"),
            ((path, "source", (5,), (0, 1)), r"shape \(h, w\).*not \(5,\)"),
            ((path, "source", (2, 8, 8), (0, 1)), r"not \(2, 8, 8\)"),
            ((path, "source", (8, 8), None), "set --range LOW HIGH"),
            ((tmp_path / "missing.pt", "source", (8, 8), (0, 1)), "no feature extractor at"),
        ):
            with pytest.raises(ValueError, match=words):
                evaluation._extractor(*arguments, "cpu")
        assert evaluation._extractor(path, "source", (3, 8, 8), (0, 1), "cpu") is not None

    def test_an_extractor_of_the_environment_that_cannot_be_used_is_ignored(self, tmp_path, monkeypatch):
        assert evaluation._extractor(None, "source", (8, 8), (0, 1), "cpu") is None
        monkeypatch.setenv("DIFFEM_INCEPTION", str(write_extractor(tmp_path / "small.pt")))
        assert evaluation._extractor(None, "source", (8, 8), (0, 1), "cpu") is not None
        for arguments in ((None, (8, 8), (0, 1)), ("source", (5,), (0, 1)), ("source", (8, 8), None)):
            assert evaluation._extractor(None, *arguments, "cpu") is None


def recipe(folder, n, laps):
    """Everything is as small as possible; the network has too few weights to learn anything."""
    return {
        "name": "tiny",
        "data": {"source": "cifar10", "folder": str(folder), "missing": 0.5, "n": n},
        "laps": laps,
        "gaussian": {"rank": 2, "rounds": 2},
        "network": {"kind": "unet", "hidden": [4, 8], "blocks": 1, "heads": [0, 2], "embedding": 8},
        "e_step": {"steps": 2, "iterations": 1, "redraws": 0},
        "train": {"steps": 8, "batch": 16},
        "watch": {"held_out": 4, "samples": 4, "draws": 2},
    }


def whole_path(folder, extractor, out, n, laps, samples):
    diffem.fit(None, recipe(folder, n, laps), out)
    results = evaluate(out, "source", draws=2, observations=8, samples=samples, steps=2, batch=7, extractor=extractor)
    assert results["samples"] == samples
    assert results["reference_images"] == n
    assert results["fid"] > 0
    assert {"kid", "mse_draw", "mse_mean2", "coverage90", "frechet"} <= results.keys()
    assert all(np.isfinite(value) for value in results.values() if isinstance(value, float))
    json.dumps(results)
    return results


def test_the_whole_path_on_synthetic_images(tmp_path):
    folder, extractor = write_batches(tmp_path / "images", pixels(40)), write_extractor(tmp_path / "small.pt")
    results = whole_path(folder, extractor, tmp_path / "run", n=40, laps=1, samples=16)
    again = evaluate(
        tmp_path / "run", str(folder), draws=0, samples=16, steps=2, batch=16, extractor=extractor, range=cifar10.RANGE
    )
    assert "mse_draw" not in again
    # other batches sum in another order, and a pixel at a rounding edge may fall to the other side
    assert again["fid"] == pytest.approx(results["fid"], rel=1e-3)


def test_the_whole_path_on_real_images_with_the_real_network(tmp_path):
    extractor = asset("fid/inception-2015-12-05.pt")
    results = whole_path(asset("cifar10"), extractor, tmp_path / "run", n=256, laps=2, samples=64)
    assert results["fid"] > 200  # nothing was learned, and the figure says so
