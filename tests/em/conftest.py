"""Fixtures of the tests of the loop."""

from __future__ import annotations

import pytest
import torch

import diffem

from ..undrawn import _undrawn  # noqa: F401 (a fixture)
from .small import CONDITIONAL, observations


@pytest.fixture(scope="session")
def conditional_run(tmp_path_factory: pytest.TempPathFactory) -> diffem.Run:
    """A short run with a conditional network."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "conditional"
    return diffem.fit(
        observations(), {**CONDITIONAL, "train": {**CONDITIONAL["train"], "steps": 40}}, out, progress=False
    )
