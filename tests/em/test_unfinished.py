"""A final training in pieces: the averaged weights of an interrupted training are exported, another run continues."""

import itertools
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import diffem
from diffem import InputError
from diffem.core.interruption import Preempted
from diffem.em import exports as hub
from diffem.em import loop, maximization
from diffem.em.trainer import Trainer, learning_rates
from diffem.em.unfinished import earlier_piece, export_unfinished, trainer_state
from diffem.files.tensors import read_tensors
from diffem.files.writing import write_json
from diffem.runs.recipe import load_recipe

from ..command import diffem as command
from .small import observations
from .test_chain import CHAIN, clock, same_weights  # noqa: F401 (a fixture)
from .test_resume import contents, same

BLOCK = 20  # steps between two points at which a training can stop
WARMUP = 30


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(maximization, "_block_steps", lambda *_: BLOCK)


def stopping_after(steps, jump, monkeypatch):
    """The time limit of a run is over when its trainer has taken this number of steps."""
    step, calls = Trainer.step, itertools.count(1)

    def timed(*arguments):
        if next(calls) == steps:
            jump(6000)
        return step(*arguments)

    monkeypatch.setattr(Trainer, "step", timed)


@contextmanager
def steps_taken():
    """The numbers of the training steps that are taken inside the context."""
    taken, step = [], Trainer.step

    def counted(trainer, i, *examples):
        taken.append(int(i))
        return step(trainer, i, *examples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", counted)
        yield taken


@pytest.fixture(scope="module")
def one_lap(tmp_path_factory):
    """A run of one lap, and its exported prior."""
    folder = tmp_path_factory.mktemp("laps")
    recipe = {**CHAIN, "laps": 1, "final": None}
    run = diffem.fit(observations(), recipe, folder / "run", progress=False, report=False)
    return run, hub.export_run(run.path, folder / "prior")


@pytest.fixture
def first_piece(one_lap, clock, monkeypatch, tmp_path):  # noqa: F811
    """The recipe of a final training after one lap, of which `tmp_path / "piece"` holds the first 100 steps."""
    train = {**CHAIN["train"], "warmup": WARMUP}
    recipe = {**CHAIN, "laps": 0, "start": str(one_lap[1]), "train": train}
    with monkeypatch.context() as patch:
        stopping_after(110, clock, patch)
        with pytest.raises(Preempted, match="100 of 300"):
            diffem.fit(observations(), recipe, tmp_path / "first", progress=False, report=False, minutes=60)
    export_unfinished(tmp_path / "first", tmp_path / "piece")
    return recipe


def test_the_export_holds_the_averaged_weights_and_the_cost_so_far(one_lap, first_piece, tmp_path):
    state, _ = read_tensors(tmp_path / "first/laps/001/training.safetensors", "a checkpoint")
    prior, card = diffem.load(tmp_path / "piece"), hub.read_card(tmp_path / "piece")
    for k, p in enumerate(prior.network.parameters()):
        assert torch.equal(p, state[f"average.{k}"])
    assert card["training"]["unfinished"]["steps"] == 100
    assert 6000 < card["training"]["unfinished"]["lap_seconds"] < 9000
    before = one_lap[0].laps[1]
    assert card["training"]["images"] == before["images"] + 100 * 16
    assert card["training"]["minutes"] > before["minutes"] + 100
    assert card["lap"] == 1


def test_an_export_while_the_training_runs_counts_the_time_of_the_draws(one_lap, clock, monkeypatch, tmp_path):  # noqa: F811
    recipe = {**CHAIN, "laps": 0, "start": str(one_lap[1]), "train": {**CHAIN["train"], "checkpoint_seconds": 60}}
    expect, step, calls = loop.expect, Trainer.step, itertools.count(1)

    def slow_draws(*arguments):
        clock(6000)
        return expect(*arguments)

    def timed(*arguments):
        if (call := next(calls)) == 50:
            clock(100)  # a checkpoint is due
        if call == 90:
            export_unfinished(tmp_path / "run", tmp_path / "piece")
        return step(*arguments)

    monkeypatch.setattr(loop, "expect", slow_draws)
    monkeypatch.setattr(Trainer, "step", timed)
    diffem.fit(observations(), recipe, tmp_path / "run", progress=False, report=False)
    unfinished = hub.read_card(tmp_path / "piece")["training"]["unfinished"]
    assert unfinished["steps"] == 60
    assert 100 < unfinished["seconds"] < 3000
    assert 6100 < unfinished["lap_seconds"] < 9000


def test_another_run_continues_the_training(one_lap, first_piece, tmp_path):
    recipe = {**first_piece, "final": {**CHAIN["final"], "start": str(tmp_path / "piece")}}
    with steps_taken() as taken:
        run = diffem.fit(observations(), recipe, tmp_path / "second", progress=False, report=False)
    assert taken == list(range(100, 300))
    for shard in range(3):  # the draws are made again from the prior of the laps
        draws = [np.load(tmp_path / name / f"laps/001/draws/{shard:05d}.npy") for name in ("first", "second")]
        assert np.array_equal(*draws)
    last = run.laps[1]
    assert (last["steps"], last["images"]) == (300, one_lap[0].laps[1]["images"] + 300 * 16)
    assert 6000 < last["seconds"] < 9000  # with the time of the first piece


def test_a_continued_training_can_be_resumed(first_piece, clock, tmp_path, monkeypatch):  # noqa: F811
    recipe = {**first_piece, "final": {**CHAIN["final"], "start": str(tmp_path / "piece")}}
    whole = diffem.fit(observations(), recipe, tmp_path / "whole", progress=False, report=False)
    with monkeypatch.context() as patch:
        stopping_after(BLOCK + 1, clock, patch)  # the learning rate is still rising in the second piece
        with pytest.raises(Preempted, match="120 of 300"):
            diffem.fit(observations(), recipe, tmp_path / "cut", progress=False, report=False, minutes=60)
    run = diffem.fit(observations(), recipe, tmp_path / "cut", progress=False, report=False)
    assert same_weights(run.prior, whole.prior)
    assert same(contents(run.path), contents(whole.path))
    assert 12000 < run.laps[1]["seconds"] < 15000  # both pieces, each once


def test_a_finished_final_prior_can_be_trained_longer(one_lap, tmp_path):
    recipe = {**CHAIN, "laps": 0, "start": str(one_lap[1])}
    short = {**CHAIN["final"], "train": {**CHAIN["final"]["train"], "steps": 200}}
    run = diffem.fit(observations(), {**recipe, "final": short}, tmp_path / "short", progress=False, report=False)
    finished = hub.export_run(run.path, tmp_path / "finished")
    with pytest.raises(InputError, match=r"fewer steps than the 200 of this recipe"):
        earlier_piece(load_recipe({**recipe, "final": {**short, "start": str(finished)}}), 1)
    with steps_taken() as taken:
        longer = {**recipe, "final": {**CHAIN["final"], "start": str(finished)}}
        last = diffem.fit(observations(), longer, tmp_path / "longer", progress=False, report=False).laps[1]
    assert taken == list(range(200, 300))
    assert (last["steps"], last["images"]) == (300, one_lap[0].laps[1]["images"] + 300 * 16)
    assert last["m_seconds"] > run.laps[1]["m_seconds"]  # with the time of the first 200 steps


def test_the_learning_rate_rises_again_with_the_new_optimizer():
    options = load_recipe({**CHAIN, "train": {**CHAIN["train"], "warmup": WARMUP}}).train
    whole, later = learning_rates(options, 300), learning_rates(options, 300, first=100)
    plain = learning_rates(options.model_copy(update={"warmup": 0}), 300)
    rise = torch.arange(1, WARMUP + 1) / WARMUP
    assert torch.equal(later[:100], plain[:100])
    assert torch.equal(later[100 : 100 + WARMUP], plain[100 : 100 + WARMUP] * rise)
    assert torch.equal(later[100 + WARMUP :], whole[100 + WARMUP :])


def test_the_command_exports_an_interrupted_training(first_piece, tmp_path):
    result = command("export", tmp_path / "first", "-o", tmp_path / "out", "--unfinished", "--dtype", "float16")
    assert result.returncode == 0, result.stderr
    assert earlier_piece(load_recipe({**first_piece, "final": {"start": str(tmp_path / "out"), **CHAIN["final"]}}), 1)
    result = command("export", tmp_path / "first", "-o", tmp_path / "no", "--unfinished", "--lap", "0")
    assert (result.returncode, "leave out --lap" in result.stderr) == (2, True)


def test_what_is_no_piece_of_this_training_is_refused(one_lap, first_piece, tmp_path):
    finished, laps = one_lap
    with pytest.raises(InputError, match="no interrupted training"):
        export_unfinished(finished.path, tmp_path / "out")

    def fit(**final):
        recipe = {**first_piece, "final": {**CHAIN["final"], **final}}
        return diffem.fit(observations(), recipe, tmp_path / "refused", progress=False, report=False)

    with pytest.raises(InputError, match="not the export of a final prior"):
        fit(start=str(laps))
    with pytest.raises(InputError, match=r"fewer steps than the 50 of this recipe \(final.train.steps\), got 100"):
        fit(start=str(tmp_path / "piece"), train={"steps": 50})
    assert not (tmp_path / "refused").exists()
    recipe = load_recipe({**first_piece, "final": {**CHAIN["final"], "start": str(tmp_path / "piece")}})
    other = diffem.load(laps)
    other.network = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="weights of other shapes"):
        trainer_state(earlier_piece(recipe, 1), other)
    card = hub.read_card(tmp_path / "piece")
    card["training"]["unfinished"]["lap_seconds"] = "long"
    write_json(tmp_path / "piece/config.json", card)
    with pytest.raises(InputError, match="must contain the steps and seconds of its training as numbers"):
        fit(start=str(tmp_path / "piece"))
