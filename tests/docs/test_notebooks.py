"""The notebooks run completely, in an empty folder and with tiny runs, and their saved outputs contain no errors."""

import json
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from diffem.datasets.digits import images

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = ["own-images", "table"]
WRITTEN = {"own-images": "completed.npz", "table": "filled.csv"}


def cells(name):
    return [cell for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_run(name, tiny, tmp_path, monkeypatch):
    if name == "table" and find_spec("sklearn") is None:
        pytest.skip("the extra data is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setattr("diffem.datasets.digits.images", lambda: images()[:300])
    names = {"__name__": "notebook"}
    for i, cell in enumerate(cells(name)):
        source = "".join(cell["source"]).replace("draws=16", "draws=5")
        exec(compile(source, f"{name}, cell {i}", "exec"), names)
    assert (tmp_path / WRITTEN[name]).is_file()
    if name == "table":
        assert not names["filled"].isna().any(axis=None)
        assert names["filled"][~names["gaps"]].equals(names["table"])  # the measured values are kept
    else:
        assert names["mean"].shape == names["y"][:10].shape
        assert names["mean"].isfinite().all()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_saved_outputs_are_complete_and_small(name):
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    assert all(cell["execution_count"] == i + 1 for i, cell in enumerate(cells(name)))  # executed once, in order
    kinds = {output["output_type"] for cell in cells(name) for output in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert any(output.get("name") == "stdout" for cell in cells(name) for output in cell["outputs"])
    assert not any(output.get("name") == "stderr" for cell in cells(name) for output in cell["outputs"])
