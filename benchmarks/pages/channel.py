"""The block for measurements that can only be simulated."""

from __future__ import annotations

from typing import Any

from .parts import kept, source, table

NAMES = {"poisson-5": "counts, peak 5", "poisson-30": "counts, peak 30", "onebit": "one bit per pixel"}
HEADER = [
    "measurement",
    "data",
    "Gaussian noise, start",
    "Gaussian noise, learned",
    "channel, start",
    "channel, learned",
    "simulated y",
    "two halves of y",
    "minutes",
]


def channel(result: dict[str, Any]) -> str:
    found = {(row["kind"], row["method"]): row for row in result["rows"]}
    rows = []
    for kind, name in NAMES.items():
        own, other = found[kind, "channel"], found[kind, "gaussian"]
        errors = [_errors(row, lap) for row in (other, own) for lap in ("_start", "")]
        chance = f"{own['chance']:.4f} ± {own['chance_std']:.4f}"
        minutes = f"{own['minutes']:.1f}"
        rows.append([name, f"{own['mse_data']:.4f}", *errors, f"{own['distance']:.4f}", chance, minutes])
    return "\n\n".join([table(HEADER, rows), source(result), *kept(result)])


def _errors(row: dict[str, Any], lap: str) -> str:
    """The errors of a draw and of the mean of eight draws."""
    return f"{row[f'mse_draw{lap}']:.4f} / {row[f'mse_mean{lap}']:.4f}"
