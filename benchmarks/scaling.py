"""The overhead of a run: `python -m benchmarks.scaling [--processes 2] [--observations 1000 100000]`.

Processes: a run of several processes on this machine with one thread each. It measures the seconds that each process
spent waiting for the others, summing gradients (which includes waiting) and writing files, as a fraction of the whole
run. The run includes its start, which one process computes while the others wait. Memory: the E-step for few and for
many observations on disk. It measures the peak memory beyond that of the process before the E-step.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.core import processes
from diffem.files import writing as files
from diffem.nn import MLP
from diffem.observations.lazy import LazyObservations

from .record import RESULTS, record

SIZE, EVENT = 1536, (3, 16, 16)
RECIPE: dict[str, Any] = {
    "name": "scaling",
    "data": {"source": "given"},
    "laps": 4,
    "gaussian": {"rank": 8, "rounds": 4, "observations": 256},
    "network": {"kind": "unet", "hidden": [24, 48], "blocks": 2, "heads": [0, 0], "embedding": 64},
    "e_step": {"steps": 16, "iterations": 1, "shard": 64},
    "train": {"steps": 150, "batch": 256, "lr": 1e-3, "ema": 0.99},
    "watch": {"held_out": 16, "draws": 2, "samples": 16},
}


def images() -> Observations:
    """Smooth random fields with half of their pixels missing."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(SIZE, EVENT[0], 4, 4, generator=generator)
    x = torch.nn.functional.interpolate(coarse, EVENT[1:], mode="bicubic")
    mask = torch.rand(SIZE, 1, *EVENT[1:], generator=generator) < 0.5
    return Observations(x + 0.05 * torch.randn(x.shape, generator=generator), operators.Mask(mask), sigma=0.05)


def timed(seconds: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*args, **options)
        finally:
            seconds[name] += time.monotonic() - began

    return call


def one_of_several(rank: int, count: int, port: int, out: str) -> None:
    """One process of a run, whose waiting and writing is timed by patched functions."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    seconds: Counter[str] = Counter()
    write = files.write_bytes
    for module in [m for m in list(sys.modules.values()) if getattr(m, "write_bytes", None) is write]:
        module.write_bytes = timed(seconds, "writing", write)  # type: ignore[attr-defined]
    obs, us = images(), processes.join()
    for method, name in (("_wait", "waiting"), ("all_reduce_", "summing")):
        setattr(us, method, timed(seconds, name, getattr(us, method)))
    us.barrier()
    seconds.clear()
    began = time.monotonic()
    diffem.fit(obs, RECIPE, f"{out}/run", processes=us, progress=False)
    row = {"process": rank, "seconds": time.monotonic() - began, **seconds}
    Path(f"{out}/{rank}.json").write_text(json.dumps(row))
    us.leave()


def outside_compute(count: int, folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=one_of_several, args=(r, count, port, str(folder))) for r in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    rows = [json.loads((folder / f"{r}.json").read_text()) for r in range(count)]
    for row in rows:
        row["outside"] = sum(row.get(name, 0.0) for name in ("waiting", "summing", "writing")) / row["seconds"]
    return rows


class StoredVectors:
    """Masked vectors in a file, whose rows are read on demand."""

    x_shape = (64,)

    def __init__(self, path: Path, n: int) -> None:
        self.path, self.n, self.digest = path, n, "00"

    def __len__(self) -> int:
        return self.n

    def read(self, rows: torch.Tensor) -> Observations:
        # mapped at each read, because the pages of a file that stays mapped count as memory of the process
        y = torch.from_numpy(np.memmap(self.path, np.float32, "r", shape=(self.n, *self.x_shape))[rows.numpy()])
        return Observations(y, operators.Mask(~y.isnan()), sigma=0.1)


def memory_of(n: int, folder: str, out: str) -> None:
    """The E-step for n observations on disk, in a separate process; writes its additional memory in MiB."""
    torch.set_num_threads(1)
    path, generator = Path(folder) / "y.bin", torch.Generator().manual_seed(0)
    with path.open("wb") as file:
        for _ in range(0, n, 1000):
            y = torch.randn(1000, 64, generator=generator)
            y[torch.rand(y.shape, generator=generator) < 0.5] = torch.nan
            y.numpy().tofile(file)
    torch.manual_seed(0)
    prior = priors.DiffusionPrior(
        MLP((64,), (64, 64)), settings={"kind": "mlp", "hidden": [64, 64]}, sigma_min=0.05, sigma_max=10.0
    )
    recipe = RECIPE | {"laps": 1, "sigma_min": 0.05, "sigma_max": 10.0, "e_step": {"steps": 4, "shard": 1000}}
    before = _resident()

    def on_event(event: str, data: dict[str, Any]) -> None:
        if event == "expectation":  # the M-step, which follows, keeps all draws in memory
            Path(out).write_text(json.dumps({"observations": n, "mib": _peak() - before, "seconds": data["e_seconds"]}))
            os._exit(0)

    diffem.fit(
        LazyObservations(StoredVectors(path, n)),
        recipe,
        f"{folder}/run",
        start=prior,
        progress=False,
        on_event=on_event,
    )


def _status(name: str) -> float:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) / 1024


def _resident() -> float:
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    return _status("VmRSS")


def _peak() -> float:
    return _status("VmHWM")


def memory(n: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        child = multiprocessing.get_context("spawn").Process(target=memory_of, args=(n, folder, f"{folder}/out.json"))
        child.start()
        child.join()
        return json.loads(Path(f"{folder}/out.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--observations", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = outside_compute(arguments.processes, Path(folder))
    for row in rows:
        print({name: round(value, 3) for name, value in row.items()}, flush=True)
    held = []
    for n in arguments.observations:
        held.append(memory(n))
        print(held[-1], flush=True)
    figures = {
        "processes": arguments.processes,
        "outside_compute": max(row["outside"] for row in rows),
        "memory_growth_mib": held[-1]["mib"] - held[0]["mib"],
    }
    print(figures)
    print(record("scaling", figures, [*rows, *held], arguments.results))


if __name__ == "__main__":
    main()
