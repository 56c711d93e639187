"""A run folder: its files, and how it is opened, locked and resumed.

    recipe.yaml  run.json  metrics.jsonl  report.html
    laps/000/    prior.safetensors (the start)  metrics.json  start.safetensors (while the start is fitted)
    laps/KKK/    prior.safetensors  draws/NNNNN.npy (+ .json)  metrics.json  samples.npy  posterior.npy  *.png

A lap is finished when its `metrics.json` exists. All other files are recomputed if they are missing. Links that lead
out of the folder are not followed, neither for reading nor for writing. Every file contains the name of its run and its
lap (`files/origin.py`). Folders of format 2 and earlier have no such names, and keep their format when they are
resumed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.version import __version__
from ..files.origin import Origin, require_origin, stamped
from ..files.reading import JSON_BYTES, json_checksum, parse_json, read_json, read_text, require_inside
from ..files.writing import clear_partials, portable_json, write_json, write_text
from ..observations import Observations, Problem
from ..observations.fingerprint import data_fingerprint, tensors_fingerprint
from .changes import differences, with_description_of, with_paths_of, with_usable_paths
from .lap_metrics import wrong_number
from .python_source import python_problem
from .recipe import Recipe, has_checksum, load_recipe, name_of_run
from .repair import rename_damaged
from .sources import SOURCES

FORMAT = 3  # format of the folder: 2 added checksums to text files, 3 added the name of the run to every file
# Keys that do not change the contents of a run's files: laps may be added, and observations have their own fingerprint.
NOT_IN_NAME = {"name", "about", "laps", "data"}
BEGUN = {".lock", "run.json"}  # files of a run that was stopped before it wrote its recipe


class RunDir:
    """A run folder.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None
        self._name: tuple[str, int] | None = None  # name and seed of the run, read on first use

    def inside(self, path: Path) -> Path:
        """Return `path`, or raise an `InputError` if links lead out of the folder."""
        return require_inside(path, self.path)

    def lap(self, k: int) -> Path:
        """Return the folder of lap k."""
        return self.inside(self.path / "laps" / f"{k:03d}")

    def file(self, k: int, name: str) -> Path:
        """Return the path of a file of lap k."""
        return self.inside(self.lap(k) / name)

    def prior_file(self, k: int) -> Path:
        """Return the path of the prior of lap k."""
        return self.file(k, "prior.safetensors")

    def metrics_file(self, k: int) -> Path:
        """Return the path of the metrics of lap k."""
        return self.file(k, "metrics.json")

    def done(self, k: int) -> bool:
        """Whether lap k is finished."""
        return self.metrics_file(k).is_file() and self.prior_file(k).is_file()

    def laps_done(self) -> int:
        """Return the last lap up to which all laps are finished; −1 if lap 0 is not finished."""
        k = -1
        while self.done(k + 1):
            k += 1
        return k

    def finished_lap(self, lap: int | None = None) -> int:
        """Return `lap`, or the last finished lap for None; raise an `InputError` if it is not finished."""
        last = self.laps_done()
        if last < 0:
            raise InputError(f"{self.path}: no lap of this run is finished yet")
        if lap is not None and not 0 <= lap <= last:
            raise InputError(f"{self.path}: lap {lap} is not finished; finished laps are 0 to {last}")
        return last if lap is None else lap

    def origin(self, kind: str, lap: int) -> Origin | None:
        """Return the origin that a file of lap `lap` must contain; None for folders of format 2 and earlier."""
        if self._name is None:
            info = self.info()
            self._name = (info["name"] if info.get("format", 1) >= 3 else "", info["seed"])
        name, seed = self._name
        return Origin(kind, name, seed, lap) if name else None

    def recipe(self) -> Recipe:
        """Read the recipe of the run.

        Raises:
            InputError: If the folder is not a run, or the recipe is damaged or belongs to another run.
        """
        file = self.inside(self.path / "recipe.yaml")
        if not file.is_file():
            reason = "it contains no recipe.yaml" if self.path.exists() else "the folder does not exist"
            raise InputError(f"{self.path} is not a run folder: {reason}")
        info = self.info()
        if info.get("format", 1) >= 2 and not has_checksum(file):
            raise InputError(f"{file} is damaged: its last line, a checksum, is missing")
        if info.get("format", 1) >= 3 and (named := name_of_run(file)) != info["name"]:
            raise InputError(
                f"{file} and run.json belong to different runs, {str(named)[:32]} and {info['name']}: one of them was "
                "replaced"
            )
        recipe = load_recipe(str(file))
        if recipe.seed != info["seed"]:
            raise InputError(f"{file} has seed {recipe.seed}, run.json has seed {info['seed']}")
        return recipe

    def problem(self, source: str | None = None) -> Problem | None:
        """Load or simulate the observations of the run again; None if they were passed from Python.

        Args:
            source: The user's function that made them, `module:function`, if the recipe contains one. It is executed
                only if it is given here, because the folder may be untrusted. Without it the result is None.

        Raises:
            InputError: If the source is not that of the run, or now returns other observations.
        """
        recipe = with_usable_paths(self.recipe(), self.path)
        if source is not None and source != recipe.data.source:
            raise InputError(f"{self.path}: its observations come from {recipe.data.source!r}, not from {source!r}")
        if recipe.data.source == "given" or (":" in recipe.data.source and source is None):
            return None
        try:
            problem = recipe.problem() if source is None else _from_python(recipe)
        except InputError as error:
            raise InputError(f"{self.path}: its data cannot be loaded again: {error}") from None
        self.require_observations(problem.obs, f"those of the data source {recipe.data.source!r}")
        return problem

    def require_observations(self, obs: Observations, source: str) -> None:
        """Raise an `InputError` if `obs` are not the observations of this run; source: their name in the message."""
        info = self.info()
        if (found := _fingerprint(obs, info)) != info["observations"]:
            raise InputError(
                f"{self.path}: the observations have changed: {source} have fingerprint {found[:8]}…, "
                f"those of this run {info['observations'][:8]}…"
            )

    def info(self) -> dict[str, Any]:
        """Read `run.json`: version, format, name, seed, fingerprints and status."""
        file = self.inside(self.path / "run.json")
        info = read_json(file)
        kinds: dict[str, type] = {"version": str, "seed": int, "observations": str, "status": str}
        if not isinstance(info, dict) or not all(isinstance(info.get(name), kind) for name, kind in kinds.items()):
            raise InputError(f"{file} does not describe a run: it needs {', '.join(kinds)}")
        if not isinstance(info.get("format", 1), int) or info.get("format", 1) > FORMAT:
            raise InputError(f"{file} has format {info['format']!r}, this version reads up to {FORMAT}")
        if info.get("format", 1) >= 3 and not (isinstance(info.get("name"), str) and info["name"]):
            raise InputError(f"{file} does not describe a run: it has no name")
        return info

    def open(self, recipe: Recipe, obs: Observations, start: str | None = None) -> None:
        """Create and lock the folder, or lock it for resuming if it contains the same run.

        The recipe may have more laps than that of the folder, other paths of the same data, and another description.

        Args:
            obs: The observations of the run.
            start: The fingerprint of a prior passed from Python to start from.

        Raises:
            InputError: If the folder contains anything else, or another process works on it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a folder")
        file = self.path / "recipe.yaml"
        if not file.exists():
            if self.path.is_dir() and any(not _is_left_by_begin(entry.name) for entry in self.path.iterdir()):
                raise InputError(f"{self.path} is not empty and contains no run; choose another folder")
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot create {self.path}: {error}") from None
        self.lock()
        try:
            (self._continue if file.exists() else self._begin)(recipe, obs, start)
        except BaseException:
            self.unlock()
            raise

    def _begin(self, recipe: Recipe, obs: Observations, start: str | None) -> None:
        clear_partials(self.path)
        observations = data_fingerprint(obs)
        name = run_name(recipe, observations, start)
        info = {"version": __version__, "format": FORMAT, "name": name, "seed": recipe.seed}
        write_json(self.path / "run.json", {**info, "observations": observations, "start": start, "status": "running"})
        write_text(self.path / "recipe.yaml", recipe.to_file(name))

    def _continue(self, recipe: Recipe, obs: Observations, start: str | None) -> None:
        self._require_version()
        info, old = self.info(), self.recipe()
        same_run = with_description_of(with_paths_of(old, recipe), recipe)
        changed = differences(same_run.model_dump(mode="json"), recipe.model_dump(mode="json"))
        longer = recipe.laps > old.laps and len(changed) == 1
        if changed and not longer:
            raise InputError(
                f"{self.path} contains a run of another recipe, which differs in {'; '.join(changed)} (old → new); "
                "restore the old values, or choose another folder"
            )
        if longer and old.final is not None and self.lap(old.last_lap).exists():
            raise InputError(
                f"{self.path} has already begun to train its final prior after {count_of(old.laps, 'lap')}, so no laps "
                "can be added; start another run from it (start: this folder)"
            )
        if info["observations"] != _fingerprint(obs, info):
            again = ":" in recipe.data.source and old.data == recipe.data  # the user's function
            raise InputError(
                f"{self.path} contains a run on other observations; choose another folder"
                + (f" (does {recipe.data.source} return the same observations every time?)" if again else "")
            )
        # once lap 0 is finished, the start is in the folder and need not be passed again
        if info.get("format", 1) >= 3 and info.get("start") != start and not (start is None and self.done(0)):
            if start is None:
                raise InputError(
                    f"{self.path} contains a run that starts from a prior passed from Python; pass the same prior "
                    "again as start=..."
                )
            raise InputError(f"{self.path} contains a run that starts from another prior; choose another folder")
        clear_partials(self.path)
        if recipe != old:
            write_text(self.path / "recipe.yaml", recipe.to_file(info.get("name", "")))
        rename_damaged(self)

    def _require_version(self) -> None:
        """Check the version before anything else: other versions may have other file formats."""
        file = self.inside(self.path / "run.json")
        info = parse_json(read_text(file, JSON_BYTES), str(file))
        version = str(info.get("version")) if isinstance(info, dict) else "?"
        if version.split(".")[:2] != __version__.split(".")[:2]:
            raise InputError(
                f"{self.path} was written by version {version[:40]} of diffem, this is version {__version__}; choose "
                "another folder"
            )

    def lock(self) -> None:
        """Lock the folder for this process; the operating system releases the lock when the process ends."""
        import fcntl

        try:
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise InputError(f"{self.path / '.lock'} cannot be created: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise InputError(f"another process is working on {self.path}") from None
        self._lock = descriptor

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def set_status(self, status: str) -> None:
        """Write the status of the run, "running" or "finished"."""
        write_json(self.path / "run.json", {**self.info(), "status": status})

    def finish_lap(self, k: int, metrics: dict[str, Any]) -> None:
        """Write the metrics of lap k, as the last of its files: the lap is then finished."""
        metrics = stamped(metrics, self.origin("metrics", k))
        others = [self.lap_metrics(j) for j in range(self.recipe().last_lap + 1) if j != k and self.done(j)]
        log = sorted([*others, metrics], key=lambda m: m["lap"])
        write_text(self.path / "metrics.jsonl", "".join(portable_json(m) + "\n" for m in log))
        write_json(self.metrics_file(k), metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """Read the metrics of all finished laps, beginning with lap 0."""
        return [self.lap_metrics(k) for k in range(self.laps_done() + 1)]

    def lap_metrics(self, k: int) -> dict[str, Any]:
        """Read and validate the metrics of lap k."""
        file = self.metrics_file(k)
        metrics = read_json(file)
        if not isinstance(metrics, dict) or metrics.get("lap") != k or isinstance(metrics["lap"], bool):
            raise InputError(f"{file} does not contain the metrics of lap {k}")
        require_origin(metrics, self.origin("metrics", k), file)
        if (key := wrong_number(metrics)) is not None:
            raise InputError(f"{file}: {key} should be a number, got {type(metrics[key]).__name__}")
        for name in ("predictive_each", "simulation_each"):
            each = metrics.get(name, [])
            if not isinstance(each, list) or not all(isinstance(value, int | float) for value in each):
                raise InputError(f"{file}: {name} should be a list of numbers")
        for name in ("warnings", "notes"):
            texts = metrics.get(name, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise InputError(f"{file}: {name} should be a list of texts")
        return metrics


def _from_python(recipe: Recipe) -> Problem:
    if recipe.data.source in SOURCES:
        return recipe.problem()
    return python_problem(recipe.data.source, recipe.seed, recipe.data.options("source"), Path.cwd())


def _is_left_by_begin(name: str) -> bool:
    return name in BEGUN or name.endswith(".partial")


def _fingerprint(obs: Observations, info: dict[str, Any]) -> str:
    """Return the fingerprint of observations in the format of the run: up to format 2, of the tensors alone."""
    return data_fingerprint(obs) if info.get("format", 1) >= 3 else tensors_fingerprint(obs)


def run_name(recipe: Recipe, observations: str, start: str | None) -> str:
    """Return the name of a run: a hash of everything that determines its results.

    Args:
        recipe: The recipe, without the keys in `NOT_IN_NAME`.
        observations: The fingerprint of the observations.
        start: The fingerprint of a prior that was passed from Python to start from; None if there is none.
    """
    settings = {name: value for name, value in recipe.model_dump(mode="json").items() if name not in NOT_IN_NAME}
    return json_checksum({"recipe": settings, "observations": observations, "start": start})[:32]
