"""The best lap of a run by held-out prediction: all outputs use the same function."""

import json
import re
import shutil
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import diffem
from diffem import InputError, RunWarning, api
from diffem.app import panels, status
from diffem.app.viewer import Viewer
from diffem.cli.commands import app
from diffem.em import exports as hub
from diffem.em.verdict import choose_lap, verdict
from diffem.report.page import write_report
from diffem.runs.rundir import RunDir

from ..command import diffem as command
from .small import RECIPE, observations


def lap(number, each):
    each = np.asarray(each, dtype=float)
    error = float(each.std(ddof=1) / np.sqrt(len(each)))
    return {
        "lap": number,
        "predictive_log_likelihood": float(each.mean()),
        "predictive_each": each.tolist(),
        "predictive_error": error,
    }


LEVELS = np.random.default_rng(0).normal(size=64)  # observations differ more than laps do
NOISE = 0.05 * np.random.default_rng(1).normal(size=64)


def test_a_last_lap_that_predicts_best_is_the_best():
    found = verdict([lap(0, LEVELS), lap(1, LEVELS + 0.1)])
    assert (found.best, found.last, found.worse) == (1, 1, False)
    assert found.text.startswith("lap 1, the last, is the best by held-out prediction")


def test_a_significantly_worse_last_lap_is_reported_with_the_best_one():
    """0.1 nats with a paired standard error of 0.05/√64 = 0.006."""
    found = verdict([lap(0, LEVELS - 1), lap(1, LEVELS), lap(2, LEVELS - 0.1 + NOISE)])
    assert (found.best, found.last, found.worse) == (1, 2, True)
    assert re.search(r"lap 1 is the best .* lap 2, the last, is worse by 0\.1\d\d ± 0\.00\d", found.text)


def test_a_difference_within_chance_leaves_the_last_lap_the_best():
    found = verdict([lap(0, LEVELS - 1), lap(1, LEVELS + NOISE.mean()), lap(2, LEVELS - 0.002 + NOISE)])
    assert (found.best, found.worse) == (2, False)
    assert "may be chance" in found.text


def test_measures_of_observations_in_another_order_do_not_pair():
    """The same mean difference, with the spread of unpaired observations: chance explains it."""
    shuffled = np.random.default_rng(2).permutation(LEVELS)
    assert not verdict([lap(0, LEVELS), lap(1, shuffled - 0.1)]).worse


@pytest.mark.parametrize("last", [{"lap": 1}, {"lap": 1, "predictive_log_likelihood": float("nan")}])
def test_without_held_out_prediction_no_lap_is_the_best(last):
    found = verdict([lap(0, LEVELS), last])
    assert found.best is None
    assert not found.worse


def test_one_held_out_observation_gives_no_standard_error():
    alone = {"lap": 1, "predictive_log_likelihood": -5.0, "predictive_each": [-5.0]}
    assert verdict([alone | {"lap": 0, "predictive_log_likelihood": 1.0}, alone]).best == 1


# a run of which the last lap is worse ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "worse"
    diffem.fit(observations(), RECIPE, out, progress=False)
    return out


@pytest.fixture
def worse(fitted, tmp_path):
    """Change the metrics on disk so that lap 1 is the best."""
    out = tmp_path / "run"
    shutil.copytree(fitted, out)
    run = RunDir(out)
    count = len(run.lap_metrics(2)["predictive_each"])
    for k, shift in ((0, -1.0), (1, 1.0), (2, 0.0)):
        run.finish_lap(k, run.lap_metrics(k) | lap(k, LEVELS[:count] + shift + k * NOISE[:count]))
    return out


def test_load_warns_and_loads_the_best_lap_on_request(worse):
    with pytest.warns(RunWarning, match="lap 1 is the best by held-out prediction"):
        last = diffem.load(worse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best, first = diffem.load(worse, lap="best"), diffem.load(worse, lap=1)
        assert same(best, first)
        assert same(last, diffem.load(worse, lap=2))
        assert not same(best, last)
        assert same(diffem.Run(worse).load("best"), first)
    assert diffem.Run(worse).verdict.best == 1


def same(a, b):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    return torch.equal(a(x, 1.0), b(x, 1.0))


def test_a_lap_is_a_number_or_best(worse):
    with pytest.raises(InputError, match="a number or 'best', got 'last'"):
        diffem.load(worse, lap="last")
    with pytest.raises(InputError, match="has no lap best"):
        diffem.load(worse / "laps/001/prior.safetensors", lap="best")
    run = RunDir(worse)
    run.finish_lap(2, {k: v for k, v in run.lap_metrics(2).items() if not k.startswith("predictive")})
    with pytest.raises(InputError, match="choose a lap by its number"):
        choose_lap(run, "best")


def test_fit_prints_the_verdict_at_its_end(worse, capsys):
    with pytest.warns(RunWarning, match="lap 1 is the best") as given:
        diffem.fit(observations(), RECIPE, worse)
    assert [w.filename for w in given] == [__file__]  # the caller's line, not one of the library's
    assert "lap 2, the last, is worse by" in capsys.readouterr().out


def test_the_command_line_prints_the_verdict_once(worse, monkeypatch):
    learn = partial(diffem.fit, observations(), RECIPE, worse)
    monkeypatch.setattr(api, "fit", lambda *arguments, **options: learn(report=False))
    result = CliRunner().invoke(app, ["fit", "digits"], catch_exceptions=False)
    assert result.output.count("lap 1 is the best") == 1
    assert "--lap best" in result.output


def test_report_card_and_app_show_the_verdict(worse, tmp_path):
    page = write_report(worse, observations()).read_text()
    assert re.search(r'class="warn" id="verdict">Lap 1 is the best by held-out prediction', page)
    with pytest.warns(RunWarning, match="this is the prior of lap 2"):
        hub.export_run(worse, tmp_path / "last")
    card = hub.read_card(tmp_path / "last")
    assert (card["lap"], card["training"]["best_lap"]) == (2, 1)
    assert "Lap 1 is the best by held-out prediction" in (tmp_path / "last/README.md").read_text()
    hub.export_run(worse, tmp_path / "best", lap="best")
    assert hub.read_card(tmp_path / "best")["lap"] == 1
    shown = panels.status(status.progress(Viewer(worse)))
    assert "lap 1 is the best by held-out prediction" in shown
    assert 'class="refused"' in shown


def test_the_command_line_prints_the_verdict_and_loads_the_best_lap(worse, tmp_path):
    for words in ((), ("--lap", "best"), ("--lap", 1), ("--lap", "0")):
        result = command(
            "sample", worse, "-n", 2, "-o", tmp_path / f"x{'-'.join(map(str, words))}.npy", "--steps", 2, *words
        )
        assert result.returncode == 0, result.stderr
        assert ("warning: " in result.stderr) == (not words)
        assert ("lap 1 is the best by held-out prediction" in result.stderr) == (not words)
    assert np.array_equal(np.load(tmp_path / "x--lap-best.npy"), np.load(tmp_path / "x--lap-1.npy"))
    assert not np.array_equal(np.load(tmp_path / "x--lap-best.npy"), np.load(tmp_path / "x.npy"))
    assert command("sample", worse, "--lap", "worst").returncode == 2
    evaluated = command("evaluate", worse, "--samples", 8, "--steps", 2, "--lap", "best")
    assert json.loads(evaluated.stdout)["lap"] == json.loads(evaluated.stdout)["best_lap"] == 1
