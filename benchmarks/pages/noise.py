"""Blocks for unknown noise levels, unknown operator parameters, and a few clean samples."""

from __future__ import annotations

from typing import Any

from .parts import kept, prose, source, table


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
    apart = f"Estimates for four groups of observations, each with its own level, in one run: {listed}."
    return "\n\n".join([table(header, rows), apart, source(result)])


def few_clean(result: dict[str, Any]) -> str:
    found = {(row["missing"], row["case"]): row for row in result["rows"]}
    rows = []
    for missing in sorted({missing for missing, _ in found}):
        pair = [found[missing, case] for case in ("without", "with")]
        for key, name in (("mse_draw", "a draw"), ("mse_mean", "mean of 8 draws")):
            values = [row[f"{key}_{kind}"] for kind in ("gaussian", "learned") for row in pair]
            change = f"{values[3] / values[2] - 1:+.1%}".replace("-", "−")
            rows.append([f"{missing:.0%}", name, *(f"{value:.3f}" for value in values), change])
    header = [
        "missing",
        "error of",
        "Gaussian start, corrupted only",
        "with 50 clean",
        "learned prior, corrupted only",
        "with 50 clean",
        "change of the learned prior",
    ]
    return "\n\n".join([table(header, rows), source(result), *kept(result)])


def calibration(result: dict[str, Any]) -> str:
    rows = result["rows"]
    body = []
    for case, name in PARAMETERS.items():
        found = [row for row in rows if row["case"] == case]
        first = found[0]
        worst = max(_error(row) for row in found)
        body.append([name, _numbers(first["truth"]), _numbers(first["estimate"]), f"{worst:.1%}"])
    header = ["parameter", "truth", "estimate, seed 0", f"largest error of {len(found)} seeds"]
    parts = [table(header, body)]
    shared = [row for row in rows if row["case"] == "one-width"]
    gains = [row for row in rows if row["case"] == "gain"]
    gain, offset = (max(row[key] for row in gains) for key in ("gain_error", "offset_error"))
    seeds = f"{len(gains)} seeds" if len(gains) > 1 else "one seed"
    parts.append(
        prose(
            f"Errors are relative to the largest true value. Gains and offsets of four groups (`priors.calibrate`), "
            f"largest errors of {seeds}: {gain:.1%} of the gain, {offset:.1%} of the size of y for the "
            f"offset. One width for all observations: reported as not determined for "
            f"{sum(not row['determined'] for row in shared)} of {len(shared)} seeds."
        )
    )
    given = next((row for row in rows if row["case"] == "width-given"), None)
    runs = [row for row in rows if "path" in row]
    lines = [
        [
            f"{row['first']:g}",
            " → ".join(f"{value:.4f}" for value in row["path"]),
            f"{row['standard_errors'][-1]:.4f}",
            f"{row['mse_draw']:.4f}",
        ]
        for row in runs
    ]
    if given is not None:
        lines.append(["given, 1", "", "", f"{given['mse_draw']:.4f}"])
    parts.append("Whole runs, with the width after the start and after each lap, and the squared error of a draw:")
    parts.append(table(["initial width", "path", "standard error", "draw"], lines))
    return "\n\n".join([*parts, source(result), *kept(result)])


PARAMETERS = {
    "start-1.3": "width of a blur, initial value 1.3",
    "start-0.7": "width of a blur, initial value 0.7",
    "groups": "widths of three groups, initial value 1.3",
    "shift": "displacement in pixels, half of the pixels missing, initial value 0",
    "phase": "phase in k-space, half of the lines missing, initial values 20 % off",
}


def _error(row: dict[str, Any]) -> float:
    pairs = zip(row["estimate"], row["truth"], strict=True)
    return max(abs(a - b) for a, b in pairs) / max(map(abs, row["truth"]))


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values).replace("-", "−")
