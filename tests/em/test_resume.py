"""A run killed at any instant and started again ends with the same bits."""

import random
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import diffem
from diffem.priors.files import load_with_description

from .events import phase, start
from .small import RECIPE, observations


def contents(run: Path) -> dict[str, np.ndarray]:
    """Every weight and draw of a run."""
    out = {}
    for file in sorted(run.glob("laps/*/prior.safetensors")):
        prior, _ = load_with_description(file)
        for name, tensor in prior.state_dict().items():
            out[f"{file.parent.name}/{name}"] = tensor.numpy()
    for file in sorted(run.glob("laps/*/draws/*.npy")):
        out[str(file.relative_to(run))] = np.load(file)
    return out


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """An uninterrupted run, and the number of events in each of its phases, in order."""
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    code, events, errors = start(out).communicate()
    assert code == 0, errors
    return out, Counter(events.splitlines())


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_instants(kills, undisturbed, tmp_path):
    """SIGKILL at random events: runs are killed in one phase after another, each phase at most once per run, and
    resumed."""
    reference, events = undisturbed
    assert list(events) == ["000 start", "001 E", "001 M", "001 saving", "002 E", "002 M", "002 saving"]
    rng, run = random.Random(kills), 0
    while kills:
        out, run = tmp_path / f"run{run}", run + 1
        chosen = sorted(rng.sample(list(events), min(kills, len(events))), key=list(events).index)
        kills -= len(chosen)
        for where in chosen:
            code, _, errors = start(out, "kill", where, rng.randint(1, events[where])).communicate()
            assert code == -signal.SIGKILL, (where, errors)
            assert phase(out) == where
        code, _, errors = start(out).communicate()
        assert code == 0, errors
        assert same(contents(out), contents(reference)), chosen


def test_calling_again_returns_at_once(undisturbed):
    out, _ = undisturbed
    before = {file: file.stat().st_mtime_ns for file in out.glob("laps/**/*") if file.is_file()}
    run = diffem.fit(observations(), RECIPE, out, progress=False)
    assert len(run.laps) == 3
    assert {file: file.stat().st_mtime_ns for file in out.glob("laps/**/*") if file.is_file()} == before


def test_a_finished_run_can_be_given_more_laps(undisturbed, tmp_path):
    torch.set_num_threads(1)
    reference, _ = undisturbed
    out = tmp_path / "longer"
    diffem.fit(observations(), {**RECIPE, "laps": 1}, out, progress=False)
    diffem.fit(observations(), RECIPE, out, progress=False)
    assert same(contents(out), contents(reference))


def test_a_damaged_shard_is_recomputed(undisturbed, tmp_path):
    import shutil

    reference, _ = undisturbed
    torch.set_num_threads(1)
    for damage in ("flip", "truncate", "report"):
        out = tmp_path / damage
        shutil.copytree(reference, out)
        shutil.rmtree(out / "laps" / "002")
        folder = out / "laps" / "002" / "draws"
        shutil.copytree(reference / "laps" / "002" / "draws", folder)
        victim = folder / "00001.npy"
        data = bytearray(victim.read_bytes())
        if damage == "flip":
            data[-5] ^= 0x10
            victim.write_bytes(bytes(data))
        elif damage == "truncate":
            victim.write_bytes(bytes(data[:-40]))
        else:
            (folder / "00001.json").unlink()
        diffem.fit(observations(), RECIPE, out, progress=False)
        assert same(contents(out), contents(reference)), damage


def test_micro_batches_change_nothing_that_matters(undisturbed, tmp_path):
    """Random numbers are addressed; the remaining difference is rounding in matrix products of other shapes."""
    reference, _ = undisturbed
    torch.set_num_threads(1)
    out = tmp_path / "small batches"
    recipe = {**RECIPE, "laps": 1, "e_step": {**RECIPE["e_step"], "batch": 7}}
    diffem.fit(observations(), recipe, out, progress=False)
    for k in range(3):
        a, b = (np.load(run / "laps/001/draws" / f"{k:05d}.npy") for run in (reference, out))
        assert np.allclose(a, b, atol=1e-4)


def test_a_second_process_is_rejected(tmp_path):
    started = start(tmp_path / "run", "wait", "001 E", 1)
    try:
        started.wait_for("waiting")
        with pytest.raises(ValueError, match="another process is working on"):
            diffem.fit(observations(), RECIPE, tmp_path / "run", progress=False)
    finally:
        started.process.kill()
        started.communicate()
