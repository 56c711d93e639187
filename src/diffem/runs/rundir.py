"""A run's folder: what is in it, and how a run is opened, locked and continued.

    recipe.yaml  run.json  metrics.jsonl  report.html
    laps/000/    prior.safetensors (the start)  metrics.json
    laps/KKK/    prior.safetensors  draws/NNNNN.npy (+ .json)  metrics.json  samples.npy  posterior.npy  *.png

A lap is done when its `metrics.json` is there. Everything else is made again if it is missing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InputError
from .files import clear_partials, digest, read_json, write_json, write_text
from .recipe import Recipe, differences, load_recipe


class RunDir:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    # names ---------------------------------------------------------------------------------------------------------------

    def lap(self, k: int) -> Path:
        return self.path / "laps" / f"{k:03d}"

    def prior_file(self, k: int) -> Path:
        return self.lap(k) / "prior.safetensors"

    def metrics_file(self, k: int) -> Path:
        return self.lap(k) / "metrics.json"

    def done(self, k: int) -> bool:
        return self.metrics_file(k).is_file() and self.prior_file(k).is_file()

    def laps_done(self) -> int:
        """The last lap that is complete; −1 when not even the start is."""
        k = -1
        while self.done(k + 1):
            k += 1
        return k

    # opening -------------------------------------------------------------------------------------------------------------

    def recipe(self) -> Recipe:
        file = self.path / "recipe.yaml"
        if not file.is_file():
            raise InputError(f"{self.path} is not a run: there is no recipe.yaml in it")
        return load_recipe(str(file))

    def info(self) -> dict[str, Any]:
        info = read_json(self.path / "run.json")
        if not isinstance(info, dict) or "version" not in info:
            raise InputError(f"{self.path / 'run.json'} does not describe a run")
        return info

    def open(self, recipe: Recipe, observations: str) -> Recipe:
        """Create the folder, or continue what is in it if it is the same run; returns the recipe to follow.

        observations: the fingerprint of the data. More laps than the folder's recipe asks for is the one change accepted.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder")
        file = self.path / "recipe.yaml"
        if not file.exists():
            if self.path.is_dir() and any(self.path.iterdir()):
                raise InputError(f"{self.path} is not empty and not a run; choose another folder")
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot create {self.path}: {error}") from None
            self.lock()
            write_json(
                self.path / "run.json",
                {"version": __version__, "seed": recipe.seed, "observations": observations, "status": "running"},
            )
            write_text(file, recipe.to_yaml())
            return recipe
        self.lock()
        info, old = self.info(), self.recipe()
        if info["version"].split(".")[:2] != __version__.split(".")[:2]:
            raise InputError(
                f"{self.path} was made by version {info['version']}, this is {__version__}; choose another folder"
            )
        changed = differences(old.model_dump(mode="json"), recipe.model_dump(mode="json"))
        if recipe.laps > old.laps and len(changed) == 1:
            write_text(file, recipe.to_yaml())
            changed = []
        if changed:
            raise InputError(f"{self.path} holds a run of another recipe; it differs in {'; '.join(changed)}")
        if info["observations"] != observations:
            raise InputError(f"{self.path} holds a run on other observations; choose another folder")
        clear_partials(self.path)
        return recipe

    def lock(self) -> None:
        """Refuse a second process while the first lives; the operating system frees the lock with the process."""
        import fcntl

        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise InputError(f"another process is working on {self.path}") from None
        self._lock = descriptor

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # writing -------------------------------------------------------------------------------------------------------------

    def set_status(self, status: str) -> None:
        write_json(self.path / "run.json", {**self.info(), "status": status})

    def finish_lap(self, k: int, metrics: dict[str, Any]) -> None:
        """The last thing written in a lap; after it the lap counts."""
        write_json(self.metrics_file(k), metrics)
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(m) + "\n" for m in self.metrics()))

    def metrics(self) -> list[dict[str, Any]]:
        return [read_json(self.metrics_file(k)) for k in range(self.laps_done() + 1)]


def fingerprint(tensors: dict[str, Any]) -> str:
    """A hash of named tensors, the same whenever their bytes are."""
    parts = []
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous().numpy()
        # the array's own memory, not a copy of it: observations may be large
        parts.append(f"{name} {array.dtype} {array.shape} {digest(array.reshape(-1).view('u1').data)}")
    return digest("\n".join(parts).encode())[:32]
