"""Several processes in one run: the same draws, the same weights, and all stop if one of them dies."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.faults import ReservedPort
from benchmarks.undrawn import undrawn
from diffem import fit
from diffem.core.interruption import EXIT_LOST, EXIT_PREEMPTED, ProcessLost
from diffem.core.processes import ALONE, BEAT, PATIENCE, Processes, join
from diffem.runs.recipe import load_recipe

from ..em.test_resume import contents

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

# the command line, without drawings in the report
COMMAND = "from benchmarks.undrawn import undrawn\nfrom diffem.cli import main\nwith undrawn():\n    main()"
ROOT = Path(__file__).parents[2]


def launch(folder: Path, count: int, *changes: str) -> list[subprocess.Popen]:
    """Start several nodes with one process each, one by one, like a cluster."""
    recipe = folder.parent / "several.yaml"
    recipe.write_text(RECIPE)
    port = ReservedPort()
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number)}
    options = [f"--set={change}" for change in changes]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COMMAND, "fit", str(recipe), "-o", str(folder), *options],
            env={**os.environ, **shared, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": "0"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    for process in processes:
        process.port = port  # ports are reserved while the processes live
    return processes


def ends(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """The exit code and the output of every process. The time limit of the test ends and names a process that hangs."""
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def finish(processes: list[subprocess.Popen], code: int = 0) -> str:
    ended = ends(processes)
    assert [ended_with for ended_with, _ in ended] == [code] * len(processes), ended
    return ended[0][1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights and draws of runs by this process alone, by number of laps."""

    @functools.cache
    def run(laps):
        folder = tmp_path_factory.mktemp("runs") / "alone"
        with undrawn():
            fit(None, load_recipe(yaml.safe_load(RECIPE), {"laps": laps}), folder, progress=False)
        return contents(folder)

    return run


def compare(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        if name.startswith("laps/001/draws"):
            assert np.array_equal(one[name], other[name]), name
    weights = [name for name in one if name.startswith("001/network")]
    error = sum(((one[n] - other[n]) ** 2).sum() for n in weights) ** 0.5
    assert error < 1e-6 * sum((one[n] ** 2).sum() for n in weights) ** 0.5


@pytest.mark.parametrize(
    ("count", "laps"),
    [(2, 1), pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(3, 2, marks=pytest.mark.slow)],
)
def test_results_do_not_depend_on_the_number_of_processes(alone, count, laps, tmp_path):
    """Draws are bit-identical; weights are equal up to the order in which gradients are summed (float32)."""
    output = finish(launch(tmp_path / "run", count, f"laps={laps}"))
    assert f"on {count} processes" in output
    compare(alone(laps), contents(tmp_path / "run"))
    assert not list((tmp_path / "run").rglob("*.partial"))


@pytest.mark.slow
def test_draws_of_a_network_do_not_depend_on_the_number_of_processes(tmp_path):
    """From the same weights, the draws of a network are bit-identical on any number of processes."""
    finish(launch(tmp_path / "first", 1, "laps=1"))
    start = f"start={tmp_path / 'first' / 'laps' / '001' / 'prior.safetensors'}"
    runs = []
    for count in (1, 2, 3):
        finish(launch(tmp_path / str(count), count, start, "laps=1"))
        runs.append(contents(tmp_path / str(count)))
    for other in runs[1:]:
        compare(runs[0], other)


@pytest.mark.slow
def test_a_signal_to_one_stops_all(tmp_path):
    processes = launch(tmp_path / "run", 2, "train.steps=1000000")
    wait_for(tmp_path / "run" / "laps" / "001" / "training.safetensors", processes)
    processes[1].send_signal(signal.SIGTERM)
    assert "the same command resumes" in finish(processes, EXIT_PREEMPTED)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_is_killed_the_others_stop_within_a_minute(rank, tmp_path):
    """A training of a million steps ends only if the process detects the loss of the other."""
    processes = launch(tmp_path / "run", 2, "train.steps=1000000")
    wait_for(tmp_path / "run" / "laps" / "001" / "training.safetensors", processes)
    processes[rank].kill()
    code, output = ends(processes)[1 - rank]
    assert code == EXIT_LOST, output
    assert "No work is lost: the same command resumes." in output
    assert PATIENCE + 2 * BEAT < 60


def wait_for(file: Path, processes: list[subprocess.Popen]) -> None:
    while not file.exists():
        if any(process.poll() is not None for process in processes):
            raise AssertionError(ends(processes))
        time.sleep(0.02)


def test_bad_input_ends_every_process_with_the_same_message(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "other").touch()
    for code, output in ends(launch(tmp_path / "run", 2)):
        assert code == 2, output
        assert "is not empty and contains no run" in output


def test_without_other_processes_nothing_is_exchanged(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join() is ALONE
    assert Processes().any(True)
    assert not Processes().any(False)
    assert Processes().broadcast([1, 2]) == [1, 2]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=r"RANK, MASTER_ADDR and MASTER_PORT.*accelerate launch"):
        join()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_does_not_wait_for_ever_for_one_that_never_comes(rank, monkeypatch):
    port = ReservedPort()
    shared = {"WORLD_SIZE": 2, "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port.number}
    for name, value in shared.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("diffem.core.processes.JOINING", 0.2)
    with pytest.raises(ProcessLost, match=f"not all 2 processes of the run connected to 127.0.0.1:{port.number}"):
        join()
