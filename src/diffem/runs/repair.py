"""Damaged and foreign files of a run are renamed, so that `fit` recomputes them like missing files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import ForeignFileError, InputError
from ..files.origin import Origin, require_origin
from ..files.tensors import read_tensors
from ..files.writing import notice
from .schema import Recipe


class LapFiles(Protocol):
    """The parts of `RunDir` that this module uses."""

    def recipe(self) -> Recipe: ...
    def file(self, k: int, name: str) -> Path: ...
    def lap_metrics(self, k: int) -> dict[str, Any]: ...
    def origin(self, kind: str, lap: int) -> Origin | None: ...


def rename_damaged(run: LapFiles) -> list[Path]:
    """Rename the damaged and foreign files of all laps, print a notice for each, and return their paths."""
    aside = []
    for lap in range(run.recipe().last_lap + 1):
        for name in ("metrics.json", "prior.safetensors", "training.safetensors", "start.safetensors"):
            file = run.file(lap, name)
            if file.exists() and (error := _reason_unusable(run, lap, file)) is not None:
                rename_unusable(error, file)
                aside.append(file)
    return aside


def rename_unusable(error: InputError, *files: Path) -> None:
    """Rename unusable files, and print the reason."""
    suffix = "foreign" if isinstance(error, ForeignFileError) else "damaged"
    for file in files:
        os.replace(file, file.with_name(f"{file.name}.{suffix}"))
    renamed = " and ".join(f"{file.name}.{suffix}" for file in files)
    notice(f"{error}; renamed to {renamed}, and recomputed")


def _reason_unusable(run: LapFiles, lap: int, file: Path) -> InputError | None:
    """Return the reason why a file is unusable; None if it is usable."""
    try:
        if file.name == "metrics.json":
            run.lap_metrics(lap)
        else:
            _, description = read_tensors(file)
            require_origin(description, run.origin(file.name.partition(".")[0], lap), file)
    except InputError as error:
        return error
    return None
