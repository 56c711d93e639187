"""Several processes on one run: the same draws, the same weights, and an end when one of them is gone."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from diffem.interruption import EXIT_LOST, EXIT_PREEMPTED
from diffem.processes import ALONE, Processes, join

from .em.test_resume import contents

RECIPE = """
name: several
data: {source: manifold, n: 300}
laps: 2
sigma_min: 0.01
sigma_max: 10.0
gaussian: {rounds: 8}
network: {kind: mlp, hidden: [24, 24], embedding: 16}
e_step: {steps: 6, iterations: 2, shard: 30}
train: {steps: 150, batch: 32, lr: 1.0e-3, ema: 0.98, checkpoint_seconds: 0.1}
watch: {held_out: 16, draws: 4, samples: 32}
"""


def port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(folder: Path, count: int, *changes: str) -> list[subprocess.Popen]:
    """As many nodes with one process each, started one by one, as a cluster would."""
    recipe = folder.parent / "several.yaml"
    recipe.write_text(RECIPE)
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port()), "OMP_NUM_THREADS": "1"}
    options = [f"--set={change}" for change in changes]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "diffem", "fit", str(recipe), "-o", str(folder), *options],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


def finish(processes: list[subprocess.Popen], code: int = 0) -> str:
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), outputs
    return outputs[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "alone"
    finish(launch(folder, 1))
    return contents(folder)


def compare(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        if name.startswith("laps/001/draws"):
            assert np.array_equal(one[name], other[name]), name
    weights = [name for name in one if name.startswith("001/network")]
    error = sum(((one[n] - other[n]) ** 2).sum() for n in weights) ** 0.5
    assert error < 1e-6 * sum((one[n] ** 2).sum() for n in weights) ** 0.5


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_number_of_processes_changes_nothing(alone, count, tmp_path):
    """Draws bit for bit; weights up to the order in which gradients are summed (float32)."""
    output = finish(launch(tmp_path / "run", count))
    assert f"on {count} processes" in output
    compare(alone, contents(tmp_path / "run"))
    assert not list((tmp_path / "run").rglob("*.partial"))


@pytest.mark.slow
def test_draws_of_a_network_too(tmp_path):
    """From the same weights, the draws of a network are the same bits on any number of processes."""
    finish(launch(tmp_path / "first", 1, "laps=1"))
    start = f"start={tmp_path / 'first' / 'laps' / '001' / 'prior.safetensors'}"
    runs = []
    for count in (1, 2, 3):
        finish(launch(tmp_path / str(count), count, start, "laps=1"))
        runs.append(contents(tmp_path / str(count)))
    for other in runs[1:]:
        compare(runs[0], other)


@pytest.mark.slow
def test_asked_to_stop_and_resumed_by_another_number(alone, tmp_path):
    processes = launch(tmp_path / "run", 2, "train.steps=3000")
    wait_for(tmp_path / "run" / "laps" / "001" / "training.safetensors", processes)
    processes[1].send_signal(signal.SIGTERM)  # one is asked, all stop
    output = finish(processes, EXIT_PREEMPTED)
    assert "the same command resumes" in output
    finish(launch(tmp_path / "run", 1, "train.steps=3000"))
    finish(launch(tmp_path / "undisturbed", 1, "train.steps=3000"))
    one, other = contents(tmp_path / "undisturbed"), contents(tmp_path / "run")
    assert all(np.array_equal(one[n], other[n]) for n in one if n.startswith("laps/001/draws"))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_is_killed_the_others_stop_within_a_minute(rank, tmp_path):
    processes = launch(tmp_path / "run", 2, "train.steps=1000000")
    wait_for(tmp_path / "run" / "laps" / "001" / "training.safetensors", processes)
    processes[rank].kill()
    processes[rank].communicate()
    killed = time.monotonic()
    output = processes[1 - rank].communicate(timeout=90)[0]
    assert time.monotonic() - killed < 60
    assert processes[1 - rank].returncode == EXIT_LOST
    assert "Nothing is lost: the same command resumes." in output


def wait_for(file: Path, processes: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + 120
    while not file.exists():
        assert all(process.poll() is None for process in processes), [p.communicate()[0] for p in processes]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_bad_input_ends_every_process_with_the_same_message(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "other").touch()
    processes = launch(tmp_path / "run", 2)
    outputs = [p.communicate(timeout=120)[0] for p in processes]
    assert [p.returncode for p in processes] == [2, 2]
    assert all("is not empty and not a run" in output for output in outputs)


def test_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join() is ALONE
    assert Processes().any(True)
    assert not Processes().any(False)
    assert Processes().share([1, 2]) == [1, 2]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=r"RANK, MASTER_ADDR and MASTER_PORT.*accelerate launch"):
        join()
