"""The outcome of a disturbed run: everything the library reads from it, compared with the undisturbed run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from diffem import InputError
from diffem.priors.files import load_with_description
from diffem.runs.draws import DrawStore
from diffem.runs.lap_arrays import AXES, read_lap_array, read_losses
from diffem.runs.rundir import RunDir

LAPS, TRAINED, SHARD = 2, 120, 20  # settings of the run of `benchmarks.faults`


def contents(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Every weight, draw, sample and loss that the library reads from a run, and the errors about rejected files."""
    run = RunDir(path)
    out: dict[str, np.ndarray] = {}
    refused = []
    readers: dict[str, Callable[[], dict[str, np.ndarray]]] = {}
    for lap in range(LAPS + 1):
        readers[f"{lap:03d}/prior"] = partial(_weights, run, lap)
        readers |= {f"{lap:03d}/{name}": partial(_lap_array, run, lap, name) for name in AXES}
        if lap:
            readers[f"{lap:03d}/losses"] = partial(_losses, run, lap)
            readers |= {f"{lap:03d}/draws/{k}": partial(_draws, run, lap, k) for k in range(TRAINED // SHARD)}
    for name, read in readers.items():
        try:
            out |= {f"{name}/{key}": value for key, value in read().items()}
        except InputError as error:
            refused.append(str(error))
    return out, refused


def _weights(run: RunDir, lap: int) -> dict[str, np.ndarray]:
    prior, _ = load_with_description(run.prior_file(lap), run.origin("prior", lap))
    return {name: t.numpy() for name, t in prior.state_dict().items()}


def _draws(run: RunDir, lap: int, k: int) -> dict[str, np.ndarray]:
    return {"x": DrawStore.of_lap(run, lap, TRAINED, SHARD).read(k).numpy()}


def _lap_array(run: RunDir, lap: int, name: str) -> dict[str, np.ndarray]:
    return {"x": read_lap_array(run, lap, name)}


def _losses(run: RunDir, lap: int) -> dict[str, np.ndarray]:
    steps, losses = read_losses(run, [lap])
    return {"x": np.array([steps, losses])} if steps else {}


def differs(found: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> list[str]:
    """Names of values that differ from those of the undisturbed run."""
    return [name for name in found if name not in reference or not np.array_equal(found[name], reference[name])]


def compare(path: Path, reference: dict[str, np.ndarray], damaged: str) -> str:
    """Classify a run that ended. Even a damaged file that the run no longer needed must be rejected by its reader."""
    found, refused = contents(path)
    if wrong := differs(found, reference):
        return f"silently wrong: {', '.join(wrong[:4])}"
    if found.keys() == reference.keys():
        return "identical"
    named = damaged and refused and all(Path(damaged).stem in message for message in refused)
    return "refused" if named else f"silently wrong: {refused[:2]}"
