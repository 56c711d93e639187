"""A run's folder: what is in it, and how a run is opened, locked and continued.

    recipe.yaml  run.json  metrics.jsonl  report.html
    laps/000/    prior.safetensors (the start)  metrics.json  start.safetensors (while the start is fitted)
    laps/KKK/    prior.safetensors  draws/NNNNN.npy (+ .json)  metrics.json  samples.npy  posterior.npy  *.png

A lap is done when its `metrics.json` is there. Everything else is made again if it is missing. Every file of it is inside the folder: links
that lead out are not followed, neither for reading nor for writing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import InputError
from .files import clear_partials, digest, notice, read_json, read_tensors, write_json, write_text
from .reading import JSON_BYTES, parse_json, read_text, require_inside
from .recipe import Recipe, differences, has_checksum, load_recipe

FORMAT = 2  # of the folder: 2 keeps checksums in its text files
NUMBERS = {  # of a lap's measures: what the report and later laps calculate with
    "chi2", "heldout_chi2", "expected_chi2", "predictive_log_likelihood", "predictive_error", "observation_distance", "rejected", "kept", "guards", "loss", "e_seconds",
    "m_seconds", "seconds", "laps_before",
}  # fmt: skip
BEGUN = {".lock", "run.json"}  # what a run that was stopped while it began may have left


class RunDir:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None

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

    def finished_prior(self, lap: int | None = None) -> Path:
        """The file of a finished lap's prior, the last one's when no lap is named."""
        last = self.laps_done()
        if last < 0:
            raise InputError(f"{self.path}: no lap of this run is finished yet")
        if lap is not None and not 0 <= lap <= last:
            raise InputError(f"{self.path}: lap {lap} is not there; finished laps are 0 to {last}")
        return self.prior_file(last if lap is None else lap)

    # opening -------------------------------------------------------------------------------------------------------------

    def recipe(self) -> Recipe:
        file = self.inside(self.path / "recipe.yaml")
        if not file.is_file():
            raise InputError(f"{self.path} is not a run: there is no recipe.yaml in it")
        if self.info().get("format", 1) >= 2 and not has_checksum(file):
            raise InputError(f"{file} is damaged: its last line, a checksum, is missing")
        return load_recipe(str(file))

    def info(self) -> dict[str, Any]:
        file = self.inside(self.path / "run.json")
        info = read_json(file)
        kinds: dict[str, type] = {"version": str, "seed": int, "observations": str, "status": str}
        if not isinstance(info, dict) or not all(isinstance(info.get(name), kind) for name, kind in kinds.items()):
            raise InputError(f"{file} does not describe a run: needed are {', '.join(kinds)}")
        if not isinstance(info.get("format", 1), int) or info.get("format", 1) > FORMAT:
            raise InputError(f"{file} has format {info['format']!r}, this version reads up to {FORMAT}")
        return info

    def open(self, recipe: Recipe, observations: str) -> Recipe:
        """Create the folder, or continue what is in it if it is the same run; returns the recipe to follow.

        observations: the fingerprint of the data. More laps than the folder's recipe asks for is the one change accepted.
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
            return self._continue(recipe, observations) if file.exists() else self._begin(recipe, observations)
        except BaseException:
            self.unlock()
            raise

    def _begin(self, recipe: Recipe, observations: str) -> Recipe:
        clear_partials(self.path)
        info = {"version": __version__, "format": FORMAT, "seed": recipe.seed, "observations": observations}
        write_json(self.path / "run.json", {**info, "status": "running"})
        write_text(self.path / "recipe.yaml", recipe.to_file())
        return recipe

    def _continue(self, recipe: Recipe, observations: str) -> Recipe:
        self._require_version()
        info, old = self.info(), self.recipe()
        changed = differences(old.model_dump(mode="json"), recipe.model_dump(mode="json"))
        longer = recipe.laps > old.laps and len(changed) == 1
        if changed and not longer:
            raise InputError(f"{self.path} holds a run of another recipe; it differs in {'; '.join(changed)}")
        if info["observations"] != observations:
            raise InputError(f"{self.path} holds a run on other observations; choose another folder")
        clear_partials(self.path)
        if longer:
            write_text(self.path / "recipe.yaml", recipe.to_file())
        self.set_damaged_aside()
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

    def set_damaged_aside(self) -> list[Path]:
        """Rename damaged files of the last laps, on which a run goes on, so that they are made again; says so, and returns them."""
        aside = []
        last = self.laps_done()
        for k in (last, last + 1):
            for name in ("metrics.json", "prior.safetensors", "training.safetensors") if k > 0 or last == 0 else ():
                file = self.file(k, name)
                if not file.exists():
                    continue
                try:
                    read_json(file) if name == "metrics.json" else read_tensors(file)
                except InputError as error:
                    os.replace(file, file.with_name(f"{name}.damaged"))
                    aside.append(file)
                    notice(f"{error}; it was renamed to {name}.damaged and is made again")
        return aside

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
        before = self.metrics()[:k]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(m) + "\n" for m in [*before, metrics]))
        write_json(self.metrics_file(k), metrics)

    def metrics(self) -> list[dict[str, Any]]:
        """What every finished lap measured, the start first."""
        return [_lap_metrics(self.metrics_file(k), k) for k in range(self.laps_done() + 1)]


def _lap_metrics(file: Path, k: int) -> dict[str, Any]:
    metrics = read_json(file)
    if not isinstance(metrics, dict) or metrics.get("lap") != k or isinstance(metrics["lap"], bool):
        raise InputError(f"{file} does not hold the measures of lap {k}")
    for name in NUMBERS & metrics.keys():
        if not isinstance(metrics[name], int | float | None):
            raise InputError(f"{file}: {name} should be a number, got {type(metrics[name]).__name__}")
    notes = metrics.get("warnings", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError(f"{file}: warnings should be a list of texts")
    return metrics


def _begun(name: str) -> bool:
    return name in BEGUN or name.endswith(".partial")


def fingerprint(tensors: dict[str, Any]) -> str:
    """A hash of named tensors, the same whenever their bytes are."""
    parts = []
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous().numpy()
        # the array's own memory, not a copy of it: observations may be large
        parts.append(f"{name} {array.dtype} {array.shape} {digest(array.reshape(-1).view('u1').data)}")
    return digest("\n".join(parts).encode())[:32]
