"""The examples of docs/interop.md run unchanged, each by itself."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from benchmarks.peers import available, torchvision_imports

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
BLOCKS = re.findall(r"^## (.+?)$|^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
PEERS = ("deepinv", "azula", "diffusers")


def examples():
    title = ""
    for heading, code in BLOCKS:
        title = heading or title
        if code:
            yield pytest.param(code, id=title)


@pytest.mark.parametrize("code", list(examples()))
def test_every_example_of_the_page_runs(code, tmp_path, monkeypatch):
    for package in PEERS:
        if re.search(rf"^(import|from) {package}\b", code, re.MULTILINE) and not available(package):
            pytest.skip(f"the package {package} is not installed; `make peers` runs this")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchvision_imports()
        exec(compile(code, str(PAGE), "exec"), scope)
    for name in ("x", "x_hat", "draws"):
        if name in scope:
            assert torch.isfinite(scope[name]).all(), name
