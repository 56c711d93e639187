"""The packages are imported when they are used, and named when they are missing."""

import subprocess
import sys

import pytest

from benchmarks.peers import available

PEERS = ("deepinv", "azula", "diffusers")


def test_the_rest_of_the_library_imports_none_of_them():
    code = f"import sys, diffem, diffem.interop, diffem.interop.hub; print(*{{*{PEERS}, 'torchvision'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", PEERS)
def test_a_missing_package_is_named(package):
    if available(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(ImportError, match=rf"{package}.*pip install"):
        __import__(f"diffem.interop.{package}")
