"""The walk through the packages finds every milestone, and the sampler, denoiser, solver and operator on the way."""

import subprocess
import sys

import pytest


def walk(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.walk", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_posterior_draw_passes_sampler_denoiser_solver_and_operator():
    lines = [line.strip() for line in walk("posterior", "--leave-out", "core")]
    met = ["samplers/ddim DDIM.step", "posterior/mmps MMPS.evaluate", "linalg/solvers/cg cg"]
    at = [lines.index(line) for line in met]
    assert at == sorted(at)
    assert lines[-1].endswith("7 packages")
    assert not any(line.startswith("core/") for line in lines)


@pytest.mark.slow
def test_a_run_is_followed_to_its_first_shard():
    assert "runs/draws DrawStore.write" in [line.strip() for line in walk("fit")]
