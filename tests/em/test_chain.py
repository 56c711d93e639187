"""A run in pieces: stopped by the clock it ends with the bits of an uncut one; from exported weights it goes on where
those ended."""

import itertools
import shutil
import time

import numpy as np
import pytest
import torch

import diffem
from diffem import InputError
from diffem.core.interruption import Preempted
from diffem.em import exports as hub
from diffem.em.totals import Totals
from diffem.em.trainer import Trainer

from ..command import diffem as command
from .small import RECIPE, observations
from .test_resume import contents, same

CHAIN = {
    **RECIPE,
    "laps": 3,
    "e_step": {**RECIPE["e_step"], "fresh": 1.0},
    "train": {**RECIPE["train"], "steps": 40},
    "watch": {**RECIPE["watch"], "samples": 8, "draws": 2},
    "final": {"e_step": {"draws": 2}, "train": {"steps": 300, "ema": 0.99}},
}
STEPS = {0: 0, 1: 40, 2: 40, 3: 40, 4: 300}


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    return diffem.fit(observations(), CHAIN, tmp_path_factory.mktemp("chain") / "uncut", progress=False, report=False)


@pytest.fixture
def clock(monkeypatch):
    """The computer's clock, which jumps ahead when a test calls `clock(seconds)`."""
    real, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])

    def jump(seconds):
        ahead[0] += seconds

    return jump


def minute_laps(clock, seen):
    """Every lap takes ten minutes by the clock."""

    def on_event(event, data):
        if event == "lap":
            seen.append(data["lap"])
            clock(600 if data["lap"] else 0)

    return on_event


def test_a_run_stopped_by_time_limits_is_bit_identical_to_an_unlimited_run(uncut, clock, tmp_path):
    """In 25 minutes, two laps of ten minutes end; a third would not. The final prior begins in any case."""
    out, seen = tmp_path / "pieces", []
    options = {"progress": False, "report": False, "on_event": minute_laps(clock, seen), "minutes": 25}
    with pytest.raises(Preempted, match="lap 3 would end after the time limit") as stopped:
        diffem.fit(observations(), CHAIN, out, **options)
    assert stopped.value.reason == "after 25 minutes as requested"
    assert seen == [0, 1, 2]
    assert not (out / "laps/003").exists()
    diffem.fit(observations(), CHAIN, out, **options)
    assert seen == [0, 1, 2, 3, 4]
    assert same(contents(out), contents(uncut.path))


def test_a_lap_in_progress_is_saved_at_the_time_limit(uncut, clock, tmp_path, monkeypatch):
    """The time limit ends the second block of the final training; the first block and its time are kept."""
    out, step, calls = tmp_path / "run", Trainer.step, itertools.count(1)

    def timed(*arguments):
        if next(calls) == sum(STEPS.values()) - 20:
            clock(6000)
        return step(*arguments)

    monkeypatch.setattr(Trainer, "step", timed)
    with pytest.raises(Preempted, match="lap 4: 256 of 300 training steps done"):
        diffem.fit(observations(), CHAIN, out, progress=False, report=False, minutes=60)
    assert (out / "laps/004/training.safetensors").is_file()
    run = diffem.fit(observations(), CHAIN, out, progress=False, report=False, minutes=60)
    assert same(contents(out), contents(uncut.path))
    assert 6000 < run.laps[4]["seconds"] < 9000
    assert not (out / "laps/004/elapsed.json").exists()


def test_the_command_stops_with_the_code_of_a_preempted_run(tmp_path):
    result = command("fit", "digits", "-o", tmp_path / "run", "--minutes", 1e-6)
    assert result.returncode == 75
    assert "stopped after 1e-06 minutes as requested" in result.stderr
    assert "the same command resumes" in result.stderr
    assert command("fit", "digits", "-o", tmp_path / "run", "--minutes", 0).returncode == 2


def test_every_lap_counts_the_images_and_minutes_so_far(uncut):
    laps, seen = uncut.laps, np.cumsum([16 * STEPS[lap] for lap in range(5)])
    assert [lap["images"] for lap in laps] == seen.tolist()
    minutes = np.cumsum([lap["seconds"] / 60 for lap in laps])
    assert [lap["minutes"] for lap in laps] == pytest.approx(minutes.tolist())


@pytest.fixture(scope="module")
def packed(uncut, tmp_path_factory):
    """The weights after lap 2, whole and in pieces."""
    folder = tmp_path_factory.mktemp("packed")
    hub.export_run(uncut.path, folder / "one", lap=2)
    hub.export_run(uncut.path, folder / "three", lap=2, piece=5000)
    return folder


def test_a_run_started_from_weights_has_the_draws_of_the_unlimited_run(uncut, packed, tmp_path):
    """Addresses count the laps before, and all draws are made anew: the first E-step is lap 3 of the uncut run, bit for
    bit."""
    assert len(list((packed / "three").glob("*.safetensors"))) > 2
    runs = {}
    for name in ("one", "three"):
        recipe = {**CHAIN, "laps": 1, "start": str(packed / name), "final": None}
        runs[name] = diffem.fit(observations(), recipe, tmp_path / name, progress=False, report=False)
    assert same(contents(runs["one"].path), contents(runs["three"].path))
    for shard in range(3):
        mine, whole = (
            np.load(run.path / f"laps/{lap:03d}/draws/{shard:05d}.npy") for run, lap in ((runs["one"], 1), (uncut, 3))
        )
        assert np.array_equal(mine, whole)
    start, last = runs["one"].laps
    before = uncut.laps[2]
    assert (start["laps_before"], start["images_before"]) == (2, before["images"])
    assert start["minutes_before"] == before["minutes"]
    assert (last["images"], last["minutes"] > before["minutes"]) == (before["images"] + 16 * 40, True)
    # once more: what came before that counts too
    hub.export_run(runs["one"].path, tmp_path / "again")
    assert hub.cost(hub.read_card(tmp_path / "again"), "") == Totals(3, last["minutes"], last["images"])


def test_a_resumed_run_may_lack_only_its_final_prior(uncut, packed, tmp_path):
    """After lap 3 only the final prior is missing: its draws are those of the uncut run."""
    hub.export_run(uncut.path, tmp_path / "three laps", lap=3)
    recipe = {**CHAIN, "laps": 0, "start": str(tmp_path / "three laps")}
    run = diffem.fit(observations(), recipe, tmp_path / "run", progress=False, report=False)
    for shard in range(3):
        draws = [np.load(p / f"draws/{shard:05d}.npy") for p in (run.path / "laps/001", uncut.path / "laps/004")]
        assert draws[0].shape[0] == 2
        assert np.array_equal(*draws)
    assert same_weights(run.prior, uncut.prior)


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 8), ("float16", 11)])
def test_weights_in_16_bits(dtype, digits, uncut, tmp_path):
    """Weights are rounded to this number of binary digits and used in float32; the file is half as large."""
    hub.export_run(uncut.path, tmp_path / "out", dtype=dtype)
    prior, again = uncut.prior, diffem.load(tmp_path / "out")
    for name, weights in prior.network.state_dict().items():
        kept = again.network.state_dict()[name]
        assert kept.dtype == torch.float32
        normal = weights.abs() > 2.0**-14  # float16 has fewer digits below
        assert ((kept - weights).abs() <= 2.0**-digits * weights.abs())[normal].all()
    assert torch.equal(again.mean, prior.mean)
    hub.export_run(uncut.path, tmp_path / "whole")
    sizes = [hub.read_card(tmp_path / name)["files"]["model.safetensors"]["bytes"] for name in ("out", "whole")]
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.parametrize("damage", ["missing", "flipped", "exchanged"])
def test_an_error_names_a_missing_or_damaged_piece(damage, packed, tmp_path):
    folder = shutil.copytree(packed / "three", tmp_path / "copy")
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    if damage == "missing":
        second.unlink()
    elif damage == "flipped":
        data = bytearray(second.read_bytes())
        data[-1] ^= 1
        second.write_bytes(data)
    else:
        shutil.copy(first, second)
    with pytest.raises(InputError, match=second.name if damage != "exchanged" else "the card describes"):
        diffem.load(folder)


def test_a_new_export_removes_all_pieces_of_the_old_one(uncut, tmp_path):
    hub.export_run(uncut.path, tmp_path, piece=5000)
    hub.export_run(uncut.path, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"model.safetensors", "config.json", "README.md"}


def test_the_export_command_takes_size_and_type(uncut, tmp_path):
    result = command("export", uncut.path, "-o", tmp_path / "out", "--dtype", "float16", "--piece", "4K")
    assert result.returncode == 0, result.stderr
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    assert max(file.stat().st_size for file in files) <= 4000
    for option in (("--dtype", "float8"), ("--piece", "many"), ("--piece", "10")):
        assert command("export", uncut.path, "-o", tmp_path / "no", *option).returncode == 2


def test_laps_cannot_be_added_after_the_final_prior_has_begun(uncut):
    with pytest.raises(InputError, match="has already begun to train its final prior after 3 laps"):
        diffem.fit(observations(), {**CHAIN, "laps": 4}, uncut.path, progress=False)
