"""Blocks for unknown noise levels and for a few clean samples."""

from __future__ import annotations

from typing import Any

from .parts import source, table


def noise(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['sigma']:g}",
            f"{row['path'][-1]:.4f} ({row['interval'][0]:.4f} to {row['interval'][1]:.4f})",
            f"{row['sigma_error']:+.1%}".replace("-", "−"),
            f"{row['mse_draw_given']:.3f}",
            f"{row['mse_draw_learned']:.3f}",
        ]
        for row in result["rows"]
        if "sigma" in row
    ]
    header = ["true level", "estimate (95 % interval)", "error", "draw, level given", "draw, level learned"]
    groups = next(row for row in result["rows"] if row.get("case") == "groups")
    pairs = zip(groups["levels"], groups["estimates"], strict=True)
    listed = ", ".join(f"{estimate:.4g} for {level:g}" for level, estimate in pairs)
    apart = f"Estimates for four groups of observations, each with a level of its own, in one run: {listed}."
    return "\n\n".join([table(header, rows), apart, source(result)])


def few_clean(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['missing']:.0%}",
            *(
                f"{row[f'mse_draw_{kind}_{name}']:.3f}"
                for kind in ("gaussian", "learned")
                for name in ("without", "with")
            ),
            f"{row['gain']:+.1%}".replace("-", "−"),
        ]
        for row in result["rows"]
    ]
    header = [
        "missing",
        "Gaussian start, corrupted only",
        "Gaussian start, with 50 clean",
        "learned prior, corrupted only",
        "learned prior, with 50 clean",
        "gain of the learned prior",
    ]
    return "\n\n".join([table(header, rows), source(result)])
