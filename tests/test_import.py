"""Importing the library is fast and imports no optional package."""

import subprocess
import sys

CODE = """
import sys, time
import torch
start = time.process_time()  # processor time, which does not depend on other load
import diffem
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


def test_public_names():
    import diffem

    for name in diffem.__all__:
        assert hasattr(diffem, name), name
