"""Fixtures shared by the suite. `--device` runs the batteries on another device where there is one."""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device for the operator, solver and posterior batteries")


SLOW_TIMEOUT = 1800  # seconds; like the limit of the others in pyproject.toml it only ends and names a test that hangs


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
