"""A missing package is named in the error. tests/test_import.py tests that no other module imports these packages."""

import pytest

from benchmarks.peers import available

PEERS = ("deepinv", "azula", "diffusers")


@pytest.mark.parametrize("package", PEERS)
def test_a_missing_package_is_named(package):
    if available(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(ImportError, match=rf"{package}.*pip install"):
        __import__(f"diffem.interop.{package}")
