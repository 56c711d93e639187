"""The registry of hostile inputs, the commands that read them, and functions that several inputs use."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIB = 1 << 40


@dataclass(frozen=True)
class Hostile:
    command: str
    name: str
    # a pattern that the message must match; it must also contain the file name, or begin with the recipe key
    words: str
    make: Callable[[Path], Path]


CORPUS: dict[str, Hostile] = {}

# The command for each kind of input. {input}: the input; {sound}: a folder of valid inputs; {out}: a folder for
# outputs.
COMMANDS: dict[str, tuple[str, ...]] = {
    "prior": ("sample", "{input}", "-n", "2", "--steps", "2", "-o", "{out}/x.npy"),
    "observations": ("posterior", "{sound}/run", "{input}", "-o", "{out}/p.npz", "--draws", "2", "--steps", "2"),
    "recipe": ("fit", "{input}", "-o", "{out}/run"),
    "recipe, no folder": ("fit", "{input}"),
    "run": ("sample", "{input}", "-n", "2", "--steps", "2", "-o", "{out}/x.npy"),
    "run, report": ("report", "{input}"),
    "run, evaluate": ("evaluate", "{input}", "--samples", "4", "--steps", "2"),
    "run, export": ("export", "{input}", "-o", "{out}/shared"),
    "run, observe": ("observe", "{input}", "-o", "{out}/obs.safetensors"),
    "run, fit": ("fit", "{sound}/recipe.yaml", "-o", "{input}"),
    "reference": ("evaluate", "{sound}/run", "--reference", "{input}", "--draws", "0", "--samples", "8",
                  "--steps", "2"),
    "images": ("prepare", "{input}", "-o", "{out}/images.npz"),
    "volume": ("observe", "fastmri", "--set", "data.path={input}", "--set", "data.size=null",
               "--set", "data.slices=[0, null]", "--set", "data.image=auto", "-o", "{out}/obs.safetensors"),
    "maps": ("observe", "fastmri", "--set", "data.path={sound}/volumes", "--set", "data.size=null",
             "--set", "data.slices=[0, null]", "--set", "data.image=auto", "--set", "data.coils={input}",
             "-o", "{out}/obs.safetensors"),
    "cifar10": ("observe", "cifar10", "--set", "data.folder={input}", "-o", "{out}/obs.safetensors"),
    "export": ("export", "{sound}/run", "-o", "{input}"),
    # not commands, but functions for Python and the app, see `reading`
    "hub": ("hub", "{input}"),
    "draws": ("draws", "{input}"),
    "run, app": ("look", "{input}"),
    # not commands, but requests of visitors of the app, see `visiting`
    "upload": ("upload", "{input}", "{out}/uploads"),
    "request": ("request", "{input}"),
}  # fmt: skip

# a valid input for every command, which must be accepted
SOUND = {
    "prior": "prior.safetensors", "observations": "obs.safetensors", "recipe": "recipe.yaml", "run": "run",
    "run, report": "run", "reference": "reference.npy", "images": "images.tar.gz", "volume": "volumes",
    "maps": "maps.npy", "cifar10": "cifar", "upload": "images/0.png", "request": "request.json", "run, evaluate": "run",
    "run, export": "run", "run, observe": "run", "run, app": "run", "export": "shared", "hub": "shared", "draws": "run",
}  # fmt: skip


def hostile(command: str, name: str, words: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def register(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        CORPUS[f"{command}: {name}"] = Hostile(command, name, words, make)
        return make

    return register


def hole(path: Path, size: int, start: bytes = b"") -> Path:
    """Write a sparse file of `size` bytes that begins with `start` and takes no space on disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


class Bomb:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def pickled(folder: Path) -> bytes:
    import pickle

    return pickle.dumps(Bomb(folder / "EXECUTED"))
