"""The computations behind the page, without the page."""

import io
import math
import shutil

import numpy as np
import pytest
import torch

import diffem
from diffem import InputError, operators
from diffem.app import drawing, observing, panels, status
from diffem.app.viewer import Viewer
from diffem.runs.recipe import load_recipe
from diffem.runs.rundir import RunDir

from .conftest import png
from .test_decoding import sample


class TestUploads:
    def test_a_picture_of_a_digit_is_that_digit(self, digit, picture):
        """Enlarged four times and averaged back: only the rounding to 256 grey levels of a range of width 4 is lost."""
        x = sample(picture, (8, 8), (-2.0, 2.0))
        assert torch.allclose(x, torch.from_numpy(digit), atol=4 / 255 / 2 + 1e-6)
        inverted = sample(picture, (8, 8), (-2.0, 2.0), invert=True)
        assert torch.allclose(inverted, -x, atol=1e-5)

    @pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (2, 8, 8), (3, 8, 8)])
    @pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1"])
    def test_any_picture_takes_the_shape_of_a_sample(self, digit, shape, mode):
        x = sample(png(digit, mode), shape, (-2.0, 2.0))
        assert x.shape == shape
        assert x.abs().max() <= 2
        if shape == (2, 8, 8):  # complex samples: black is zero, and the phase is zero
            assert x[1].abs().max() == 0
            assert x[0].min() >= 0

    def test_an_oblong_picture_is_cut_about_its_centre(self, digit):
        wide = np.concatenate([np.full((8, 4), -2.0), digit, np.full((8, 4), 2.0)], 1)
        x = sample(png(wide), (8, 8), (-2.0, 2.0))
        assert torch.allclose(x, torch.from_numpy(digit), atol=4 / 255 / 2 + 1e-6)

    def test_an_array_is_not_converted(self, digit):
        file = io.BytesIO()
        np.save(file, digit.astype(np.float64))
        assert torch.equal(sample(file.getvalue(), (8, 8), (0.0, 1.0)), torch.from_numpy(digit))

    def test_bad_files_are_rejected_with_a_message(self, picture, digit):
        def array(value):
            file = io.BytesIO()
            np.save(file, value, allow_pickle=True)
            return file.getvalue()

        huge = io.BytesIO()
        np.lib.format.write_array_header_1_0(huge, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 8)})
        levels = (-2.0, 2.0)
        for data, words in [
            (None, "choose a file"),
            (b"", "choose a file"),
            (b"hello, I am a text", "not a readable picture"),
            (b"\x89PNG\r\n\x1a\nbroken", "cannot be read as an image"),
            (picture[: len(picture) // 2], "damaged"),
            (array(np.zeros((3, 3))), r"shape \(8, 8\), got float64 of shape \(3, 3\)"),
            (array(np.full((8, 8), np.nan)), "not finite"),
            (array(np.array([{"a": 1}], dtype=object)), "cannot be read"),  # pickles are not opened
            (array(digit)[:100], "cannot be read"),
            (huge.getvalue(), "35184372088832 bytes"),  # rejected before memory is allocated
        ]:
            with pytest.raises(InputError, match=words):
                sample(data, (8, 8), levels)
        with pytest.raises(InputError, match="not an image"):
            sample(picture, (5,), levels)

    def test_too_large_a_picture_is_rejected_before_it_is_decoded(self):
        """A few hundred bytes of PNG can claim any number of pixels."""
        import struct
        import zlib

        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = struct.pack(">IIBBBBB", 12_000, 12_000, 8, 0, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
        with pytest.raises(InputError, match="12000×12000 pixels, the limit is 64 million"):
            sample(bomb, (8, 8), (-2.0, 2.0))


class TestOperators:
    @pytest.mark.parametrize("shape", [(8, 8), (1, 12, 8), (3, 16, 16)])
    @pytest.mark.parametrize("kind", observing.OPERATORS)
    def test_every_operator_is_linear_with_a_correct_adjoint(self, kind, shape):
        A = observing.make_operator(kind, shape, missing=0.4, width=0.8, factor=2)
        assert operators.check(A, shape)

    def test_measured_fraction_and_flat_images(self):
        mask = observing.make_operator("mask", (64, 64), missing=0.7)(torch.ones(1, 64, 64))
        # 4096 pixels, each missing with probability 0.7: five standard deviations
        assert abs(1 - float(mask.mean()) - 0.7) < 5 * math.sqrt(0.7 * 0.3 / 4096)
        blurred = observing.make_operator("blur", (16, 16), width=1.5)(torch.ones(1, 16, 16))
        assert torch.allclose(blurred, torch.ones(1, 16, 16), atol=1e-5)  # a blur does not change a flat image
        assert observing.make_operator("downsample", (16, 16), factor=4)(torch.ones(1, 16, 16)).shape == (1, 4, 4)

    def test_bad_settings_are_rejected_with_a_message(self):
        for words, kind, options in [
            ("unknown operator", "rotate", {}),
            ("removes every pixel", "mask", {"missing": 1.0}),
            ("number from 0 to 1", "mask", {"missing": "a lot"}),
            ("width of the blur", "blur", {"width": 40}),
            (r"must be one of \[2, 4\]", "downsample", {"factor": 3}),
        ]:
            with pytest.raises(InputError, match=words):
                observing.make_operator(kind, (8, 8), **options)

    def test_noise_has_the_given_level(self):
        A = observing.make_operator("mask", (64, 64), missing=0.0)
        observed = observing.corrupt(torch.zeros(64, 64), A, sigma=0.3)
        assert float(observed.obs.y.std()) == pytest.approx(0.3, rel=5 / math.sqrt(2 * 4096))
        tiny = observing.corrupt(torch.zeros(64, 64), A, sigma=3e-7, unit=1e-6)  # samples of another unit
        assert torch.allclose(tiny.obs.y, observed.obs.y * 1e-6, rtol=1e-5)
        with pytest.raises(InputError, match="noise"):
            observing.corrupt(torch.zeros(64, 64), A, sigma=-1)


class TestDraws:
    def test_prior_samples_are_those_of_the_library(self, viewer, run):
        x = drawing.prior_samples(viewer, 2, n=3, steps=4, seed=5)
        assert torch.equal(x, diffem.load(run).sample(3, steps=4, seed=5))
        assert not torch.equal(x, drawing.prior_samples(viewer, 1, n=3, steps=4, seed=5))
        assert drawing.prior_samples(viewer, 0, n=3).shape == (3, 8, 8)

    @pytest.mark.parametrize("lap", [0, 2])
    def test_draws_for_an_observation_of_the_run(self, viewer, lap):
        c = drawing.condition(viewer, lap, observing.observation(viewer, 3), draws=4, steps=8)
        assert c.draws.shape == (4, 8, 8)
        assert torch.allclose(c.mean, c.draws.mean(0))
        measured = viewer.problem.obs[3:4].measured[0]
        assert torch.equal(~c.seen.isnan(), measured)
        assert torch.equal(~c.residual.isnan(), measured)
        expected = (viewer.problem.obs.y[3] - c.mean)[measured] / 0.1
        assert torch.allclose(c.residual[measured], expected, atol=1e-4)
        assert torch.equal(c.truth, viewer.problem.reference[3])
        assert c.chi2.shape == (4,)

    @pytest.mark.parametrize("kind", observing.OPERATORS)
    def test_an_uploaded_picture_through_every_operator(self, viewer, picture, kind):
        x = sample(picture, viewer.event_shape, viewer.range)
        observed = observing.corrupt(x, observing.make_operator(kind, (8, 8)), sigma=0.2)
        c = drawing.condition(viewer, 2, observed, draws=3, steps=8)
        assert torch.isfinite(c.draws).all()
        html = panels.posterior(c, viewer.range, "caption <b>")
        # observation, mean, deviation, residual, truth and three draws
        assert html.count("data:image/png;base64,") == 8
        assert "caption &lt;b&gt;" in html
        # every colour is explained
        assert html.count('class="bar"') == 3
        for words in ("values of x", "not measured", "standard deviation", "in units of the noise level"):
            assert words in html
        assert panels.legend(panels.grey_bar(viewer.range)) in panels.samples(c.draws.numpy(), viewer.range, "")

    def test_pictures_have_descriptive_names(self, viewer):
        mask = drawing.condition(viewer, 0, observing.observation(viewer, 3), draws=2)
        assert mask.name == "observation"
        x = viewer.problem.reference[3]
        k_space = observing.corrupt(x, operators.Fourier(), sigma=0.2)
        assert drawing.condition(viewer, 0, k_space, draws=2).name == "observation, as Aᵀy"

    def test_observations_are_marked_as_held_out_or_training(self, viewer):
        held = viewer.recipe.watch.held_out
        assert all(viewer.is_held_out(k) for k in viewer.observation_choices()[:held])
        assert not any(viewer.is_held_out(k) for k in viewer.observation_choices()[held:])

    def test_bad_requests_are_rejected_with_a_message(self, viewer):
        seen = observing.observation(viewer, 0)
        for words, call in [
            ("samples must be a whole number from 1 to 256", lambda: drawing.prior_samples(viewer, 0, n=10**6)),
            ("samples", lambda: drawing.prior_samples(viewer, 0, n=2.5)),
            ("steps", lambda: drawing.prior_samples(viewer, 0, n=1, steps=10**9)),
            ("seed", lambda: drawing.prior_samples(viewer, 0, n=1, seed=-1)),
            ("lap must be a whole number from 0 to 2", lambda: drawing.prior_samples(viewer, 7)),
            ("lap", lambda: drawing.prior_samples(viewer, "../../etc")),
            ("lap", lambda: viewer.read_saved(None, "samples")),
            ("must be 'samples' or 'posterior'", lambda: viewer.read_saved(0, "../prior")),
            ("observation must be", lambda: observing.observation(viewer, 10**6)),
            ("draws", lambda: drawing.condition(viewer, 0, seen, draws=1000)),
        ]:
            with pytest.raises(InputError, match=words):
                call()


class TestRuns:
    def test_the_status_of_a_finished_run(self, viewer):
        p = status.progress(viewer)
        assert (p.status, p.last, p.laps, p.stage) == ("finished", 2, 2, "")
        steps, values = status.losses(viewer)
        assert steps == sorted(steps)
        assert len(steps) == len(values) > 0
        assert "finished, 2 laps" in panels.status(p)
        assert panels.curves(p.metrics, (steps, values)).count("<img") == 2
        assert panels.measures(p.metrics).count("<tr>") == 4

    def test_a_run_in_progress(self, run, tmp_path):
        """Files are removed in reverse order, so that the folder passes through the states of a run in progress."""
        copy = tmp_path / "digits"
        shutil.copytree(run, copy)
        lap = copy / "laps/002"
        RunDir(copy).set_status("running")
        viewer = Viewer(copy, device="cpu")
        (lap / "metrics.json").unlink()
        assert status.progress(viewer).stage == "lap 2: held-out evaluation"
        (lap / "prior.safetensors").unlink()
        assert status.progress(viewer).stage == "lap 2: training the denoiser"
        shutil.rmtree(lap / "draws")
        assert status.progress(viewer).stage == "lap 2: posterior draws, 0 of 1 shards written"
        assert viewer.last == 1
        assert "running: lap 1 of 2 done" in panels.status(status.progress(viewer))
        shutil.rmtree(copy / "laps")
        assert status.progress(viewer).stage == "lap 0: fitting the Gaussian start"
        with pytest.raises(InputError, match="no lap of this run is finished yet"):
            drawing.prior_samples(viewer, 0)

    def test_a_run_that_was_given_its_observations(self, run, tmp_path):
        copy = tmp_path / "given"
        shutil.copytree(run, copy)
        obs = RunDir(run).recipe().problem().obs
        recipe = load_recipe(RunDir(copy).recipe(), {"data": {"source": "given"}})
        (copy / "recipe.yaml").write_text(recipe.to_file(RunDir(copy).info()["name"]))
        with pytest.raises(InputError, match="--observations"):
            observing.observation(Viewer(copy), 0)
        obs[:5].save(tmp_path / "other.safetensors")
        with pytest.raises(InputError, match=r"the observations have changed: those in .*other.safetensors"):
            observing.observation(Viewer(copy, tmp_path / "other.safetensors", device="cpu"), 0)
        obs.save(tmp_path / "obs.safetensors")
        viewer = Viewer(copy, tmp_path / "obs.safetensors", device="cpu")
        assert torch.equal(observing.observation(viewer, 4).obs.y, obs.y[4:5])
        assert sorted(viewer.observation_choices())[:5] == [0, 1, 2, 3, 4]
        low, high = viewer.range  # read from the draws of the run
        assert low < high

    def test_folders_without_a_run_are_rejected(self, tmp_path):
        with pytest.raises(InputError, match=r"no recipe\.yaml"):
            Viewer(tmp_path)


def test_points_are_shown_as_marginals(tmp_path):
    from tests.em.small import RECIPE, observations

    recipe = {**RECIPE, "laps": 1, "train": {**RECIPE["train"], "steps": 40}}
    run = diffem.fit(observations(), recipe, tmp_path / "points", device="cpu")
    observations().save(tmp_path / "obs.safetensors")
    viewer = Viewer(run.path, tmp_path / "obs.safetensors", device="cpu")
    c = drawing.condition(viewer, 1, observing.observation(viewer, 0), draws=4, steps=4)
    html = panels.posterior(c, viewer.range, "")
    assert "<td>4</td>" in html  # four coordinates, with mean and standard deviation of each
    assert html.count("<img") == 2  # intervals entry by entry, and neighbouring entries
    assert torch.equal(~c.entries.isnan(), observations()[:1].measured[0])
    assert "<img" in panels.samples(drawing.prior_samples(viewer, 1, 8, 4).numpy(), viewer.range, "")
