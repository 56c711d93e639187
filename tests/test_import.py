"""Importing the library is cheap and pulls in nothing it does not need."""

import subprocess
import sys

CODE = """
import sys, time
import torch
start = time.process_time()  # of the processor: a busy machine does not count
import diffem
elapsed = time.process_time() - start
heavy = {"sklearn", "matplotlib", "ot", "torchmetrics", "accelerate", "pydantic", "typer", "rich", "h5py", "deepinv", "azula", "diffusers", "pandas"} & set(sys.modules)
print(elapsed, *heavy)
"""


def test_import_is_cheap():
    runs = [subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True) for _ in range(3)]
    elapsed = [float(run.stdout.split()[0]) for run in runs]
    assert min(elapsed) < 0.5
    assert runs[0].stdout.split()[1:] == []


def test_public_names():
    import diffem

    for name in diffem.__all__:
        assert hasattr(diffem, name), name
