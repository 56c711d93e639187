"""The block for measurements that are known by simulation only."""

from __future__ import annotations

from typing import Any

from .parts import source, table

NAMES = {"poisson-5": "counts, peak 5", "poisson-30": "counts, peak 30", "onebit": "one bit per pixel"}


def channel(result: dict[str, Any]) -> str:
    found = {(row["kind"], row["method"]): row for row in result["rows"]}
    rows = []
    for kind, name in NAMES.items():
        own, other = found[kind, "channel"], found[kind, "gaussian"]
        rows.append(
            [
                name,
                f"{own['mse_data']:.4f}",
                f"{other['mse_draw']:.4f} / {other['mse_mean']:.4f}",
                f"{own['mse_draw_start']:.4f} / {own['mse_mean_start']:.4f}",
                f"{own['mse_draw']:.4f} / {own['mse_mean']:.4f}",
                f"{own['distance']:.4f} ({other['distance']:.4f})",
                f"{own['chance']:.4f} ± {own['chance_std']:.4f}",
                f"{own['minutes']:.1f}",
            ]
        )
    header = [
        "measurement",
        "data",
        "Gaussian noise: draw / mean",
        "start: draw / mean",
        "channel: draw / mean",
        "distance of simulated y (Gaussian noise)",
        "two halves of y",
        "minutes",
    ]
    return "\n\n".join([table(header, rows), source(result)])
