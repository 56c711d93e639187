"""Priors: files of weights."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from diffem.files.writing import write_tensors

from ..sound import EVENT, numbers, packed_prior
from .registry import TIB, Bomb, hole, hostile, pickled


def whole_prior(folder: Path) -> Path:
    write_tensors(folder / "prior.safetensors", *packed_prior())
    return folder / "prior.safetensors"


def with_header(path: Path, header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with the given header."""
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


@hostile("prior", "a header of 4 GiB in a file of holes", "real data do not compress this well")
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


@hostile("prior", "a consistent tensor of 1 TiB of holes", "real data do not compress this well")
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
    """A prior file in which tensors and parts of the description are replaced and the checksum is updated."""
    own_tensors, own = packed_prior(kind)
    write_tensors(folder / "prior.safetensors", own_tensors | (tensors or {}), own | description)
    return folder / "prior.safetensors"


@hostile("prior", "a mean of NaN", "mean holds values that are not finite")
def _(folder):
    return changed(folder, {"mean": torch.full(EVENT, torch.nan)})


@hostile("prior", "infinite weights", "network.layers.0.bias holds values that are not finite")
def _(folder):
    return changed(folder, {"network.layers.0.bias": torch.full((8,), torch.inf)})


@hostile(
    "prior", "weights of whole numbers", r"network.layers.0.bias must be torch.float32.*got torch.int64 of shape \(8,\)"
)
def _(folder):
    return changed(folder, {"network.layers.0.bias": torch.ones(8, dtype=torch.int64)})


@hostile("prior", "a mean in eight bits", "mean is torch.float8_e4m3fn")
def _(folder):
    return changed(folder, {"mean": torch.zeros(EVENT).to(torch.float8_e4m3fn)})


@hostile("prior", "weights of another shape", r"bias must be .* of shape \(8,\), got torch.float32 of shape \(9,\)")
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


@hostile(
    "prior", "a network of 300 MB that the file does not hold", "missing tensors|must be .*, like the mean, of shape"
)
def _(folder):
    return changed(folder, network={"kind": "mlp", "hidden": [8000, 8000]})


@hostile("prior", "layers of negative width", "network.hidden must be whole numbers")
def _(folder):
    return changed(folder, network={"kind": "mlp", "hidden": [-8]})


@hostile("prior", "a network named after a function", "unknown network 'os.system'")
def _(folder):
    return changed(folder, network={"kind": "os.system", "hidden": ["true"]})


@hostile("prior", "an event of another shape", "the mean must be .*, as in the description")
def _(folder):
    return changed(folder, event_shape=[2, 2])


@hostile("prior", "a negative variance", "cov.variance must be positive")
def _(folder):
    return changed(folder, {"cov.variance": torch.tensor(-1.0)}, "gaussian")


@hostile("prior", "a covariance of another size", "does not fit|mat1 and mat2|match the size")
def _(folder):
    cov = {"kind": "dense", "axes": {"vectors": 2, "values": 1}}
    return changed(folder, {"cov.vectors": torch.eye(9), "cov.values": torch.ones(9)}, cov=cov)


@hostile("prior", "a number of laps that is a word", "lap in the description must be a whole number .* got 'many'")
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
