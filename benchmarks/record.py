"""Write the figures of a benchmark to `benchmarks/results/NAME.json`, from which README and docs take their numbers."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def machine() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count()
    cores = f"{usable} CPU cores" if usable == present else f"{usable} of {present} CPU cores"
    return f"{cores} ({platform.machine()}), torch {torch.__version__}"


def commit() -> str:
    """The measured commit. `+` marks uncommitted changes; without a repository, DIFFEM_COMMIT names it."""
    if "DIFFEM_COMMIT" in os.environ:
        return os.environ["DIFFEM_COMMIT"]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "src", "benchmarks/*.py") else "")


def record(name: str, figures: dict[str, float], rows: list[dict[str, Any]], folder: Path = RESULTS) -> Path:
    module = sys.modules["__main__"].__spec__
    command = f"python -m {module.name.removesuffix('.__main__')}" if module else f"python {sys.argv[0]}"
    result = {
        "name": name,
        "command": shlex.join([*command.split(), *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "figures": figures,
        "rows": rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def earlier(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The rows of the last result of that name, each with its source."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return []
    old = json.loads(path.read_text())
    origin = {key: old[key] for key in ("command", "commit", "machine", "date")}
    return [origin | row for row in old["rows"]]


def merge(
    name: str,
    parts: list[Path],
    figures: Callable[[list[dict[str, Any]]], dict[str, float]],
    folder: Path = RESULTS,
) -> Path:
    """Join the results of parts of a benchmark. Rows of another source than that of the first part keep their own.

    Args:
        name: The name of the result.
        parts: The files of the parts.
        figures: Computes the figures from all rows.
        folder: The folder of the result.
    """
    read = [json.loads(path.read_text()) for path in parts]
    for part in read:
        part["command"] = without_folders(part["command"])
    first, rows = read[0], []
    for part in read:
        alike = all(part[key] == first[key] for key in ("command", "commit", "machine"))
        origin = {} if alike else {key: part[key] for key in ("command", "commit", "machine", "date")}
        rows += [origin | row for row in part["rows"]]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(first | {"name": name, "figures": figures(rows), "rows": rows}, indent=1) + "\n")
    return path


def without_folders(command: str) -> str:
    """A command without the options that only locate data and results."""
    words, kept = command.split(), []
    while words:
        word = words.pop(0)
        if word == "--data":
            kept += [word, "FOLDER"]
        elif word not in ("--name", "--results", "--out", "--picture"):
            kept.append(word)
            continue
        words.pop(0)
    return " ".join(kept)


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())
