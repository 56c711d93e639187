"""A run's folder: what is in it, and how a run is opened, locked and continued.

    recipe.yaml  run.json  metrics.jsonl  report.html
    laps/000/    prior.safetensors (the start)  metrics.json  start.safetensors (while the start is fitted)
    laps/KKK/    prior.safetensors  draws/NNNNN.npy (+ .json)  metrics.json  samples.npy  posterior.npy  *.png

A lap is done when its `metrics.json` is there. Everything else is made again if it is missing. Every file of it is inside the folder: links
that lead out are not followed, neither for reading nor for writing. Every file names the run and lap it belongs to (`files/origin.py`); in folders
of format 2 and earlier none does, and they keep their format when they are continued.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.version import __version__
from ..files.origin import Origin
from ..files.reading import JSON_BYTES, parse_json, read_text, require_inside
from ..files.writing import clear_partials, read_json, write_json, write_text
from ..observations import Observations, Problem
from ..observations.fingerprint import data_fingerprint, tensors_fingerprint
from .changes import differences, located, moved
from .lap_metrics import wrong_number
from .naming import run_name
from .python_source import python_problem
from .recipe import Recipe, has_checksum, load_recipe, named_run
from .repair import set_damaged_aside
from .sources import SOURCES

FORMAT = 3  # of the folder: 2 keeps checksums in its text files, in 3 every file names its run
BEGUN = {".lock", "run.json"}  # what a run that was stopped while it began may have left


class RunDir:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._name: tuple[str, int] | None = None  # name and seed of the run, once they were read

    # names ---------------------------------------------------------------------------------------------------------------

    def inside(self, path: Path) -> Path:
        """`path` below the folder, or an error where links lead out of it."""
        return require_inside(path, self.path)

    def lap(self, k: int) -> Path:
        return self.inside(self.path / "laps" / f"{k:03d}")

    def file(self, k: int, name: str) -> Path:
        """A file of lap k."""
        return self.inside(self.lap(k) / name)

    def prior_file(self, k: int) -> Path:
        return self.file(k, "prior.safetensors")

    def metrics_file(self, k: int) -> Path:
        return self.file(k, "metrics.json")

    def done(self, k: int) -> bool:
        return self.metrics_file(k).is_file() and self.prior_file(k).is_file()

    def laps_done(self) -> int:
        """The last lap that is complete; −1 when not even the start is."""
        k = -1
        while self.done(k + 1):
            k += 1
        return k

    def finished_lap(self, lap: int | None = None) -> int:
        """The lap, checked for being finished; the last one when none is given."""
        last = self.laps_done()
        if last < 0:
            raise InputError(f"{self.path}: no lap of this run is finished yet")
        if lap is not None and not 0 <= lap <= last:
            raise InputError(f"{self.path}: lap {lap} is not there; finished laps are 0 to {last}")
        return last if lap is None else lap

    def origin(self, kind: str, lap: int) -> Origin | None:
        """What a file of lap `lap` must name as its origin; None for folders whose format has no such names."""
        if self._name is None:
            info = self.info()
            self._name = (info["name"] if info.get("format", 1) >= 3 else "", info["seed"])
        name, seed = self._name
        return Origin(kind, name, seed, lap) if name else None

    # opening -------------------------------------------------------------------------------------------------------------

    def recipe(self) -> Recipe:
        file = self.inside(self.path / "recipe.yaml")
        if not file.is_file():
            raise InputError(f"{self.path} is not a run: there is no recipe.yaml in it")
        info = self.info()
        if info.get("format", 1) >= 2 and not has_checksum(file):
            raise InputError(f"{file} is damaged: its last line, a checksum, is missing")
        if info.get("format", 1) >= 3 and (named := named_run(file)) != info["name"]:
            raise InputError(f"{file} belongs elsewhere: it names run {str(named)[:32]}, run.json names {info['name']}")
        recipe = load_recipe(str(file))
        if recipe.seed != info["seed"]:
            raise InputError(f"{file} has seed {recipe.seed}, run.json has seed {info['seed']}")
        return recipe

    def problem(self, source: str | None = None) -> Problem | None:
        """The run's observations, made again by its recipe's data source; None if they were passed from Python.

        Args:
            source: The function that made them, `module:function`, where the recipe names one. It is executed only if it is named here:
                the folder may be somebody else's. Without it the result is None, as for observations passed from Python.

        Raises:
            InputError: If the source now makes other observations than those of the run, or is not the run's.
        """
        recipe = located(self.recipe(), self.path)
        if source is not None and source != recipe.data.source:
            raise InputError(f"{self.path}: its observations come from {recipe.data.source!r}, not from {source!r}")
        if recipe.data.source == "given" or (":" in recipe.data.source and source is None):
            return None
        try:
            problem = recipe.problem() if source is None else _from_python(recipe)
        except InputError as error:
            raise InputError(f"{self.path}: its data cannot be read again: {error}") from None
        self.require_observations(problem.obs, f"those of the data source {recipe.data.source!r}")
        return problem

    def require_observations(self, obs: Observations, source: str) -> None:
        """Raise an `InputError` if `obs` are not the observations of this run; source: what the message calls them."""
        info = self.info()
        if (found := _fingerprint(obs, info)) != info["observations"]:
            raise InputError(
                f"{self.path}: the observations have changed: {source} have fingerprint {found[:8]}…, "
                f"those of this run {info['observations'][:8]}…"
            )

    def info(self) -> dict[str, Any]:
        file = self.inside(self.path / "run.json")
        info = read_json(file)
        kinds: dict[str, type] = {"version": str, "seed": int, "observations": str, "status": str}
        if not isinstance(info, dict) or not all(isinstance(info.get(name), kind) for name, kind in kinds.items()):
            raise InputError(f"{file} does not describe a run: needed are {', '.join(kinds)}")
        if not isinstance(info.get("format", 1), int) or info.get("format", 1) > FORMAT:
            raise InputError(f"{file} has format {info['format']!r}, this version reads up to {FORMAT}")
        if info.get("format", 1) >= 3 and not (isinstance(info.get("name"), str) and info["name"]):
            raise InputError(f"{file} does not describe a run: it has no name")
        return info

    def open(self, recipe: Recipe, obs: Observations, start: str | None = None) -> Recipe:
        """Create the folder, or continue what is in it if it is the same run; returns the recipe to follow.

        The recipe may ask for more laps than the folder's, and may name other places on disk for the same data.

        Args:
            recipe: The recipe to follow.
            obs: The observations of the run.
            start: The fingerprint of a prior passed from Python to start from.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder")
        file = self.path / "recipe.yaml"
        if not file.exists():
            if self.path.is_dir() and any(not _begun(entry.name) for entry in self.path.iterdir()):
                raise InputError(f"{self.path} is not empty and not a run; choose another folder")
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot create {self.path}: {error}") from None
        self.lock()
        try:
            return self._continue(recipe, obs, start) if file.exists() else self._begin(recipe, obs, start)
        except BaseException:
            self.unlock()
            raise

    def _begin(self, recipe: Recipe, obs: Observations, start: str | None) -> Recipe:
        clear_partials(self.path)
        observations = data_fingerprint(obs)
        name = run_name(recipe, observations, start)
        info = {"version": __version__, "format": FORMAT, "name": name, "seed": recipe.seed}
        write_json(self.path / "run.json", {**info, "observations": observations, "start": start, "status": "running"})
        write_text(self.path / "recipe.yaml", recipe.to_file(name))
        return recipe

    def _continue(self, recipe: Recipe, obs: Observations, start: str | None) -> Recipe:
        self._require_version()
        info, old = self.info(), self.recipe()
        there = moved(old, recipe)
        changed = differences(there.model_dump(mode="json"), recipe.model_dump(mode="json"))
        longer = recipe.laps > old.laps and len(changed) == 1
        if changed and not longer:
            raise InputError(f"{self.path} holds a run of another recipe; it differs in {'; '.join(changed)}")
        if longer and old.final is not None and self.lap(old.last_lap).exists():
            raise InputError(
                f"{self.path} has begun its final prior after {old.laps} laps and takes no more; for more laps start another run from it"
            )
        if info["observations"] != _fingerprint(obs, info):
            raise InputError(f"{self.path} holds a run on other observations; choose another folder")
        # the start is in the folder once lap 0 is done, and need not be passed again
        if info.get("format", 1) >= 3 and info.get("start") != start and not (start is None and self.done(0)):
            if start is None:
                raise InputError(f"{self.path} holds a run that starts from a prior passed from Python; pass it again")
            raise InputError(f"{self.path} holds a run with another start; choose another folder")
        clear_partials(self.path)
        if recipe != old:
            write_text(self.path / "recipe.yaml", recipe.to_file(info.get("name", "")))
        set_damaged_aside(self)
        return recipe

    def _require_version(self) -> None:
        """Before anything else is asked of it: another version may write its files in other ways."""
        file = self.inside(self.path / "run.json")
        info = parse_json(read_text(file, JSON_BYTES), str(file))
        version = str(info.get("version")) if isinstance(info, dict) else "?"
        if version.split(".")[:2] != __version__.split(".")[:2]:
            raise InputError(
                f"{self.path} was made by version {version[:40]}, this is {__version__}; choose another folder"
            )

    def lock(self) -> None:
        """Refuse a second process while the first lives; the operating system frees the lock with the process."""
        import fcntl

        try:
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise InputError(f"cannot work in {self.path}: {error.strerror} (.lock)") from None
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
        """The lap's `metrics.json` is the last thing written in it; after it the lap counts."""
        origin = self.origin("metrics", k)
        metrics = metrics if origin is None else {**metrics, "origin": origin.note()}
        others = [self.lap_metrics(j) for j in range(self.recipe().last_lap + 1) if j != k and self.done(j)]
        log = sorted([*others, metrics], key=lambda m: m["lap"])
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(m) + "\n" for m in log))
        write_json(self.metrics_file(k), metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """What every finished lap measured, the start first."""
        return [self.lap_metrics(k) for k in range(self.laps_done() + 1)]

    def lap_metrics(self, k: int) -> dict[str, Any]:
        """What lap k measured."""
        file, origin = self.metrics_file(k), self.origin("metrics", k)
        metrics = read_json(file)
        if not isinstance(metrics, dict) or metrics.get("lap") != k or isinstance(metrics["lap"], bool):
            raise InputError(f"{file} does not hold the measures of lap {k}")
        if origin is not None:
            origin.require(metrics.get("origin"), file)
        if (key := wrong_number(metrics)) is not None:
            raise InputError(f"{file}: {key} should be a number, got {type(metrics[key]).__name__}")
        each = metrics.get("predictive_each", [])
        if not isinstance(each, list) or not all(isinstance(value, int | float) for value in each):
            raise InputError(f"{file}: predictive_each should be a list of numbers")
        for name in ("warnings", "notes"):
            texts = metrics.get(name, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise InputError(f"{file}: {name} should be a list of texts")
        return metrics


def _from_python(recipe: Recipe) -> Problem:
    if recipe.data.source in SOURCES:
        return recipe.problem()
    return python_problem(recipe.data.source, recipe.seed, recipe.data.options("source"), Path.cwd())


def _begun(name: str) -> bool:
    return name in BEGUN or name.endswith(".partial")


def _fingerprint(obs: Observations, info: dict[str, Any]) -> str:
    """The fingerprint of observations as the run's format has it: until format 2 of the tensors alone."""
    return data_fingerprint(obs) if info.get("format", 1) >= 3 else tensors_fingerprint(obs)
