"""Host memory of a whole run by number of observations: `python -m benchmarks.host_memory [--observations 2000 50000]`.

The data are images of 32×32 with half of the pixels missing, in a file written by `Observations.save`. `diffem.fit`
(the Gaussian start and two laps), the report and the export each run in a separate process. The peak is that of the
resident set, which includes pages of mapped files and libraries. It is recorded and reset after every stage. The name
of the result is `memory`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import diffem
from diffem import Observations, operators

from .record import RESULTS, record

EVENT = (1, 32, 32)
RECIPE: dict[str, Any] = {
    "name": "host-memory",
    "laps": 2,
    "gaussian": {"rank": 4, "rounds": 2},
    "network": {"kind": "mlp", "hidden": [64, 64]},
    "e_step": {"steps": 2, "iterations": 1},
    "train": {"steps": 64, "batch": 256, "measured": 0.5},
    "watch": {"held_out": 64, "draws": 2, "samples": 64},
}
STAGES = ("load", "start", "E", "M", "watch", "report", "export")


class Peaks:
    """The peak of the resident set in MiB, by stage."""

    def __init__(self) -> None:
        self.mib: dict[str, float] = {}
        self._reset()

    def note(self, stage: str) -> None:
        status = Path("/proc/self/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
        self.mib[stage] = max(peak, self.mib.get(stage, 0.0))
        self._reset()

    def _reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")


def write_observations(n: int, folder: str) -> None:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(n, 1, 8, 8, generator=generator)
    y = torch.nn.functional.interpolate(coarse, EVENT[1:], mode="bicubic")
    y += 0.1 * torch.randn(y.shape, generator=generator)
    mask = torch.rand(y.shape, generator=generator) < 0.5
    Observations(torch.where(mask, y, 0), operators.Mask(mask), sigma=0.1).save(f"{folder}/obs.safetensors")


def run_recipe(n: int, folder: str) -> None:
    """Make the whole run and write the peak of each stage."""
    torch.set_num_threads(1)
    stages = {"expectation": "E", "maximization": "M"}
    began, peaks = time.monotonic(), Peaks()
    recipe = RECIPE | {"data": {"source": "file", "path": f"{folder}/obs.safetensors"}}

    def on_event(event: str, data: dict[str, Any]) -> None:
        if event == "start":  # the file was read and checked, and the run folder was opened
            peaks.note("load")
        elif event == "lap":
            peaks.note("watch" if data["lap"] else "start")
        elif event in stages:
            peaks.note(stages[event])

    diffem.fit(None, recipe, f"{folder}/run", progress=False, on_event=on_event, device="cpu")
    _write(folder, "fit", peaks.mib | {"seconds": time.monotonic() - began})


def write_page(n: int, folder: str) -> None:
    from diffem.report.page import write_report

    torch.set_num_threads(1)
    peaks = Peaks()
    write_report(f"{folder}/run", Observations.load(f"{folder}/obs.safetensors"))
    peaks.note("report")
    _write(folder, "report", peaks.mib)


def write_export(n: int, folder: str) -> None:
    from diffem.em import exports as hub

    torch.set_num_threads(1)
    peaks = Peaks()
    hub.export_run(f"{folder}/run", f"{folder}/export", obs=Observations.load(f"{folder}/obs.safetensors"))
    peaks.note("export")
    _write(folder, "export", peaks.mib)


def _write(folder: str, name: str, found: dict[str, float]) -> None:
    (Path(folder) / f"{name}.json").write_text(json.dumps(found))


def measured(n: int, folder: Path) -> dict[str, Any]:
    """Peaks by stage for n observations; every part runs in a new process."""
    context = multiprocessing.get_context("spawn")
    parts: list[Callable[[int, str], None]] = [write_observations, run_recipe, write_page, write_export]
    for part in parts:
        child = context.Process(target=part, args=(n, str(folder)))
        child.start()
        child.join()
        if child.exitcode != 0:
            raise SystemExit(f"{part.__name__} of {n} observations ended with exit code {child.exitcode}")
    found = {
        k: v
        for name in ("fit", "report", "export")
        for k, v in json.loads((folder / f"{name}.json").read_text()).items()
    }
    size = (folder / "obs.safetensors").stat().st_size / 2**20
    fit = max(found[stage] for stage in STAGES[:5])
    return {"observations": n, "data_mib": size, "fit": fit, **found}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--observations", type=int, nargs="+", default=[2000, 50000])
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    for n in arguments.observations:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(n, Path(folder)))
        print({name: round(value) for name, value in rows[-1].items()}, flush=True)
    figures = {f"peak_mib_{row['observations']}": row["fit"] for row in rows}
    print(record("memory", figures, rows, arguments.results))


if __name__ == "__main__":
    main()
