"""A run on digits that is small enough for a test, and pictures to upload."""

import io

import numpy as np
import pytest
from PIL import Image

import diffem
from benchmarks.undrawn import undrawn
from diffem.app.viewer import Viewer
from diffem.datasets.digits import images

CHANGES = {
    "laps": 2, "train.steps": 60, "train.first_steps": 120, "train.batch": 32, "network.hidden": [64],
    "e_step.steps": 4, "e_step.draws": 1, "e_step.redraws": 0, "gaussian.rounds": 3,
    "watch.held_out": 16, "watch.samples": 32, "watch.draws": 2,
}  # fmt: skip


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("app") / "digits"
    with undrawn():
        return diffem.fit(None, "digits", out, changes=CHANGES, device="cpu").path


@pytest.fixture(scope="session")
def viewer(run):
    return Viewer(run, device="cpu")


def png(x: np.ndarray, mode: str = "L", scale: int = 4) -> bytes:
    """Encode samples in [-2, 2] as a picture file."""
    image = Image.fromarray(((x + 2) / 4 * 255).round().astype(np.uint8)).convert(mode)
    buffer = io.BytesIO()
    image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def digit() -> np.ndarray:
    return images()[7].numpy()


@pytest.fixture(scope="session")
def picture(digit) -> bytes:
    return png(digit)
