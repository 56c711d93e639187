"""Blocks of the curve in five dimensions: the run, what chance is in its measures, what weighing the draws is worth."""

from __future__ import annotations

import itertools
from typing import Any

from ..manifold import RISES
from ..particles import CASES
from .parts import source, table

DIVERGENCES = {
    "draws": "16,384 draws, as many random points of the truth",
    "pooled": "all draws, the same random points",
    "even": "all draws, evenly spaced points",
}


def manifold(result: dict[str, Any]) -> str:
    f, laps = result["figures"], [row for row in result["rows"] if "sinkhorn_prior" in row]
    columns = {
        "sinkhorn_draws": ("draws, random truth", "{:.4f}"),
        "sinkhorn_pooled": ("all draws, random truth", "{:.5f}"),
        "sinkhorn_even": ("all draws, even truth", "{:.5f}"),
        "sinkhorn_prior": ("prior samples, random truth", "{:.4f}"),
        "off_curve": ("distance from the curve, squared", "{:.5f}"),
        "strays": ("strays", "{:.3%}"),
        "elsewhere": ("on another branch", "{:.1%}"),
        "along": ("W₂ along the curve", "{:.4f}"),
        "sliced": ("sliced W₂", "{:.4f}"),
        "prior_along": ("W₂ along the curve, prior samples", "{:.3f}"),
    }
    columns = {key: column for key, column in columns.items() if any(key in row for row in laps)}
    perfect = {key: f.get(f"perfect_{key.removeprefix('sinkhorn_')}") for key in columns}
    named = [(str(row["lap"]), row) for row in laps] + [("perfect draws", perfect)]
    rows = [
        [name, *("" if row.get(key) is None else form.format(row[key]) for key, (_, form) in columns.items())]
        for name, row in named
    ]
    text = (
        "Sinkhorn divergence (squared distance, regularisation 10⁻³) of draws and prior samples from random points of the truth, 16,384 of each, and "
        f"of all draws from the same and from evenly spaced points; {f['laps']} laps in {f['compute_minutes']:.1f} minutes of E and M. Of all draws also "
        "the mean squared distance from the curve, how many are further than 0.5 from it and how many on another branch than the point behind their "
        "observation, and W₂ to those points, along the curve and sliced. Perfect draws are from the exact posterior on the true curve:"
    )
    draws = {int(row["lap"]): row["sinkhorn_draws"] for row in result["rows"] if "sinkhorn_draws" in row}
    guards = [row["guards"] for row in result["rows"] if "guards" in row]
    rises = ", ".join(
        f"{max(f[RISES[key]], 0.0):.0%} ({what})"
        for key, what in {
            **{f"sinkhorn_{measure}": what for measure, what in DIVERGENCES.items()},
            "off_curve": "distance from the curve",
        }.items()
    )
    floors = (
        f"Two sets of the truth itself are {f['floor']:.4f} to {f['highest_floor']:.4f} apart. "
        f"{_settling(draws, f['highest_floor'])} "
        f"The worst rise of a lap over the best one before it: {rises}. "
        f"Another set of the truth is {f['sliced_floor']:.4f} from the observations' points in sliced W₂. "
        f"Where the learned Jacobian is no covariance the solver stops early: in "
        f"{guards[1]:.0%} of the evaluations of lap 2, in {guards[-1]:.0%} of the last lap's."
    )
    header = ["lap", *(title for title, _ in columns.values())]
    note = [result["note"]] if "note" in result else []
    return "\n\n".join([text, table(header, rows), floors, source(result), *note])


def chance(result: dict[str, Any]) -> str:
    f = result["figures"]
    rows = [
        [
            DIVERGENCES[row["measure"]],
            row["renewed"],
            f"{row['mean']:.5f}",
            f"{row['spread'] / row['mean']:.0%}",
            f"{row['rise']:.0%} ({row['rise_5']:.0%} to {row['rise_95']:.0%})",
        ]
        for row in result["rows"]
    ]
    header = [
        "perfect draws: W₂² along the curve",
        "renewed per lap",
        "mean",
        "spread",
        "worst rise: median (5 to 95 %)",
    ]
    text = f"{f['runs']} runs of perfect draws, to lap {f['laps']}:"
    return "\n\n".join([text, table(header, rows), source(result)])


def last_lap(result: dict[str, Any]) -> str:
    f = result["figures"]
    shares = sorted({row["measured"] for row in result["rows"]}, reverse=True)
    rows = [
        [f"{share:g}", *(f"{row['prior_along']:.3f}" for row in result["rows"] if row["measured"] == share)]
        for share in shares
    ]
    rows.append(["the truth itself", *[f"{f['perfect_prior_along']:.3f}"] * (len(rows[0]) - 1)])
    trainings = ["W₂ along the curve", *("with other random numbers" for _ in rows[0][2:])]
    return "\n\n".join([table(["`train.measured` in the last lap", *trainings], rows), source(result)])


def particles(result: dict[str, Any]) -> str:
    f = result["figures"]
    about = {
        "pc": ", corrections above {down_to}",
        "tds": ", {particles} particles",
        "tds picks": ", {particles} particles, {picks} draws from each set",
    }
    samplers = {
        name: f"`{case['e_step.sampler']}`, {case['e_step.steps']} steps"
        + about.get(name, "").format(**case["e_step.sampler_options"])
        for name, case in CASES.items()
    }
    shown = (2, 4, 6, 8, 12)
    lines, known = [], []
    for name, title in samplers.items():
        laps = {row["lap"]: row for row in result["rows"] if row["sampler"] == name}
        true = laps.pop(None)
        known.append(
            [
                title,
                f"{true['evaluations']:.0f}",
                f"{true['elsewhere']:.1%}",
                f"{true['strays']:.2%}",
                f"{true['chi2']:.2f}",
                f"{true['along']:.3f}",
            ]
        )
        last = laps[max(laps)]
        lines.append(
            [
                title,
                " → ".join(f"{laps[lap]['off_curve']:.2g}" for lap in shown if lap in laps),
                " → ".join(f"{laps[lap]['elsewhere']:.0%}" for lap in shown if lap in laps),
                f"{last['along']:.3f}",
                f"{last['strays']:.2%}",
                f"{last['rejected']:.1%}",
            ]
        )
    lines.append(
        [
            "perfect draws",
            f"{f['perfect_off_curve']:.1g}",
            f"{f['perfect_elsewhere']:.1%}",
            f"{f['perfect_along']:.3f}",
            f"{f['perfect_strays']:.2%}",
            "",
        ]
    )
    header = [
        "draws by",
        f"squared distance from the curve, laps {', '.join(map(str, shown))}",
        "on another branch than the truth, same laps",
        "W₂ along the curve",
        "strays",
        "rejected",
    ]
    known_header = [
        "true prior, draws by",
        "evaluations",
        "on another branch than the truth",
        "strays",
        "χ²",
        "W₂ along the curve",
    ]
    return "\n\n".join([table(known_header, known), "EM:", table(header, lines), source(result)])


def _settling(draws: dict[int, float], floor: float) -> str:
    """How the divergence of the laps' draws comes down to what it cannot fall below."""
    first = next((lap for lap, value in draws.items() if value <= floor), None)
    if first is None:
        return f"The lowest value of the draws is {min(draws.values()):.4f}."
    until = [value for lap, value in draws.items() if lap <= first]
    after = [value for lap, value in draws.items() if lap >= first]
    falling = all(b < a for a, b in itertools.pairwise(until))
    return (
        f"The draws come within that at lap {first}{', every lap below the one before,' if falling else ''} and from there on vary as "
        f"such sets do, between {min(after):.4f} and {max(after):.4f}."
    )
