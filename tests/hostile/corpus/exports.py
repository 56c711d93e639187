"""Folders in the hub's layout: untrusted exported priors, and folders into which an export is to be written."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from diffem.em import exports as hub
from diffem.files.reading import file_digest, read_json

from ..sound import prior, write_run
from .registry import TIB, Bomb, hole, hostile, pickled


def shared(folder: Path, kind: str = "network") -> Path:
    return hub.export(prior(kind), folder / "shared")


def with_card(folder: Path, change: Callable[[dict[str, Any]], Any], kind: str = "network") -> Path:
    """An export with a changed card."""
    path = shared(folder, kind)
    card = read_json(path / "config.json")
    change(card)
    (path / "config.json").write_text(json.dumps(card))
    return path


def with_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], kind: str = "network") -> Path:
    """An export with changed weights, whose card has their hash."""
    path = shared(folder, kind)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    card = read_json(path / "config.json")
    card["files"]["model.safetensors"]["sha256"] = file_digest(path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(card))
    return path


def with_file(folder: Path, name: str, make: Callable[[Path], Any]) -> Path:
    """An export in which one file is replaced."""
    path = shared(folder)
    (path / name).unlink()
    make(path / name)
    return path


for file in ("model.safetensors", "config.json"):

    @hostile("hub", f"{file} is a pipe", "is not a file but a pipe")
    def _(folder, file=file):
        return with_file(folder, file, os.mkfifo)

    @hostile("hub", f"{file} is a link to /dev/zero", "is not a file but a device")
    def _(folder, file=file):
        return with_file(folder, file, lambda path: path.symlink_to("/dev/zero"))

    @hostile("hub", f"{file} is a link to /dev/random", "is not a file but a device")
    def _(folder, file=file):
        return with_file(folder, file, lambda path: path.symlink_to("/dev/random"))

    @hostile("hub", f"{file} is a link to a terminal", "is not a file but a device|cannot be read")
    def _(folder, file=file):
        return with_file(folder, file, lambda path: path.symlink_to("/dev/tty"))

    @hostile("hub", f"{file} is a link to itself", "cannot be read|contains no exported prior")
    def _(folder, file=file):
        return with_file(folder, file, lambda path: path.symlink_to(path.name))

    @hostile("hub", f"{file} is a folder", "is not a file but a folder")
    def _(folder, file=file):
        return with_file(folder, file, Path.mkdir)

    @hostile("hub", f"{file} is a terabyte of holes", "is too large|real data do not compress this well")
    def _(folder, file=file):
        return with_file(folder, file, lambda path: hole(path, TIB, b"{"))

    @hostile("hub", f"{file} is empty", "it has only 0 bytes|not valid JSON")
    def _(folder, file=file):
        return with_file(folder, file, Path.touch)

    @hostile("hub", f"{file} is missing", "cannot be read|contains no exported prior")
    def _(folder, file=file):
        return with_file(folder, file, lambda path: None)

    @hostile("hub", f"{file} is pickled", "cannot be read|is not text")
    def _(folder, file=file):
        return with_file(folder, file, lambda path: path.write_bytes(pickled(folder)))


@hostile("hub", "a folder that is a file", "contains no exported prior")
def _(folder):
    (folder / "shared").write_text("{}")
    return folder / "shared"


@hostile("hub", "a folder that is not there", "contains no exported prior")
def _(folder):
    return folder / "shared"


@hostile("hub", "weights behind a header of gigabytes", "claims a header of")
def _(folder):
    return with_file(folder, "model.safetensors", lambda path: path.write_bytes(struct.pack("<Q", 5 << 30) + bytes(99)))


@hostile("hub", "six gigabytes of a tensor the card does not know", "real data do not compress this well")
def _(folder):
    header = {"x": {"dtype": "F32", "shape": [3 << 29], "data_offsets": [0, 6 << 30]}}
    text = json.dumps(header).encode()
    start = struct.pack("<Q", len(text)) + text
    return with_file(folder, "model.safetensors", lambda path: hole(path, len(start) + (6 << 30), start))


@hostile("hub", "a hundred megabytes of zeros that the card does not describe", "the card describes")
def _(folder):
    def write(path: Path) -> None:
        save_file({"x": torch.zeros(25 << 20)}, path)

    return with_file(folder, "model.safetensors", write)


@hostile("hub", "a flipped bit in a weight", "SHA-256 differs")
def _(folder):
    path = shared(folder)
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-70] ^= 4
    (path / "model.safetensors").write_bytes(data)
    return path


NOT_FINITE = {"not a number": torch.nan, "infinite": torch.inf, "negative infinity": -torch.inf}
for name, value in NOT_FINITE.items():
    for tensor in ("network.layers.0.weight", "mean"):

        @hostile("hub", f"{tensor} is {name}", "not finite")
        def _(folder, tensor=tensor, value=value):
            return with_weights(folder, lambda tensors: tensors[tensor].view(-1)[:1].fill_(value))


@hostile("hub", "a Gaussian with a variance that is not a number", "not finite")
def _(folder):
    return with_weights(folder, lambda tensors: tensors["cov.variance"].fill_(torch.nan), "gaussian")


@hostile("hub", "a Gaussian with a negative variance", "must be positive")
def _(folder):
    return with_weights(folder, lambda tensors: tensors["cov.variance"].fill_(-1.0), "gaussian")


@hostile("hub", "a covariance of a million numbers over four", "is too large")
def _(folder):
    return with_weights(folder, lambda tensors: tensors.update({"cov.variance": torch.ones(1 << 20)}), "gaussian")


@hostile("hub", "weights of another type", "float8|needed: float32")
def _(folder):
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["mean"] = tensors["mean"].to(torch.float8_e4m3fn)

    return with_weights(folder, change)


@hostile("hub", "weights that are whole numbers", "int64|the mean is")
def _(folder):
    return with_weights(folder, lambda tensors: tensors.update(mean=tensors["mean"].long()))


@hostile("hub", "a tensor too many", "the card describes extra")
def _(folder):
    return with_weights(folder, lambda tensors: tensors.update(extra=torch.zeros(2)))


@hostile("hub", "a tensor too few", "the card describes mean")
def _(folder):
    return with_weights(folder, lambda tensors: tensors.pop("mean"))


CARDS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no hash": (lambda c: c.pop("files"), "contains no hash"),
    "files that are a list": (lambda c: c.update(files=["model.safetensors"]), "contains no hash"),
    "a hash that is a number": (lambda c: c["files"]["model.safetensors"].update(sha256=7), "contains no hash"),
    "the hash of something else": (
        lambda c: c["files"]["model.safetensors"].update(sha256="0" * 64),
        "SHA-256 differs",
    ),
    "another format": (lambda c: c.update(format="diffem-card-9"), "has format 'diffem-card-9'"),
    "no prior": (lambda c: c.pop("prior"), "must describe a prior"),
    "a prior that is a list": (lambda c: c.update(prior=[1]), "must describe a prior"),
    "an unknown kind of prior": (lambda c: c["prior"].update(kind="os.system"), "unknown kind of prior"),
    "an unknown network": (lambda c: c["prior"]["network"].update(kind="../../evil"), "unknown network"),
    "a network of 10^12 weights": (lambda c: c["prior"]["network"].update(hidden=[10**6, 10**6]), "of memory"),
    "a network of a negative width": (lambda c: c["prior"]["network"].update(hidden=[-1]), "shared"),
    "a network that is a word": (lambda c: c["prior"].update(network="mlp"), "shared"),
    "an event of 10^12 numbers": (lambda c: c["prior"].update(event_shape=[10**6, 10**6]), "shared"),
    "an event that is a word": (lambda c: c["prior"].update(event_shape="four"), "shared"),
    "noise levels that are infinite": (lambda c: c["prior"].update(sigma=[0.1, float("inf")]), "sigma"),
    "noise levels in the wrong order": (lambda c: c["prior"].update(sigma=[10.0, 0.1]), "sigma"),
    "noise levels that are words": (lambda c: c["prior"].update(sigma=["low", "high"]), "shared"),
    "a scale that is not a number": (lambda c: c["prior"].update(scale=float("nan")), "scale"),
    "a scale of zero": (lambda c: c["prior"].update(scale=0.0), "scale"),
    "a covariance of another kind": (
        lambda c: c["prior"].update(cov={"kind": "eval", "axes": {}}),
        "unknown covariance",
    ),
}
for name, (change, words) in CARDS.items():

    @hostile("hub", f"a card with {name}", words)
    def _(folder, change=change):
        return with_card(folder, change)


@hostile("hub", "a card of brackets", "nested more than 64 deep")
def _(folder):
    return with_file(folder, "config.json", lambda path: path.write_text("[" * 100_000))


@hostile("hub", "a card of a million keys", "is too large")
def _(folder):
    return with_file(folder, "config.json", lambda path: path.write_text(json.dumps({str(k): k for k in range(10**6)})))


@hostile("hub", "a card that is not text", "is not text")
def _(folder):
    return with_file(folder, "config.json", lambda path: path.write_bytes(b"\xff\xfe\x00"))


@hostile("hub", "a card with a damaged checksum", "config.json is damaged")
def _(folder):
    path = shared(folder)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace('"notes": ""', '"notes": "changed"'))
    return path


# folders for an export that already contain files


def target(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "mine"
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


TARGETS: dict[str, dict[str, bytes]] = {
    "with somebody's README.md": {"README.md": b"# My thesis\n"},
    "with somebody's config.json": {"config.json": b'{"model_type": "bert"}'},
    "with somebody's weights": {"model.safetensors": b"\x08\0\0\0\0\0\0\0{}      "},
    "with another model": {"config.json": b"{}", "model.safetensors": b"?", "README.md": b"?"},
    "with a card of another format": {"config.json": b'{"format": "diffem-card-9"}', "model.safetensors": b"?"},
    "with a program": {"setup.py": b"print('hello')\n"},
}
for name, files in TARGETS.items():

    @hostile("export", f"a folder {name}", "is not empty and contains no exported prior")
    def _(folder, files=files):
        return target(folder, files)


@hostile("export", "a file", "is a file, not a folder")
def _(folder):
    (folder / "mine").write_text("notes")
    return folder / "mine"


@hostile("export", "a run", "is not empty and contains no exported prior")
def _(folder):
    return write_run(folder / "mine")


@hostile("export", "a folder whose card is a pipe", "is not empty and contains no exported prior")
def _(folder):
    path = target(folder, {"README.md": b"?"})
    os.mkfifo(path / "config.json")
    return path


@hostile("export", "a folder whose card is a device", "is not empty and contains no exported prior")
def _(folder):
    path = target(folder, {"README.md": b"?"})
    (path / "config.json").symlink_to("/dev/zero")
    return path


@hostile("export", "a folder with a pickle for weights", "is not empty and contains no exported prior")
def _(folder):
    import pickle

    return target(folder, {"model.safetensors": pickle.dumps(Bomb(folder / "EXECUTED"))})
