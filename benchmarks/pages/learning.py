"""Blocks of what was learned: digits, the curve, photographs, slices."""

from __future__ import annotations

import itertools
from statistics import mean
from typing import Any

from ..record import load
from .parts import COVARIANCES, source, table


def digits(result: dict[str, Any]) -> str:
    rows = [
        [
            str(row["seed"]),
            f"{row['mse_draw_gaussian']:.3f}",
            f"{row['mse_draw']:.3f}",
            f"{row['mse_mean_gaussian']:.3f}",
            f"{row['mse_mean16']:.3f}",
            " → ".join(f"{v:.2f}" for v in row["mse_per_lap"]),
            f"{row['seconds']:.0f} s",
        ]
        for row in result["rows"]
    ]
    header = [
        "seed",
        "draw, Gaussian",
        "draw, learned",
        "mean, Gaussian",
        "mean of 16, learned",
        "draws, lap by lap",
        "run",
    ]
    return "Mean squared error on the missing pixels of the digits (scale −2 … 2):\n\n" + "\n\n".join(
        [table(header, rows), source(result)]
    )


def covariances(result: dict[str, Any]) -> str:
    lines = []
    for method in dict.fromkeys(row["method"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["method"] == method]
        laps = [mean(values) for values in zip(*(row["mse_per_lap"] for row in rows), strict=True)]
        lines.append(
            [
                COVARIANCES[method],
                " → ".join(f"{v:.2f}" for v in laps),
                f"{mean(row['mse_mean16'] for row in rows):.3f}",
                f"{mean(row['coverage90'] for row in rows):.1%}",
                f"{mean(row['chi2'][-1] for row in rows):.2f}",
                f"{mean(row['rejected'][-1] for row in rows):.1%}",
            ]
        )
    header = [
        "covariance",
        "draws, lap by lap",
        "mean of 16",
        "coverage of 90 % intervals",
        "χ², last lap",
        "rejected, last lap",
    ]
    count = len({row["seed"] for row in result["rows"]})
    text = f"Mean squared error on the missing pixels of the digits, means over {count} seeds; lap 1 draws from the Gaussian start:"
    return "\n\n".join([text, table(header, lines), source(result)])


def manifold(result: dict[str, Any]) -> str:
    f, laps = result["figures"], [row for row in result["rows"] if "sinkhorn_prior" in row]
    columns = {
        "sinkhorn_draws": ("draws, random truth", "{:.4f}"),
        "sinkhorn_pooled": ("all draws, even truth", "{:.5f}"),
        "sinkhorn_prior": ("prior samples, random truth", "{:.4f}"),
        "off_curve": ("distance from the curve, squared", "{:.5f}"),
        "strays": ("strays", "{:.3%}"),
        "elsewhere": ("on another branch", "{:.1%}"),
        "along": ("W₂ along the curve", "{:.4f}"),
        "sliced": ("sliced W₂", "{:.4f}"),
    }
    columns = {key: column for key, column in columns.items() if any(key in row for row in laps)}
    perfect = {key: f.get(f"perfect_{key.removeprefix('sinkhorn_')}") for key in columns}
    named = [(str(row["lap"]), row) for row in laps] + [("perfect draws", perfect)]
    rows = [
        [name, *("" if row.get(key) is None else form.format(row[key]) for key, (_, form) in columns.items())]
        for name, row in named
    ]
    guards = [row["guards"] for row in result["rows"] if "guards" in row]
    draws = [row["sinkhorn_draws"] for row in result["rows"] if "sinkhorn_draws" in row]
    text = (
        f"Sinkhorn divergence (squared distance, regularisation 10⁻³) from random points of the truth (16,384 of each), and of all 65,536 draws "
        f"from evenly spaced points of the truth; {f['laps']} laps in {f['compute_minutes']:.1f} minutes of E and M; of all draws also the mean "
        "squared distance from the curve, how many are further than 0.5 from it, and W₂ to the observations' own true points, along the curve and "
        "sliced. Perfect draws are from the exact posterior on the true curve:"
    )
    rises = [max(f[key], 0.0) for key in ("worst_rise", "worst_rise_pooled", "worst_rise_off_curve")]
    floors = (
        f"Two sets of the truth itself are {f['floor']:.4f} to {f['highest_floor']:.4f} apart. "
        f"{_settling(draws, f['highest_floor'])} "
        f"The worst rise of a lap over the best one before it is {rises[0]:.0%} in the divergence from random points, {rises[1]:.0%} in that of all "
        f"draws from even points and {rises[2]:.0%} in the distance from the curve. "
        f"Another set of the truth is {f['sliced_floor']:.4f} from the observations' points in sliced W₂. "
        f"Where the learned Jacobian is no covariance the solver stops early: in "
        f"{guards[1]:.0%} of the evaluations of lap 2, in {guards[-1]:.0%} of the last lap's."
    )
    header = ["lap", *(title for title, _ in columns.values())]
    return "\n\n".join([text, table(header, rows), floors, source(result)])


def particles(result: dict[str, Any]) -> str:
    f = result["figures"]
    samplers = {
        "ddpm2": "`ddpm2`, 512 steps",
        "pc": "`pc`, 344 steps, corrections above 0.1",
        "tds": "`tds`, 8 particles, 64 steps",
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


def _settling(draws: list[float], floor: float) -> str:
    """How the divergence of the laps' draws comes down to what it cannot fall below."""
    first = next((k for k, value in enumerate(draws) if value <= floor), None)
    if first is None:
        return f"The lowest value of the draws is {min(draws):.4f}."
    falling = all(b < a for a, b in itertools.pairwise(draws[: first + 1]))
    return (
        f"The draws come within that at lap {first + 1}{', every lap below the one before,' if falling else ''} and from there on vary as "
        f"such sets do, between {min(draws[first:]):.4f} and {max(draws[first:]):.4f}."
    )


def cifar(result: dict[str, Any]) -> str:
    laps = [row for row in result["rows"] if row["lap"]]
    with_fid = any("fid" in row for row in laps)
    rows = [
        [
            str(result["figures"].get("laps_before", 0) + row["lap"]),
            f"{row['gpu_minutes']:.1f}",
            f"{row['mse_deleted']:.3f}" if "mse_deleted" in row else "",
            *([f"{row['fid']:.1f}" if "fid" in row else ""] if with_fid else []),
            f"{row['loss']:.3f}",
            f"{row['chi2']:.2f}",
            f"{100 * row['rejected']:.3f} %",
            f"{100 * row['guards']:.2f} %",
        ]
        for row in laps
    ]
    header = [
        "lap",
        "minutes so far",
        "error on deleted pixels",
        *(["FID"] if with_fid else []),
        "loss",
        "χ²",
        "rejected",
        "guards",
    ]
    parts = [table(header, rows)]
    if "fid" in result["figures"]:
        f = result["figures"]
        lap = f.get("laps_before", 0) + f["laps"]
        parts.append(
            f"FID and KID of {f['samples']:,} prior samples after lap {lap}: {f['fid']:.1f} and {f['kid']:.4f}."
        )
    if "mse_deleted_next_lap" in result["figures"]:
        after = result["figures"]["mse_deleted_next_lap"]
        parts.append(f"The draws of one more lap, which were not trained on, have an error of {after:.3f}.")
    return "\n\n".join([*parts, source(result)])


def cifar_covariances(result: dict[str, Any]) -> str:
    """Three runs of the same minutes; the result is that of `mmps`."""
    rows = []
    for name in ("mmps", "sigma_t", "identity"):
        f = load(f"cifar10-{name}")["figures"]
        rows.append(
            [
                COVARIANCES[name],
                f"{f['gpu_minutes']:.1f}",
                f"{f['laps_before'] + f['laps']}",
                f"{f['mse_deleted_last_lap']:.3f}",
                f"{f['rejected_last_lap']:.2%}",
                f"{f['fid_draws']:.1f}",
                f"{f['fid']:.1f}",
            ]
        )
    header = [
        "covariance",
        "minutes",
        "laps in all",
        "error on deleted pixels",
        "rejected",
        "FID of the draws",
        f"FID of {result['figures']['samples']:,} prior samples",
    ]
    return "\n\n".join([table(header, rows), source(result)])


def forgetting(result: dict[str, Any]) -> str:
    parts = []
    leads = {
        "digits": "`digits`: mean squared error of the draws on the missing pixels, by share of the loss on measured values:",
        "manifold-quick": "`manifold-quick`: draws further than 0.1 from the curve, in %:",
    }
    for name, lead in leads.items():
        rows = [row for row in result["rows"] if row["recipe"] == name]
        laps = sorted({row["lap"] for row in rows})
        cells = {(row["measured"], row["lap"]): row["error"] for row in rows}
        shares = sorted({row["measured"] for row in rows})
        form = (lambda v: f"{100 * v:.0f}") if name == "manifold-quick" else (lambda v: f"{v:.2f}")
        lines = [
            [f"{share:g}" + (", EM" if share == 0 else ""), *(form(cells[share, lap]) for lap in laps)]
            for share in shares
        ]
        guards = [
            row["guards"] for share in shares for row in rows if row["measured"] == share and row["lap"] == laps[-1]
        ]
        stops = ", ".join(f"{100 * guard:.0f} %" for guard in guards)
        parts += [
            lead,
            table(["lap", *map(str, laps)], lines),
            f"Evaluations whose solver the guard stopped, in the last lap: {stops}.",
        ]
    return "\n\n".join([*parts, source(result)])


def overshoot(result: dict[str, Any]) -> str:
    samplers = {
        "pc": "predictor–corrector",
        "pc above 0.1": "predictor–corrector, corrected at noise levels above 0.1",
        "ddpm2": "`ddpm2`",
    }
    rows = [
        [
            f"{row['data']}, {row['steps']:,} steps of {samplers[row['sampler']]}",
            f"{row['measured']:g}",
            "all" if row["fresh"] == 1 else f"{row['fresh']:g}",
            *(f"{value:.3f}" for value in row["left"]),
        ]
        for row in result["rows"]
    ]
    header = ["measured", "`train.measured`", "`e_step.fresh`", *(f"lap {k + 1}" for k in range(len(rows[0]) - 3))]
    return "\n\n".join([table(header, rows), source(result)])


def corrections(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['steps']:,}",
            "all" if row["down_to"] == 0 else f"above {row['down_to']:g}",
            f"{row['off_curve_median']:.1e}",
            f"{row['off_curve']:.1e}",
            f"{row['strays']:.1%}",
        ]
        for row in result["rows"]
    ]
    header = ["steps", "corrected levels", "squared distance from the curve, median", "mean without strays", "strays"]
    return "\n\n".join([table(header, rows), source(result)])


def mri(result: dict[str, Any]) -> str:
    figures = result["figures"]
    rows = [
        [
            row["measurement"],
            f"{row['psnr_zero']:.2f}",
            f"{row['psnr_gaussian']:.2f}",
            f"{row['psnr_draw']:.2f}",
            f"**{row['psnr_mean']:.2f}**",
            " / ".join(f"{row[f'ssim_{name}']:.3f}" for name in ("zero", "gaussian", "draw", "mean")),
            f"{row['chi2']:.3f}",
            f"{100 * row['coverage90']:.1f} %",
        ]
        for row in result["rows"]
        if "accel" in row
    ]
    header = [
        "",
        "zero-filled",
        "Gaussian prior",
        "one draw",
        "mean of 8 draws",
        "SSIM, in that order",
        "χ²",
        "coverage",
    ]
    lead = (
        f"PSNR in dB on {result['rows'][0]['slices']} held-out slices; the prior was learned from the k-space of {figures['slices']} others in "
        f"{figures['gpu_minutes']:.1f} minutes. χ² of the draws per measured value; coverage of 90 % intervals over pixels:"
    )
    return "\n\n".join([lead, table(header, rows), source(result)])
