"""Real data and networks in the folder DIFFEM_ASSETS; without the environment variable, their tests are skipped."""

import os
from pathlib import Path

import pytest


def asset(name: str) -> Path:
    """The path of an asset such as `cifar10` or `fid/inception-2015-12-05.pt`; skips the test if it is missing."""
    folder = os.environ.get("DIFFEM_ASSETS")
    if not folder:
        pytest.skip(f"set DIFFEM_ASSETS to a folder that contains {name}")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"DIFFEM_ASSETS contains no {name}")
    return path
