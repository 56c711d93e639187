"""The sentences of a report are true of its run: for the user's own data, for clean samples, for vectors."""

import re
from html import unescape

import numpy as np
import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.em import exports as hub
from diffem.report import pictures
from diffem.report.measures import columns, lap_curves
from diffem.report.page import _about_pictures, _picture_data, write_report
from diffem.report.words import observation_in_words, operator_in_words
from diffem.runs.recipe import load_recipe

from ..em.small import RECIPE, observations

SHORT = {"train.steps": 30, "laps": 1}


def text(page):
    """The text of a page."""
    page = re.sub(r"<style.*?</style>", "", page.read_text(), flags=re.S)
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run on the user's vectors, with a recipe whose description is about other data."""
    out = tmp_path_factory.mktemp("runs") / "my-table"
    recipe = {**RECIPE, "name": "digits", "about": "handwritten digits of 8×8 pixels"}
    diffem.fit(observations(), recipe, out, changes=SHORT, progress=False)
    return out


def test_the_page_of_own_data_is_about_them(own):
    page = text(own / "report.html")
    assert page.strip().startswith("my-table · diffem")
    assert "Recipe digits, on data from Python" in page
    assert page.count("handwritten digits") == 1  # in the settings
    assert "learned from the observations alone" in page


def test_settings_describe_the_encoding_in_readable_text(own):
    page = text(own / "report.html")
    assert "8×8 pixels" in page
    assert "x some entries of x, 25% to 100% of the values, noise 0.1" in page.replace("an observation y", "x")
    scale = diffem.load(own, 0).scale
    assert f"the network input is x / {scale:.4g}" in page
    assert "0.02 to 20 times the scale" in page
    assert "8×8" in (own / "recipe.yaml").read_text()


def test_the_card_describes_how_the_prior_was_learned(own, tmp_path):
    hub.export_run(own, tmp_path / "export")
    card = (tmp_path / "export/README.md").read_text()
    assert "From lap 1 of expectation–maximisation." in card


def test_vectors_have_a_posterior_section(own):
    page = (own / "report.html").read_text()
    assert "Posterior draws" in page
    assert "posterior draws of the last lap" in page
    assert (own / "laps/001/posterior.png").is_file()


def test_predictions_come_with_their_uncertainty(own):
    lap = diffem.Run(own).laps[1]
    shown = f"{lap['predictive_log_likelihood']:.3f} ± {lap['predictive_error']:.3f}"
    assert text(own / "report.html").count(shown) >= 3  # in the figures at the top, in the verdict, and in the table


def test_a_report_without_the_observations_shows_no_empty_ones(own):
    page = text(write_report(own))
    assert "osterior draws for" in page
    assert "an observation y" not in page


def test_a_clean_run_is_described_as_trained_on_clean_samples(tmp_path):
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    changes = SHORT | {"e_step.clean": True, "e_step.fresh": 1.0, "watch.held_out": 0}
    diffem.fit(Observations.clean(x), RECIPE, tmp_path / "run", changes=changes, progress=False)
    page = text(tmp_path / "run/report.html")
    assert "trained on clean samples of x" in page
    assert "samples for training + held out" in page
    assert "observations alone" not in page
    assert "held-out samples" not in page.split("Metrics of each lap")[0]
    assert "rejected" not in page.split("Metrics of each lap")[1].split("Settings")[0]
    hub.export_run(tmp_path / "run", tmp_path / "export")
    assert "From lap 1 of training on clean samples of x." in (tmp_path / "export/README.md").read_text()


def test_sentences_depend_on_held_out_observations_and_start():
    from diffem.report.page import _words

    recipe = load_recipe(RECIPE, {"watch.held_out": 0})
    words = _words(recipe, [{"lap": 0}, {"lap": 1}], True)
    assert "not tested" in words["fine"]
    assert "Training observations" in words["posterior"]
    given = _words(load_recipe(RECIPE), [{"lap": 0, "start": "given", "predictive_log_likelihood": 0.0}], True)
    assert "started from a given prior" in given["prior"]
    assert "Held-out observations" in given["posterior"]
    assert "draws fit the held-out" in given["fine"]


def test_a_given_start_is_not_called_gaussian(tmp_path):
    start = priors.GaussianPrior(torch.zeros(1, 6, 6), torch.eye(36))
    y = torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    changes = SHORT | {"watch.held_out": 8}
    diffem.fit(Observations(y, sigma=0.5), RECIPE, tmp_path / "run", changes=changes, progress=False, start=start)
    page = text(tmp_path / "run/report.html")
    assert "Lap 0 (starting prior)" in page
    assert "Gaussian start)" not in page


# parts ---------------------------------------------------------------------------------------------------------------


def test_operators_are_named_in_words():
    kernel = torch.ones(3, 5) / 15
    assert operator_in_words(operators.Blur(kernel)) == "a blur with a kernel of 3×5 pixels"
    assert operator_in_words(operators.Downsample(4)) == "4 times lower resolution"
    assert operator_in_words(operators.Identity()) == "x itself"
    both = operators.Compose(operators.Downsample(2), operators.Blur(kernel))
    assert operator_in_words(both) == "a blur with a kernel of 3×5 pixels, then 2 times lower resolution"
    assert operator_in_words(operators.Fourier()) == "k-space"
    assert operator_in_words(operators.Function(lambda x: x, (4,))) == "a function of x"
    for A in (operators.Dense(torch.ones(2, 4)), operators.Crop((2, 2), (4, 4))):
        assert " of " in operator_in_words(A)
    mask = torch.tensor([[True, True, False, False]])
    obs = Observations(torch.zeros(1, 4), operators.Mask(mask), sigma=0.25)
    assert observation_in_words(obs) == "some entries of x, 50% of the values, noise 0.25"


def test_columns_are_those_that_were_measured():
    laps = [{"lap": 0, "chi2": None}, {"lap": 1, "chi2": 1.0, "loss": 0.5, "rejected": 0.0}]
    assert [c.key for c in columns(laps)] == ["chi2", "rejected", "loss"]
    assert [c.key for c in columns(laps, clean=True)] == ["loss"]


def test_curves_show_errors_and_the_expected_level():
    laps = [
        {
            "lap": k,
            "predictive_log_likelihood": -1.0 + k,
            "predictive_error": 0.1,
            "heldout_chi2": 0.6,
            "expected_chi2": 0.5,
            "rejected": 0.01 * k,
        }
        for k in range(3)
    ]
    found = lap_curves(laps)
    assert found["predictive"].error == [0.1] * 3
    assert found["held-out χ²"].level == 0.5
    assert [title for title, curve in found.items() if curve.percent] == ["rejected"]  # as in the table
    picture = pictures.curves(found)
    assert size(picture)[0] > 1000  # as wide as the page


def size(png):
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


def test_a_row_of_curves_is_as_wide_as_the_page_however_many_there_are():
    one = pictures.Curve([0.0, 1.0], [1.0, 2.0])
    widths = {size(pictures.curves({str(k): one for k in range(n)}))[0] for n in (1, 3, 5)}
    assert len(widths) == 1
    assert size(pictures.curves({str(k): one for k in range(5)}))[1] > 500  # two rows instead of five plots in one row


def test_one_wide_interval_does_not_flatten_the_other_observations(monkeypatch):
    """Draws of one observation spread over hundreds; those of the other over about one."""
    monkeypatch.setattr(pictures, "to_png", lambda figure: figure)
    draws = np.random.default_rng(0).normal(size=(8, 2, 3)) * np.array([100.0, 1.0])[:, None]
    wide, narrow = (axis.get_ylim() for axis in pictures.intervals(draws).axes)
    assert wide[1] - wide[0] > 10 * (narrow[1] - narrow[0])


@pytest.mark.parametrize("entries", [3, 200])
def test_intervals_of_vectors_show_what_was_measured(entries):
    rng = np.random.default_rng(0)
    draws, y = rng.normal(size=(8, 3, entries)), np.where(rng.random((3, entries)) < 0.5, 1.0, np.nan)
    plain = pictures.intervals(draws)
    assert pictures.intervals(draws, y) != plain
    assert pictures.intervals(draws, y, y + 1) != pictures.intervals(draws, y)
    assert size(pictures.intervals(draws[:, :1]))[1] < size(plain)[1]


def test_pictures_are_described_as_what_they_show():
    y, prior = torch.zeros(2, 8, 8), priors.GaussianPrior(torch.zeros(8, 8), torch.eye(64))
    masked = torch.where(torch.arange(8) < 4, y, torch.nan)
    direct, blurred = Observations(masked, sigma=0.1), Observations(y, operators.Blur(torch.ones(3, 3) / 9), sigma=0.1)
    said = [_about_pictures(_picture_data(obs, torch.arange(2), None, prior)) for obs in (direct, blurred)]
    assert ["grey-blue" in words for words in said] == [True, False]
    assert ["Aᵀy" in words for words in said] == [False, True]
    assert "grey-blue" not in _about_pictures(None)
