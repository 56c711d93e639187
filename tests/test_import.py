"""Importing the library is fast and imports no optional package."""

import subprocess
import sys
from importlib import import_module

import pytest

CODE = """
import sys, time
import torch
start = time.process_time()  # processor time, which does not depend on other load
from diffem import Observations, linalg, nn, operators, posterior, priors, samplers
priors.DiffusionPrior, priors.GaussianPrior, priors.fit_gaussian, posterior.Posterior  # imported here
elapsed = time.process_time() - start
heavy = {
    "sklearn", "matplotlib", "ot", "torchmetrics", "accelerate", "pydantic", "typer", "rich", "h5py", "deepinv",
    "azula", "diffusers", "pandas",
}
print(elapsed, *(heavy & set(sys.modules)))
"""


def test_import_is_cheap():
    elapsed = []
    # the fastest of three counts; usually the first is fast enough
    while min(elapsed, default=1.0) >= 0.5 and len(elapsed) < 3:
        run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        seconds, *heavy = run.stdout.split()
        elapsed.append(float(seconds))
        assert heavy == []
    assert min(elapsed) < 0.5


def test_the_package_alone_imports_neither_torch_nor_numpy():
    code = "import sys, diffem; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("module", ["diffem.posterior", "diffem.priors", "diffem.priors.gaussian"])
def test_posterior_methods_are_found_whichever_module_is_imported_first(module):
    code = f"import {module}; from diffem.priors.methods import METHODS; print(*METHODS)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mmps" in run.stdout.split()


@pytest.mark.parametrize("package", ["diffem", "diffem.posterior", "diffem.priors"])
def test_public_names_are_complete(package):
    """Names that are imported on first use are those that the package lists."""
    module = import_module(package)
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), name
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = module.missing


def test_registered_methods_have_the_names_of_their_classes():
    from diffem.posterior import METHODS

    assert {name: getattr(method, "method", name) for name, method in METHODS.items()} == {
        name: name for name in METHODS
    }
