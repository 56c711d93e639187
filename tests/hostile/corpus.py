"""Inputs from a stranger: damaged, absurd, or made to hang, to fill the memory, to run code or to lead somewhere else.

A new one is a function with a line above it that says which command it is given to, what it is, and a word its refusal must contain. It writes
into an empty folder and returns the path the command is given. Large files are holes. Every input is the same each time it is made.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import yaml
from safetensors.torch import save

from diffem.runs.files import write_tensors

from .sound import EVENT, RECIPE, numbers, observations, packed_prior, write_run

TIB = 1 << 40


@dataclass(frozen=True)
class Hostile:
    command: str
    name: str
    words: str  # what the message must say; it must also name the file, or the key of a recipe that it begins with
    make: Callable[[Path], Path]


CORPUS: dict[str, Hostile] = {}

# the command a kind of input is given to; {input}: the input, {sound}: a folder of sound things, {out}: a place for what is written
COMMANDS: dict[str, tuple[str, ...]] = {
    "prior": ("sample", "{input}", "-n", "2", "--steps", "2", "-o", "{out}/x.npy"),
    "observations": ("posterior", "{sound}/run", "{input}", "-o", "{out}/p.npz", "--draws", "2", "--steps", "2"),
    "recipe": ("fit", "{input}", "-o", "{out}/run"),
    "recipe, no folder": ("fit", "{input}"),
    "run": ("sample", "{input}", "-n", "2", "--steps", "2", "-o", "{out}/x.npy"),
    "run, report": ("report", "{input}"),
    "run, fit": ("fit", "{sound}/recipe.yaml", "-o", "{input}"),
    "reference": ("evaluate", "{sound}/run", "--reference", "{input}", "--draws", "0", "--samples", "8", "--steps", "2"),
    "images": ("prepare", "{input}", "-o", "{out}/images.npz"),
    "volume": ("observe", "fastmri", "--set", "data.path={input}", "--set", "data.size=null", "--set", "data.slices=[0, null]", "--set", "data.image=auto",
               "-o", "{out}/obs.safetensors"),
    "maps": ("observe", "fastmri", "--set", "data.path={sound}/volumes", "--set", "data.size=null", "--set", "data.slices=[0, null]", "--set", "data.image=auto",
             "--set", "data.coils={input}", "-o", "{out}/obs.safetensors"),
    "cifar10": ("observe", "cifar10", "--set", "data.folder={input}", "-o", "{out}/obs.safetensors"),
}  # fmt: skip

# a sound input for every command: it must be taken
SOUND = {
    "prior": "prior.safetensors", "observations": "obs.safetensors", "recipe": "recipe.yaml", "run": "run", "run, report": "run",
    "reference": "reference.npy", "images": "images.tar.gz", "volume": "volumes", "maps": "maps.npy", "cifar10": "cifar",
}  # fmt: skip


def hostile(command: str, name: str, words: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def register(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        CORPUS[f"{command}: {name}"] = Hostile(command, name, words, make)
        return make

    return register


def hole(path: Path, size: int, start: bytes = b"") -> Path:
    """A file of `size` bytes that takes no room: `start`, then nothing."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def pickled(folder: Path) -> bytes:
    import pickle

    return pickle.dumps(Bomb(folder / "EXECUTED"))


# priors ------------------------------------------------------------------------------------------------------------------


def whole_prior(folder: Path) -> Path:
    write_tensors(folder / "prior.safetensors", *packed_prior())
    return folder / "prior.safetensors"


def with_header(path: Path, header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with a header of our own."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@hostile("prior", "an empty file", "it has only 0 bytes")
def _(folder):
    (folder / "prior.safetensors").touch()
    return folder / "prior.safetensors"


@hostile("prior", "cut off in the header", "cannot be read as a prior")
def _(folder):
    path = whole_prior(folder)
    path.write_bytes(path.read_bytes()[:100])
    return path


@hostile("prior", "cut off in the data", "cannot be read as a prior")
def _(folder):
    path = whole_prior(folder)
    path.write_bytes(path.read_bytes()[:-3])
    return path


@hostile("prior", "a flipped bit in a weight", "do not match its checksum")
def _(folder):
    path = whole_prior(folder)
    data = bytearray(path.read_bytes())
    data[-70] ^= 4
    path.write_bytes(bytes(data))
    return path


@hostile("prior", "a header of 2^63 bytes", "claims a header of 9223372036854775808 bytes")
def _(folder):
    return with_header(folder / "p.safetensors", {}, length=1 << 63)


@hostile("prior", "a header of 4 GiB in a file of holes", "claims 1099511627776 bytes and holds")
def _(folder):
    return hole(folder / "p.safetensors", TIB, struct.pack("<Q", 4 << 30) + b'{"a":')


@hostile("prior", "a header of 60 MB of brackets", "claims a header of 60000000 bytes")
def _(folder):
    return with_header(folder / "p.safetensors", b"[" * 60_000_000)


@hostile("prior", "a header of brackets", "cannot be read as a prior")
def _(folder):
    return with_header(folder / "p.safetensors", b"[" * 1_000_000)


@hostile("prior", "a header that is no JSON", "cannot be read as a prior")
def _(folder):
    return with_header(folder / "p.safetensors", b"\xff\xfe{]" * 20)


@hostile("prior", "tensors beyond the end", "cannot be read as a prior")
def _(folder):
    return with_header(folder / "p.safetensors", {"mean": entry([4], 1 << 40, (1 << 40) + 16)}, bytes(16))


@hostile("prior", "tensors that overlap", "cannot be read as a prior")
def _(folder):
    header = {"mean": entry([4], 0, 16), "network.a": entry([4], 8, 24)}
    return with_header(folder / "p.safetensors", header, bytes(24))


@hostile("prior", "offsets that run backwards", "cannot be read as a prior")
def _(folder):
    return with_header(folder / "p.safetensors", {"mean": entry([4], 16, 0)}, bytes(16))


@hostile("prior", "negative sizes", "cannot be read as a prior")
def _(folder):
    return with_header(folder / "p.safetensors", {"mean": entry([-2, -2], 0, 16)}, bytes(16))


@hostile("prior", "a shape of 10^18 numbers", "cannot be read as a prior")
def _(folder):
    return with_header(folder / "p.safetensors", {"mean": entry([10**9, 10**9], 0, 16)}, bytes(16))


@hostile("prior", "a shape whose size overflows to 16 bytes", "cannot be read as a prior")
def _(folder):
    return with_header(folder / "p.safetensors", {"mean": entry([1 << 62, 4], 0, 16)}, bytes(16))


@hostile("prior", "a consistent tensor of 1 TiB of holes", "real data do not shrink so much")
def _(folder):
    size = TIB // 4
    description = {"format": "diffem-prior-1", "kind": "GaussianPrior", "event_shape": [size], "sigma": [0.1, 1]}
    header = json.dumps({"__metadata__": {"diffem": json.dumps(description)}, "mean": entry([size], 0, TIB)}).encode()
    start = struct.pack("<Q", len(header)) + header
    return hole(folder / "p.safetensors", len(start) + TIB, start)


@hostile("prior", "a hundred thousand tensors", "holds 100000 tensors")
def _(folder):
    return with_header(folder / "p.safetensors", {f"t{k}": entry([0], 0, 0) for k in range(100_000)})


def changed(folder: Path, tensors: dict[str, Any] | None = None, kind: str = "network", **description: Any) -> Path:
    """A prior file with some tensors and parts of its description replaced, and a checksum that agrees."""
    own_tensors, own = packed_prior(kind)
    write_tensors(folder / "prior.safetensors", own_tensors | (tensors or {}), own | description)
    return folder / "prior.safetensors"


@hostile("prior", "a mean of NaN", "mean holds values that are not finite")
def _(folder):
    return changed(folder, {"mean": torch.full(EVENT, torch.nan)})


@hostile("prior", "infinite weights", "network.layers.0.bias holds values that are not finite")
def _(folder):
    return changed(folder, {"network.layers.0.bias": torch.full((8,), torch.inf)})


@hostile("prior", "weights of whole numbers", r"network.layers.0.bias is torch.int64 of shape \(8,\)")
def _(folder):
    return changed(folder, {"network.layers.0.bias": torch.ones(8, dtype=torch.int64)})


@hostile("prior", "a mean in eight bits", "mean is torch.float8_e4m3fn")
def _(folder):
    return changed(folder, {"mean": torch.zeros(EVENT).to(torch.float8_e4m3fn)})


@hostile("prior", "weights of another shape", r"network.layers.0.bias is torch.float32 of shape \(9,\)")
def _(folder):
    return changed(folder, {"network.layers.0.bias": torch.ones(9)})


@hostile("prior", "tensors nobody asked for", "unknown tensors: .*__class__")
def _(folder):
    return changed(folder, {"network.__class__": torch.ones(1)})


@hostile("prior", "noise levels that are NaN", "noise levels must satisfy 0 < sigma_min < sigma_max")
def _(folder):
    return changed(folder, sigma=[float("nan"), 1.0])


@hostile("prior", "infinite noise levels", "noise levels must satisfy 0 < sigma_min < sigma_max")
def _(folder):
    return changed(folder, sigma=[0.1, float("inf")])


@hostile("prior", "a network of 10^12 weights", "takes .* of memory")
def _(folder):
    return changed(folder, network={"kind": "mlp", "hidden": [1_000_000, 1_000_000]})


@hostile("prior", "a network of 100,000 layers", "network.hidden must be whole numbers")
def _(folder):
    return changed(folder, network={"kind": "mlp", "hidden": [1] * 100_000})


@hostile("prior", "a network of 300 MB that the file does not hold", "missing tensors|the network has")
def _(folder):
    return changed(folder, network={"kind": "mlp", "hidden": [8000, 8000]})


@hostile("prior", "layers of negative width", "network.hidden must be whole numbers")
def _(folder):
    return changed(folder, network={"kind": "mlp", "hidden": [-8]})


@hostile("prior", "a network named after a function", "unknown network 'os.system'")
def _(folder):
    return changed(folder, network={"kind": "os.system", "hidden": ["true"]})


@hostile("prior", "an event of another shape", "the description says")
def _(folder):
    return changed(folder, event_shape=[2, 2])


@hostile("prior", "a negative variance", "cov.variance must be positive")
def _(folder):
    return changed(folder, {"cov.variance": torch.tensor(-1.0)}, "gaussian")


@hostile("prior", "a covariance of another size", "does not fit|mat1 and mat2|match the size")
def _(folder):
    cov = {"kind": "dense", "axes": {"vectors": 2, "values": 1}}
    return changed(folder, {"cov.vectors": torch.eye(9), "cov.values": torch.ones(9)}, cov=cov)


@hostile("prior", "a number of laps that is a word", "lap = 'many'")
def _(folder):
    return changed(folder, lap="many")


@hostile("prior", "a description of brackets", "nested more than 64 deep")
def _(folder):
    tensors, _ = packed_prior()
    (folder / "p.safetensors").write_bytes(save(tensors, {"diffem": '{"a":' * 5000 + "1" + "}" * 5000}))
    return folder / "p.safetensors"


@hostile("prior", "a description of two million empty lists", "holds more than 2097152 values")
def _(folder):
    tensors, _ = packed_prior()
    text = '{"sha256": "", "a": [' + "[]," * 2_700_000 + "[]]}"
    (folder / "p.safetensors").write_bytes(save(tensors, {"diffem": text}))
    return folder / "p.safetensors"


@hostile("prior", "somebody else's file of weights", "not a prior of this library: it has format None")
def _(folder):
    (folder / "p.safetensors").write_bytes(save({"weight": numbers(3, 3)}))
    return folder / "p.safetensors"


@hostile("prior", "a pickle", "cannot be read as a prior")
def _(folder):
    (folder / "prior.safetensors").write_bytes(pickled(folder))
    return folder / "prior.safetensors"


@hostile("prior", "what torch.save writes", "cannot be read as a prior")
def _(folder):
    torch.save({"mean": Bomb(folder / "EXECUTED")}, folder / "prior.pt")
    return folder / "prior.pt"


@hostile("prior", "a pipe that nobody writes to", "is not a run|is not a file but a pipe")
def _(folder):
    os.mkfifo(folder / "prior.safetensors")
    return folder / "prior.safetensors"


@hostile("prior", "a link to a device", "is not a run|is not a file but a device")
def _(folder):
    (folder / "prior.safetensors").symlink_to("/dev/zero")
    return folder / "prior.safetensors"


# observations ------------------------------------------------------------------------------------------------------------


def rewritten(
    folder: Path, A: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None, **parts: Any
) -> Path:
    """An observations file with some of it replaced, and a checksum that agrees."""
    from diffem.runs.files import read_tensors

    path = folder / "obs.safetensors"
    observations().save(path)
    own, structure = read_tensors(path)
    structure["A"] = A or structure["A"]
    write_tensors(path, own | (tensors or {}), structure | parts)
    return path


def node(kind: str, *children: dict[str, Any], tensors: tuple[str, ...] = (), **config: Any) -> dict[str, Any]:
    """An operator as files describe it."""
    return {"kind": kind, "config": config, "tensors": list(tensors), "complex": [], "children": list(children)}


IMAGES = {"y": numbers(3, 8, 8)}


@hostile("observations", "cut off", "cannot be read as an observations file")
def _(folder):
    path = rewritten(folder)
    path.write_bytes(path.read_bytes()[:-1])
    return path


@hostile("observations", "a flipped bit in y", "do not match its checksum")
def _(folder):
    path = rewritten(folder)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))
    return path


@hostile("observations", "measured values that are NaN", "non-finite measured values")
def _(folder):
    return rewritten(folder, tensors={"y": torch.full((3, *EVENT), torch.nan)})


@hostile("observations", "whole numbers for y", "y must be floating point")
def _(folder):
    return rewritten(folder, tensors={"y": torch.ones(3, *EVENT, dtype=torch.int32)})


@hostile("observations", "none at all", "at least one sample")
def _(folder):
    return rewritten(folder, tensors={"y": torch.zeros(0, *EVENT)})


@hostile("observations", "a noise of NaN", "cov.variance holds values that are not finite")
def _(folder):
    return rewritten(folder, tensors={"cov.variance": torch.tensor(torch.nan)})


@hostile("observations", "a negative noise", "cov.variance must be positive")
def _(folder):
    return rewritten(folder, tensors={"cov.variance": torch.tensor(-1.0)})


@hostile("observations", "masks for other observations", "does not fit|hold parameters|operator parameters for 7")
def _(folder):
    return rewritten(folder, tensors={"A.mask": torch.ones(7, *EVENT, dtype=torch.bool)})


@hostile("observations", "a window in an image of 10^12 pixels", "come with an operator over")
def _(folder):
    crop = node("Crop", size=[8, 8], image=[10**6, 10**6], tensors=("top", "left"))
    return rewritten(folder, crop, {**IMAGES, "A.top": torch.tensor(0), "A.left": torch.tensor(0)})


@hostile("observations", "a resolution 100,000 times as high", "come with an operator over")
def _(folder):
    return rewritten(folder, node("Downsample", factor=100_000, mode="bicubic"), IMAGES)


@hostile("observations", "many resolutions, one after another", "come with an operator over")
def _(folder):
    parts = [node("Downsample", factor=2, mode="mean") for _ in range(200)]
    return rewritten(folder, node("Compose", *parts), IMAGES)


@hostile("observations", "stacked measurements of a huge sample", "come with an operator over")
def _(folder):
    stack = node("Stack", node("Identity"), node("Identity"), x_shape=[10**6, 10**6])
    return rewritten(folder, stack)


@hostile("observations", "a sample of negative size", "must be positive whole numbers")
def _(folder):
    stack = node("Stack", node("Identity"), node("Identity"), x_shape=[-4, -4])
    return rewritten(folder, stack)


@hostile("observations", "operators in operators in operators", "nested at most 16 deep")
def _(folder):
    inner = node("Identity")
    for _ in range(25):
        inner = node("Compose", inner, node("Identity"))
    return rewritten(folder, inner)


@hostile("observations", "an operator that holds code", "unknown operator 'Function'")
def _(folder):
    return rewritten(folder, node("Function", forward="__import__('os').system('true')"))


@hostile("observations", "settings an operator does not have", "unexpected keyword argument")
def _(folder):
    return rewritten(folder, node("Identity", __class__="x"))


@hostile("observations", "a pipe that nobody writes to", "is not a file but a pipe")
def _(folder):
    os.mkfifo(folder / "obs.safetensors")
    return folder / "obs.safetensors"


# recipes -----------------------------------------------------------------------------------------------------------------


def recipe(folder: Path, text: str | None = None, **changes: Any) -> Path:
    values = {**RECIPE, **changes}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False) if text is None else text)
    return folder / "recipe.yaml"


@hostile("recipe", "a billion laughs", "aliases .* are not read")
def _(folder):
    lines = ["a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    return recipe(folder, "\n".join([*lines, "network: *a11"]))


@hostile("recipe", "a list that holds itself", "aliases .* are not read")
def _(folder):
    return recipe(folder, "network: &me [*me]\n")


@hostile("recipe", "brackets in brackets", "nested more than 16 deep")
def _(folder):
    return recipe(folder, "network: " + "[" * 10_000 + "]" * 10_000)


@hostile("recipe", "indentation without end", "nested more than 16 deep")
def _(folder):
    return recipe(folder, "\n".join(" " * k + "a:" for k in range(200)))


@hostile("recipe", "a file of a gigabyte", "is too large|do not shrink so much")
def _(folder):
    return hole(folder / "recipe.yaml", 1 << 30, b"name: x\n")


@hostile("recipe", "a megabyte of keys", "is too large")
def _(folder):
    return recipe(folder, "".join(f"k{k}: 1\n" for k in range(100_000)))


@hostile("recipe", "Python objects", "not valid YAML")
def _(folder):
    return recipe(folder, f"name: !!python/object/apply:os.mkdir ['{folder}/EXECUTED']\n")


@hostile("recipe", "no text at all", "is not text|not valid YAML")
def _(folder):
    (folder / "recipe.yaml").write_bytes(bytes(range(256)) * 4)
    return folder / "recipe.yaml"


@hostile("recipe", "a key given twice", "a key is given twice")
def _(folder):
    return recipe(folder, yaml.safe_dump(RECIPE) + "laps: 2\n")


@hostile("recipe", "a number of 20,000 digits", "not valid YAML")
def _(folder):
    return recipe(folder, yaml.safe_dump({**RECIPE, "laps": 0}).replace("laps: 0", "laps: " + "9" * 20_000))


@hostile("recipe", "values that are dates and bytes", "neither a word nor a number")
def _(folder):
    return recipe(folder, yaml.safe_dump(RECIPE) + "about: !!binary /////w==\n")


@hostile("recipe", "a noise level of NaN", "numbers must be finite")
def _(folder):
    return recipe(folder, sigma_min=float("nan"))


@hostile("recipe", "10^15 steps", "train.steps: .*less than or equal to")
def _(folder):
    return recipe(folder, train={"steps": 10**15, "batch": 8})


@hostile("recipe", "a shard of a negative number", "e_step.shard: .*greater than or equal to 1")
def _(folder):
    return recipe(folder, e_step={"shard": -16})


@hostile("recipe", "a shard of 10^18 observations", "e_step.shard: .*less than or equal to")
def _(folder):
    return recipe(folder, e_step={"shard": 10**18})


@hostile("recipe", "a network of 10^12 weights", "^diffem: network: .*takes .* of memory")
def _(folder):
    return recipe(folder, network={"kind": "mlp", "hidden": [1_000_000, 1_000_000]})


@hostile("recipe", "10^13 points to simulate", "recipe.yaml: data.n = .*takes .* of memory")
def _(folder):
    return recipe(folder, data={**RECIPE["data"], "n": 10**13})


@hostile("recipe", "a negative number of points", "recipe.yaml: data.n must be a positive integer")
def _(folder):
    return recipe(folder, data={**RECIPE["data"], "n": -32})


@hostile("recipe", "a noise that is negative", "recipe.yaml: sigma must be positive")
def _(folder):
    return recipe(folder, data={**RECIPE["data"], "sigma": -1.0})


@hostile("recipe", "observations in a pipe", "recipe.yaml: data.path: no observations file at")
def _(folder):
    os.mkfifo(folder / "pipe")
    return recipe(folder, data={"source": "file", "path": str(folder / "pipe")})


@hostile("recipe", "a start that is a device", "is not a run|not a file")
def _(folder):
    return recipe(folder, start="/dev/zero")


@hostile("recipe, no folder", "a name that climbs out of its folder", "hold no slashes")
def _(folder):
    return recipe(folder, name="../../../escaped")


# runs --------------------------------------------------------------------------------------------------------------------


def outside(folder: Path) -> Path:
    """A folder beside the run, with a prior in it that the run has no business with."""
    return write_run(folder / "outside")


@hostile("run", "a lap that is a link to elsewhere", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "laps" / "000").rename(folder / "moved")
    (run / "laps" / "000").symlink_to(other / "laps" / "000")
    return run


@hostile("run", "a prior that is a link to elsewhere", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "laps" / "000" / "prior.safetensors").unlink()
    (run / "laps" / "000" / "prior.safetensors").symlink_to(
        os.path.relpath(other, run / "laps" / "000") + "/laps/000/prior.safetensors"
    )
    return run


@hostile("run", "a recipe that is a link to elsewhere", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "recipe.yaml").unlink()
    (run / "recipe.yaml").symlink_to(other / "recipe.yaml")
    return run


@hostile("run", "laps that are a link to themselves", "no lap of this run is finished yet")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps").rename(folder / "moved")
    (run / "laps").symlink_to("laps")
    return run


@hostile("run", "a lap that leads back to the run", "no lap of this run is finished yet")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps" / "000").rename(folder / "moved")
    (run / "laps" / "000").symlink_to("..")
    return run


@hostile("run", "a recipe cut off between two lines", "recipe.yaml is damaged: its last line")
def _(folder):
    run = write_run(folder / "run")
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text[: text.index("watch:")])
    return run


@hostile("run", "a flipped bit in the recipe", "recipe.yaml is damaged: its lines do not match")
def _(folder):
    run = write_run(folder / "run")
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("held_out: 4", "held_out: 5"))
    return run


@hostile("run", "a flipped bit in run.json", "run.json is damaged")
def _(folder):
    run = write_run(folder / "run")
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    return run


@hostile("run", "a run.json of a gigabyte", "is too large|do not shrink so much")
def _(folder):
    run = write_run(folder / "run")
    hole(run / "run.json", 1 << 30, b'{"version": ')
    return run


@hostile("run", "a run.json of brackets", "nested more than 64 deep")
def _(folder):
    run = write_run(folder / "run")
    (run / "run.json").write_text("[" * 100_000)
    return run


@hostile("run", "a run.json of two million empty lists", "holds more than 2097152 values")
def _(folder):
    run = write_run(folder / "run")
    (run / "run.json").write_text('{"checksum": "", "a": [' + "[]," * 2_700_000 + "[]]}")
    return run


@hostile("run", "a run.json that is a list", "does not describe a run")
def _(folder):
    run = write_run(folder / "run")
    (run / "run.json").write_text("[1, 2]")
    return run


@hostile("run, report", "measures that are words", "chi2 should be a number")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps/000/metrics.json").write_text('{"lap": 0, "chi2": "<script>", "seconds": 1}')
    return run


@hostile("run, report", "measures of another lap", "does not hold the measures of lap 0")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps/000/metrics.json").write_text('{"lap": 7}')
    return run


@hostile("run, report", "pictures that are pickled", "objects are never read")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / "laps/000/samples.npy", np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return run


@hostile("run, report", "pictures of another form", "needed: numbers with 3 axes")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / "laps/000/posterior.npy", np.float32(3))
    return run


@hostile("run, report", "losses that are not numbers", "does not hold losses")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps/000/losses.json").write_text('{"losses": null}')
    return run


@hostile("run, fit", "a lock that is a link to elsewhere", "cannot work in")
def _(folder):
    run = write_run(folder / "run")
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(folder / "EXECUTED")
    return run


@hostile("run, fit", "a lap that leads out, to be written to", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "laps" / "001").symlink_to(other / "laps" / "000")
    return run


# arrays ------------------------------------------------------------------------------------------------------------------


def npy(path: Path, header: str | bytes, data: bytes = b"", version: int = 1, length: int | None = None) -> Path:
    """A `.npy` with a header of our own."""
    text = header.encode() if isinstance(header, str) else header
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = len(text) if length is None else length
    path.write_bytes(
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text + data
    )
    return path


def claim(shape: str, descr: str = "'<f4'", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


@hostile("reference", "objects", "objects are never read")
def _(folder):
    np.save(folder / "x.npy", np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return folder / "x.npy"


@hostile("reference", "objects among numbers", "objects are never read")
def _(folder):
    return npy(folder / "x.npy", claim("(1,)", "[('a', '<f4'), ('b', '|O')]"), pickled(folder))


@hostile("reference", "a pickle called .npy", "cannot be read as an array")
def _(folder):
    (folder / "x.npy").write_bytes(pickled(folder))
    return folder / "x.npy"


@hostile("reference", "a shape of 10^15 numbers", "takes 4000000000000000 bytes, the file holds 16")
def _(folder):
    return npy(folder / "x.npy", claim("(1000000000, 1000000)"), bytes(16))


@hostile("reference", "a shape whose size overflows", "the file holds 16")
def _(folder):
    return npy(folder / "x.npy", claim(f"({1 << 62}, 4)"), bytes(16))


@hostile("reference", "negative sizes", "shape")
def _(folder):
    return npy(folder / "x.npy", claim("(-2, -2)"), bytes(16))


@hostile("reference", "a header of 4 GiB", "cannot be read as an array")
def _(folder):
    return npy(folder / "x.npy", claim("(2, 2)"), bytes(16), version=2, length=(1 << 32) - 1)


@hostile("reference", "a header of brackets", "cannot be read as an array")
def _(folder):
    return npy(folder / "x.npy", "(" * 9_000)


@hostile("reference", "a header that calls a function", "cannot be read as an array")
def _(folder):
    return npy(folder / "x.npy", f"__import__('os').mkdir('{folder}/EXECUTED')")


@hostile("reference", "numbers of 2 GiB each", "not numbers|cannot be read")
def _(folder):
    return npy(folder / "x.npy", claim("(4,)", "'|V2147483647'"), bytes(16))


@hostile("reference", "cut off", "the file holds")
def _(folder):
    np.save(folder / "x.npy", numbers(16, *EVENT).numpy())
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-5])
    return folder / "x.npy"


@hostile("reference", "a consistent array of 1 TiB of holes", "real data do not shrink so much")
def _(folder):
    path = npy(folder / "x.npy", claim(f"({TIB // 16}, 4)"))
    return hole(path, path.stat().st_size + TIB, path.read_bytes())


@hostile("reference", "values that are NaN", "needed: finite samples")
def _(folder):
    np.save(folder / "x.npy", np.full((16, *EVENT), np.nan, np.float32))
    return folder / "x.npy"


def zeros_npz(path: Path, images: int) -> Path:
    """An `.npz` of so many images, all zeros: compressed, a thousandth of what it becomes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": (images, 3, 32, 32)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as file:
        file.write(buffer.getvalue())
        for _ in range(images // 1000):
            file.write(bytes(1000 * 3 * 32 * 32))
    return path


@hostile("reference", "an .npz that unpacks to a thousand times its size", "real data do not shrink so much")
def _(folder):
    return zeros_npz(folder / "x.npz", 40_000)


@hostile("reference", "an .npz of objects", "objects are never read")
def _(folder):
    np.savez(folder / "x.npz", images=np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return folder / "x.npz"


@hostile("reference", "an .npz with a flipped bit", "CRC|cannot be read")
def _(folder):
    np.savez(folder / "x.npz", images=np.zeros((4, 1, 8, 8), np.uint8))
    data = bytearray((folder / "x.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "x.npz").write_bytes(bytes(data))
    return folder / "x.npz"


@hostile("reference", "an .npz whose directory lies about sizes", "cannot be read|holds|shrink")
def _(folder):
    np.savez(folder / "x.npz", images=np.zeros((4, 1, 8, 8), np.uint8))
    data = bytearray((folder / "x.npz").read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 20 : place + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    (folder / "x.npz").write_bytes(bytes(data))
    return folder / "x.npz"


# images ------------------------------------------------------------------------------------------------------------------


def png(width: int, height: int, data: bytes = bytes(1000)) -> bytes:
    """A picture that claims a size, with whatever in it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, data in members:
            info.size = len(data) or info.size
            archive.addfile(info, io.BytesIO(data) if data else None)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@hostile("images", "a picture of 10^10 pixels", "10000000000 pixels")
def _(folder):
    (folder / "a.png").write_bytes(png(100_000, 100_000))
    return folder


@hostile("images", "a picture of 10^8 pixels", "claims 10000×10000 pixels")
def _(folder):
    (folder / "a.png").write_bytes(png(10_000, 10_000))
    return folder


@hostile("images", "a hundred pictures of 25 million pixels, all black", "real data do not shrink so much")
def _(folder):
    data = png(5000, 5000, bytes(5000 * 5001))
    for k in range(100):
        (folder / f"{k:03d}.png").write_bytes(data)
    return folder


@hostile("images", "a picture that ends early", "a.png cannot be read as an image")
def _(folder):
    (folder / "a.png").write_bytes(png(64, 64)[:60])
    return folder


@hostile("images", "a program called a picture", "neither JPEG nor PNG")
def _(folder):
    (folder / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n%%EOF\n")
    return folder


@hostile("images", "a picture that is a pipe", "is not a file but a pipe")
def _(folder):
    os.mkfifo(folder / "a.png")
    return folder


@hostile("images", "a picture that is a device", "is not a file but a device")
def _(folder):
    (folder / "a.png").symlink_to("/dev/zero")
    return folder


@hostile("images", "a folder that holds itself", "images in")
def _(folder):
    (folder / "a").mkdir()
    (folder / "a" / "again").symlink_to("..")
    return folder


@hostile("images", "an archive whose names climb out", "images in .*x.tar|cannot be read as an image")
def _(folder):
    names = ("../../EXECUTED.png", f"{folder}/EXECUTED.png")
    return tar(folder / "x.tar", *((tarfile.TarInfo(name), b"not a picture") for name in names))


@hostile("images", "an archive of links", "images in")
def _(folder):
    secret = folder / "secret.png"
    secret.write_bytes(png(8, 8))
    return tar(
        folder / "x.tar",
        link("a.png", str(secret)),
        link("b.png", "b.png"),
        link("c.png", str(secret), tarfile.LNKTYPE),
    )


@hostile("images", "an archive with a member of 1 TiB", "too large for an image|cannot be read|damaged")
def _(folder):
    info = tarfile.TarInfo("a.png")
    info.size = TIB
    (folder / "x.tar").write_bytes(info.tobuf() + bytes(2048))
    return folder / "x.tar"


@hostile("images", "an archive that unpacks to 10 GB", "unpacks to more than")
def _(folder):
    info = tarfile.TarInfo("a.txt")
    info.size = 10 << 30
    # gzip members may follow one another: one of 64 MiB of zeros, many times
    zeros = gzip.compress(bytes(1 << 26), 6, mtime=0)
    (folder / "x.tar.gz").write_bytes(gzip.compress(info.tobuf(), mtime=0) + zeros * 160)
    return folder / "x.tar.gz"


@hostile("images", "an archive of a million empty files", "holds more files than there is room for")
def _(folder):
    block = b"".join(tarfile.TarInfo(f"{k}.png").tobuf() for k in range(1000))
    (folder / "x.tar.gz").write_bytes(gzip.compress(block, mtime=0) * 1000)
    return folder / "x.tar.gz"


@hostile("images", "an archive cut off", "cut off|damaged|cannot be read")
def _(folder):
    path = tar(folder / "x.tar.gz", (tarfile.TarInfo("a.png"), png(64, 64) * 40), mode="w:gz")
    path.write_bytes(path.read_bytes()[:-200])
    return path


# volumes -----------------------------------------------------------------------------------------------------------------


def h5(folder: Path) -> tuple[Path, Any]:
    folder.mkdir(exist_ok=True)
    file = h5py.File(folder / "0.h5", "w")
    file["reconstruction_esc"] = np.abs(numbers(2, 16, 16).numpy())
    file.attrs["max"] = 4.0
    return folder, file


@hostile("volume", "a dataset in another file", "is a link to another place")
def _(folder):
    path, file = h5(folder / "volumes")
    with h5py.File(folder / "secret.h5", "w") as other:
        other["x"] = np.zeros((2, 16, 16), np.complex64)
    with file:
        file["kspace"] = h5py.ExternalLink(str(folder / "secret.h5"), "x")
    return path


@hostile("volume", "a dataset that is any file of the disk", "keeps its data in other files")
def _(folder):
    path, file = h5(folder / "volumes")
    (folder / "secret").write_bytes(bytes(2 * 16 * 16 * 4))
    with file:
        del file["reconstruction_esc"]
        file.create_dataset("reconstruction_esc", (2, 16, 16), "<f4", external=[(str(folder / "secret"), 0, 2048)])
    return path


@hostile("volume", "a dataset put together from other files", "keeps its data in other files")
def _(folder):
    path, file = h5(folder / "volumes")
    layout = h5py.VirtualLayout((2, 16, 16), "<f4")
    layout[:] = h5py.VirtualSource(str(folder / "secret.h5"), "x", shape=(2, 16, 16))
    with file:
        del file["reconstruction_esc"]
        file.create_virtual_dataset("reconstruction_esc", layout)
    return path


@hostile("volume", "a dataset of 10^13 numbers that were never written", "real data do not shrink so much")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        del file["reconstruction_esc"]
        file.create_dataset("reconstruction_esc", (10, 10**6, 10**6), "<f4", chunks=(1, 64, 64))
    return path


@hostile("volume", "a link that leads to itself", "is a link to another place")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        file["kspace"] = h5py.SoftLink("/kspace")
    return path


@hostile("volume", "a maximum that is a word", "max must be a number")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        file.attrs["max"] = "large"
    return path


@hostile("volume", "texts for numbers", "must be real of shape")
def _(folder):
    path, file = h5(folder / "volumes")
    with file:
        del file["reconstruction_esc"]
        file.create_dataset("reconstruction_esc", (2, 16, 16), h5py.string_dtype())
    return path


@hostile("volume", "cut off", "it is truncated|cannot be read")
def _(folder):
    path, file = h5(folder / "volumes")
    file.close()
    data = (path / "0.h5").read_bytes()
    (path / "0.h5").write_bytes(data[: len(data) // 2])
    return path


@hostile("volume", "a pipe that nobody writes to", "is not a file but a pipe")
def _(folder):
    os.mkfifo(folder / "0.h5")
    return folder


@hostile("maps", "objects", "objects are never read")
def _(folder):
    np.save(folder / "maps.npy", np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return folder / "maps.npy"


@hostile("maps", "a shape of 10^15 numbers", "the file holds 16")
def _(folder):
    return npy(folder / "maps.npy", claim("(1000, 1000000, 1000000)", "'<c8'"), bytes(16))


@hostile("cifar10", "batches of 1 TiB of holes", "real data do not shrink so much")
def _(folder):
    for k in range(1, 6):
        hole(folder / f"data_batch_{k}.bin", 3073 * (TIB // 3073))
    return folder


@hostile("cifar10", "an archive that unpacks to a thousand times its size", "real data do not shrink so much")
def _(folder):
    zeros_npz(folder / "train.npz", 40_000)
    return folder
