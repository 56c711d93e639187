"""Real data and networks, where the environment variable DIFFEM_ASSETS names a folder that holds them; otherwise tests skip."""

import os
from pathlib import Path

import pytest


def asset(name: str) -> Path:
    """The path of an asset such as `cifar10` or `fid/inception-2015-12-05.pt`, or a skip that says what is missing."""
    folder = os.environ.get("DIFFEM_ASSETS")
    if not folder:
        pytest.skip(f"set DIFFEM_ASSETS to a folder that holds {name}")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"DIFFEM_ASSETS holds no {name}")
    return path
