"""Blocks that combine several results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .parts import table

# result, key of the time, seconds per unit, data, what was run
TIMES = [
    ("own-data", "run_seconds_table", 1, "a table, 569 × 30", "recipe `table`"),
    ("digits", "seconds", 1, "1,797 images of 8×8", "recipe `digits`"),
    ("own-data", "run_seconds_pixels", 1, "2,000 images of 14×14, 60 % missing", "recipe `small-images`"),
    ("own-data", "run_seconds_blurs", 1, "3,000 images of 14×14, blurred", "recipe `small-images`"),
    ("tables", "fit_seconds_20000x16", 1, "a table, 20,000 × 16", "`DiffusionImputer`"),
    ("channel", "minutes_poisson-5_channel", 60, "5,000 images of 16×16, photon counts", "a recipe with `Channel`"),
    ("mri-conditional", "gpu_minutes", 60, "5,622 MRI slices of 128×128, R = 6", "recipe `mri-conditional`"),
    ("cifar10-conditional", "gpu_minutes", 60, "50,000 images of 32×32, 75 % missing", "recipe `cifar10-conditional`"),
]


def times(load: Callable[[str], dict[str, Any]]) -> str:
    """How long whole runs took: one row per kind of data, fastest first."""
    rows = []
    for name, key, seconds, data, what in TIMES:
        result = load(name)
        minutes = result["figures"][key] * seconds / 60
        machine = result["machine"].split(",")[0].replace(" (x86_64)", "")
        rows.append([data, what, machine, f"{minutes:.1f}", f"`{name}.json`, {result['commit']}"])
    return table(["data", "what was run", "machine", "minutes", "result, commit"], rows)
