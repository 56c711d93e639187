"""The block for measurements that are known by simulation only."""

from __future__ import annotations

from typing import Any

from .parts import source, table

NAMES = {"poisson-5": "counts, peak 5", "poisson-30": "counts, peak 30", "onebit": "one bit per pixel"}


HEADER = [
    "measurement",
    "data",
    "Gaussian noise, start",
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
        distance = f"{own['distance']:.4f}" if "distance" in own else "–"
        chance = f"{own['chance']:.4f} ± {own['chance_std']:.4f}" if "chance" in own else "–"
        minutes = f"{own['minutes']:.1f}" if "minutes" in own else "–"
        errors = [_errors(other, "_start"), _errors(own, "_start"), _errors(own)]
        rows.append([name, f"{own['mse_data']:.4f}", *errors, distance, chance, minutes])
    return "\n\n".join([table(HEADER, rows), source(result), *_starts(result)])


def _errors(row: dict[str, Any], name: str = "") -> str:
    """The errors of a draw and of the mean of eight draws."""
    return f"{row[f'mse_draw{name}']:.4f} / {row[f'mse_mean{name}']:.4f}" if f"mse_draw{name}" in row else "–"


def _starts(result: dict[str, Any]) -> list[str]:
    """The source of the rows whose start alone was measured."""
    row = next((row for row in result["rows"] if "mse_draw" not in row), None)
    if row is None:
        return []
    where = f"commit {row['commit']}, {row['machine']}, {row['date']}"
    return [f"Starts alone: the same with `--set laps=1 train.first_steps=1`, {where}."]
