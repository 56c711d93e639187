"""A run on eight times as many observations needs no more memory: loading, start, E-step, M-step, evaluation, report
and export, in a separate process. One shard is held at a time, and a batch of draws needs a part of its budget."""

import os
import subprocess
import sys
import weakref

import pytest
import torch

import diffem
from diffem import Observations, operators
from diffem.em import e_step, screening
from diffem.files.memory import WORKING_BYTES

from .small import RECIPE, observations

SCRIPT = """
import sys
import torch
import diffem
from diffem import Observations
from diffem.files import memory
from diffem.observations import batches
from diffem.em import model_check
from diffem.em.model_check import pairing
from diffem.em import exports as hub
from diffem.priors import fit_low_rank
from diffem.report.page import write_report
from benchmarks.undrawn import undrawn

torch.set_num_threads(1)
# budgets that the data exceed by far, as large data exceed the real ones
memory.RESIDENT_BYTES, memory.WORKING_BYTES, batches.SCANNED_BYTES = 1 << 18, 4 << 20, 1 << 18
# what looks at a fixed number of observations looks at fewer than the smaller run has
fit_low_rank.STARTED_FROM, model_check.CHECKED, pairing.OBSERVATIONS, pairing.VALUES = 64, 64, 16, 16
file, out = sys.argv[1:]
recipe = {
    "name": "memory", "data": {"source": "file", "path": file}, "laps": 1,
    "gaussian": {"rank": 2, "rounds": 1},
    "network": {"kind": "mlp", "hidden": [16]},
    "e_step": {"steps": 1, "shard": 125},
    "train": {"steps": 4, "batch": 32, "measured": 0.5},
    "watch": {"held_out": 16, "draws": 2, "samples": 16},
}
diffem.fit(None, recipe, out, progress=False, device="cpu", report=False)
obs = Observations.load(file)
with undrawn():
    write_report(out, obs)
hub.export_run(out, out + "-export", obs=obs)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
DRAWS = """
import torch
from diffem import Observations, operators, priors
from diffem.linalg import LowRank

def memory(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
prior = priors.GaussianPrior(torch.zeros(1, 32, 32), LowRank(torch.randn(4, 1, 32, 32, generator=generator), 0.1))
n = prior.batch_for(1 << 20)
mask = torch.rand(n, 1, 32, 32, generator=generator) < 0.5
obs = Observations(torch.where(mask, torch.randn(mask.shape, generator=generator), 0), operators.Mask(mask), sigma=0.1)
prior.posterior(obs[:64]).sample()  # loads libraries
before = memory("VmRSS")
prior.posterior(obs).sample()
print(memory("VmHWM") - before)
"""
# freed memory goes back at once: what is measured is what is held, not what the allocator keeps
ENVIRONMENT = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
GROWTH = 3 << 10  # KiB, between 500 and 4,000 observations: 3,500 more are 4.3 MiB, their draws 3.4 MiB


def begun(n, folder):
    """A process that carries out a run on n observations."""
    generator = torch.Generator().manual_seed(0)
    y, mask = torch.randn(n, 256, generator=generator), torch.rand(n, 256, generator=generator) < 0.5
    file = folder / f"{n}.safetensors"
    Observations(torch.where(mask, y, 0), operators.Mask(mask), sigma=0.1).save(file)
    return started(SCRIPT, str(file), str(folder / f"run-{n}"))


def started(script, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def number_from(process):
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return int(output.split()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
def test_memory_does_not_grow_with_the_number_of_observations(tmp_path):
    few, many = map(number_from, [begun(n, tmp_path) for n in (500, 4000)])
    assert many - few < GROWTH, (few, many)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from Linux's /proc")
def test_a_batch_of_exact_draws_needs_half_of_its_budget():
    """Conjugate gradients on the whole batch would take all of it. In parts, a draw takes about a third."""
    assert number_from(started(DRAWS)) << 10 < WORKING_BYTES // 2


def test_a_shard_is_freed_before_the_next_one_is_drawn(tmp_path, monkeypatch):
    """Otherwise two shards are held, but only in runs with more than one."""
    draw, shards = e_step.draw, []

    def spied(*arguments):
        assert [shard() for shard in shards] == [None] * len(shards)
        shard = draw(*arguments)
        shards.append(weakref.ref(shard))
        return shard

    monkeypatch.setattr(e_step, "draw", spied)
    diffem.fit(observations(), RECIPE | {"laps": 1}, tmp_path / "run", progress=False, device="cpu", report=False)
    assert len(shards) == 3  # 120 training observations in shards of 40


def test_draws_are_screened_alike_in_parts_of_any_size(monkeypatch):
    obs = observations()
    x = torch.randn(len(obs), 4, generator=torch.Generator().manual_seed(1))
    found = []
    for size in (1 << 20, 16 * 7):  # all together, and in parts of 7
        monkeypatch.setattr(screening, "PART_BYTES", size)
        found.append((screening.screen(x, obs, threshold=30.0, bound=2.0), screening.total_chi2(x, obs)))
    (together, chi2), (parts, chi2_of_parts) = found
    assert all(map(torch.equal, together, parts))
    assert chi2 == chi2_of_parts  # bit for bit, because the sums are the same
