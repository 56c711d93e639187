"""A run killed at any instant and started again ends with the same bits."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import diffem
from diffem.priors.files import load_with_description

from .small import RECIPE, observations

PROGRAM = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {root!r})
import diffem
from tests.em.small import RECIPE, observations
diffem.fit(observations(), RECIPE, {out!r}, progress=False)
"""
ROOT = Path(__file__).parents[2]


def start(out: Path) -> subprocess.Popen:
    program = PROGRAM.format(root=str(ROOT), out=str(out))
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


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


def phase(run: Path) -> str:
    """What a run was doing when it was killed, as its files tell."""
    laps = sorted(run.glob("laps/*"))
    if not laps or laps[-1].name == "000":
        return "start"
    last = laps[-1]
    if (last / "prior.safetensors").exists():
        return "saving"
    return "M" if len(list((last / "draws").glob("[0-9]*.npy"))) == 3 else "E"


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    began = time.monotonic()
    process = start(out)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return out, time.monotonic() - began


@pytest.mark.parametrize("total", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_instants(total, undisturbed, tmp_path):
    """SIGKILL at random instants, spread over E, M and saving, until runs have been killed so many times."""
    reference, seconds = undisturbed
    rng, kills, phases, runs = random.Random(total), 0, set(), 0
    while kills < total:
        out = tmp_path / f"run{runs}"
        runs += 1
        while True:
            process = start(out)
            try:
                # starting python takes a good part of the time; aim behind it
                process.wait(timeout=rng.uniform(0.5, 1.1) * seconds)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.communicate()
                kills += 1
                phases.add(phase(out))
                continue
            _, errors = process.communicate()
            assert process.returncode == 0, errors
            break
        assert same(contents(out), contents(reference)), f"run {runs} differs after {kills} kills"
    print(f"{kills} kills over {runs} runs, in {sorted(phases)}")
    if total >= 20:
        assert {"E", "M"} <= phases


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


def test_a_damaged_shard_is_made_again(undisturbed, tmp_path):
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
    """The random numbers are addressed; what is left is rounding in differently shaped matrix products."""
    reference, _ = undisturbed
    torch.set_num_threads(1)
    out = tmp_path / "small batches"
    recipe = {**RECIPE, "laps": 1, "e_step": {**RECIPE["e_step"], "batch": 7}}
    diffem.fit(observations(), recipe, out, progress=False)
    for k in range(3):
        a, b = (np.load(run / "laps/001/draws" / f"{k:05d}.npy") for run in (reference, out))
        assert np.allclose(a, b, atol=1e-4)


def test_a_second_process_is_refused(tmp_path):
    out = tmp_path / "run"
    process = start(out)
    try:
        while not (out / "recipe.yaml").exists():
            time.sleep(0.02)
        with pytest.raises(ValueError, match="another process is working on"):
            diffem.fit(observations(), RECIPE, out, progress=False)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
