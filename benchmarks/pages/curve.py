"""Blocks for the curve in five dimensions: the run, variation by chance, and the effect of weighting the draws."""

from __future__ import annotations

import itertools
from typing import Any

from ..manifold import RISES
from ..particles import CASES
from .parts import kept, prose, source, table

DIVERGENCES = {
    "draws": "16,384 draws, 16,384 random points of the truth",
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
        "off_curve": ("squared distance from the curve", "{:.5f}"),
        "strays": ("outliers", "{:.3%}"),
        "elsewhere": ("on another branch", "{:.1%}"),
        "along": ("W₂ along the curve", "{:.4f}"),
        "sliced": ("sliced W₂", "{:.4f}"),
        "prior_along": ("W₂ along the curve, prior samples", "{:.3f}"),
    }
    columns = {key: column for key, column in columns.items() if any(key in row for row in laps)}
    perfect = {key: f.get(f"perfect_{key.removeprefix('sinkhorn_')}") for key in columns}
    named = [(str(row["lap"]), row) for row in laps] + [("exact posterior draws", perfect)]
    rows = [
        [name, *("" if row.get(key) is None else form.format(row[key]) for key, (_, form) in columns.items())]
        for name, row in named
    ]
    text = prose(
        f"The run took {f['laps']} laps and {f['compute_minutes']:.1f} minutes of E-steps and M-steps. The first four "
        "columns are Sinkhorn divergences (squared distance, regularisation 10⁻³) between 16,384 draws, all draws or "
        "16,384 prior samples and points of the true curve: 16,384 random points (random truth) or evenly spaced "
        "points (even truth). The other columns describe all draws: their mean squared distance from the curve; the "
        "fraction of outliers, further than 0.5 from the curve; the fraction on another branch than the true "
        "point; and W₂ to the true points, along the curve and sliced. Exact posterior draws use the true curve as "
        "prior:"
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
    floors = prose(
        f"Two sets of true points have a divergence of {f['floor']:.4f} to {f['highest_floor']:.4f}. "
        f"{_settling(draws, f['highest_floor'])} "
        f"The largest rise of a lap above the best lap before it is {rises}. "
        f"The sliced W₂ between the true points and another set of the truth is {f['sliced_floor']:.4f}. "
        "The curvature guard stopped the solver, because the learned Jacobian was not a covariance, in "
        f"{guards[1]:.0%} of the evaluations of lap 2 and in {guards[-1]:.0%} of those of the last lap."
    )
    header = ["lap", *(title for title, _ in columns.values())]
    note = [prose(result["note"])] if "note" in result else []
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
        "exact posterior draws: W₂² along the curve",
        "draws renewed per lap",
        "mean",
        "spread",
        "largest rise: median (5 to 95 %)",
    ]
    text = f"{f['runs']} runs of exact posterior draws, with {f['laps']} laps each:"
    return "\n\n".join([text, table(header, rows), source(result)])


def seeds(result: dict[str, Any]) -> str:
    """One row per curve: the last lap beside exact posterior draws, and the largest rise beside that of chance."""
    rows = [
        [
            str(row["seed"]),
            str(row["laps"]),
            f"{row['sinkhorn_draws']:.4f}",
            f"{row['exact_draws']:.4f}",
            f"{row['sinkhorn_pooled']:.5f}",
            f"{row['exact_pooled']:.5f}",
            f"{row['sinkhorn_prior']:.4f}",
            f"{max(row['worst_rise_pooled'], 0):.0%}",
            f"{row['chance_pooled']:.0%}",
        ]
        for row in result["rows"]
    ]
    header = ["seed", "laps", "draws", "exact draws", "all draws", "all exact draws", "prior samples"]
    header += ["largest rise, all draws", "by chance in 5 % of runs"]
    return "\n\n".join([table(header, rows), *kept(result), source(result)])


def last_lap(result: dict[str, Any]) -> str:
    f = result["figures"]
    shares = sorted({row["measured"] for row in result["rows"]}, reverse=True)
    rows = [
        [f"{share:g}", *(f"{row['prior_along']:.3f}" for row in result["rows"] if row["measured"] == share)]
        for share in shares
    ]
    rows.append(["samples of the truth", *[f"{f['perfect_prior_along']:.3f}"] * (len(rows[0]) - 1)])
    trainings = ["W₂ along the curve", *("with other random numbers" for _ in rows[0][2:])]
    return "\n\n".join([table(["`train.measured` in the last lap", *trainings], rows), source(result)])


def particles(result: dict[str, Any]) -> str:
    f = result["figures"]
    about = {
        "pc": ", corrections at noise levels above {down_to}",
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
            "exact posterior draws",
            f"{f['perfect_off_curve']:.1g}",
            f"{f['perfect_elsewhere']:.1%}",
            f"{f['perfect_along']:.3f}",
            f"{f['perfect_strays']:.2%}",
            "",
        ]
    )
    header = [
        "sampler",
        f"squared distance from the curve, laps {', '.join(map(str, shown))}",
        "on another branch than the true point, same laps",
        "W₂ along the curve",
        "outliers",
        "rejected",
    ]
    known_header = [
        "sampler, with the true prior",
        "evaluations",
        "on another branch than the true point",
        "outliers",
        "χ²",
        "W₂ along the curve",
    ]
    return "\n\n".join([table(known_header, known), "EM with each sampler:", table(header, lines), source(result)])


def _settling(draws: dict[int, float], floor: float) -> str:
    """Describe how the divergence of the draws falls to the divergence between two sets of the truth."""
    first = next((lap for lap, value in draws.items() if value <= floor), None)
    if first is None:
        return f"The lowest divergence of the draws is {min(draws.values()):.4f}."
    until = [value for lap, value in draws.items() if lap <= first]
    after = [value for lap, value in draws.items() if lap >= first]
    falling = all(b < a for a, b in itertools.pairwise(until))
    return (
        f"The divergence of the draws falls {'in every lap ' if falling else ''}and reaches this range at lap {first}. "
        f"From then on it varies like that of two sets of the truth, between {min(after):.4f} and {max(after):.4f}."
    )
