"""Fixtures shared by the suite. `--device` runs the batteries on another device.

No result of a test depends on the number of cores, on the tests before it or on the worker it runs in.
"""

import os
import random
import signal
import zlib

import numpy as np
import pytest
import torch

# One thread, here and in the processes that tests start, so that sums have the same order on every machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

# A shell without job control starts background jobs with Ctrl-C ignored, and children inherit that: tests that send
# SIGINT, to themselves or to a child, would wait for ever. SIGHUP is left as it is, for the sake of `nohup`.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device for the operator, solver and posterior batteries")


# seconds; like the limit of the other tests in pyproject.toml, it only ends and names a test that hangs
SLOW_TIMEOUT = 1800


# Files with the longest tests, which are started first, so that no worker runs one of them alone at the end.
LONGEST = (
    "test_chaos.py",
    "test_corpus.py",
    "test_code_blocks.py",
    "test_resume.py",
    "test_conditional_training.py",
    "test_conditional_runs.py",
    "test_units.py",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    return torch.device(request.config.getoption("--device"))


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Seed a fixture of a module or session separately, because it is created by whichever test runs first."""
    if fixturedef.scope != "function":
        seed_all(zlib.crc32(fixturedef.argname.encode()))
    return (yield)


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    torch.set_num_threads(1)
    seed_all(0)
