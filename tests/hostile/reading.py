"""Functions that no command calls: reading exported priors, the draws of a lap, and what the app shows of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from diffem import InputError
from diffem.app import status
from diffem.app.viewer import Viewer
from diffem.em import exports as hub
from diffem.runs.draws import DrawStore
from diffem.runs.rundir import RunDir

from .sound import SHARD, TRAINED


def draws(path: Path) -> None:
    store = DrawStore.of_lap(RunDir(path), 1, TRAINED, SHARD)
    list(store.reports())
    store.all()


def look(path: Path) -> None:
    viewer = Viewer(path, device="cpu")
    status.progress(viewer)
    status.losses(viewer)
    for name in ("samples", "posterior"):
        viewer.read_saved(0, name)
    viewer.prior(0)
    viewer.observation_choices()


READERS: dict[str, Callable[[Path], object]] = {"hub": hub.load, "draws": draws, "look": look}


def read(arguments: list[str]) -> int:
    """Call a reader; an `InputError` is printed in the format of the command line."""
    try:
        READERS[arguments[0]](Path(arguments[1]))
    except InputError as error:
        print(f"diffem: {error}", file=sys.stderr)
        return 2
    return 0
