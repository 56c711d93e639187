"""Block for the estimates of unknown noise levels."""

from __future__ import annotations

from typing import Any

from .parts import source, table


def noise(result: dict[str, Any]) -> str:
    compared = [row for row in result["rows"] if "sigma" in row]
    rows = [
        [
            f"{row['sigma']:g}",
            f"{row['path'][-1]:.4f} ({row['interval'][0]:.4f} to {row['interval'][1]:.4f})",
            f"{row['sigma_error']:+.1%}".replace("-", "−"),
            f"{row['mse_draw_given']:.3f}",
            f"{row['mse_draw_learned']:.3f}",
        ]
        for row in compared
    ]
    header = [
        "true level",
        "estimate (95 % interval)",
        "error",
        "draw's error, level given",
        "draw's error, level learned",
    ]
    groups = next(row for row in result["rows"] if row.get("case") == "groups")
    pairs = zip(groups["levels"], groups["estimates"], strict=True)
    listed = ", ".join(f"{estimate:.4g} for {level:g}" for level, estimate in pairs)
    apart = f"Four groups of observations, each with a level of its own, in one run: {listed}."
    return "\n\n".join([table(header, rows), apart, source(result)])
