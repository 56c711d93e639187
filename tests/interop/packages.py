"""The optional packages, or a reason to skip."""

import importlib
import warnings
from types import ModuleType

import pytest

from benchmarks.peers import available, torchvision_imports


def need(package: str) -> ModuleType:
    """Import a package, or skip the test module if it is not installed.

    `make peers` creates an environment with all packages.
    """
    if not available(package):
        pytest.skip(f"the package {package} is not installed; `make peers` runs these", allow_module_level=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchvision_imports()
        return importlib.import_module(package)
