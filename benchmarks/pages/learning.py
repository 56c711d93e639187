"""Blocks for the results of EM: digits, the user's own data, faster convergence, MRI slices."""

from __future__ import annotations

from statistics import mean
from typing import Any

from .parts import COVARIANCES, kept, prose, source, table


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
            row.get("commit", result["commit"]),
        ]
        for row in result["rows"]
    ]
    header = [
        "seed",
        "draw, Gaussian start",
        "draw, learned prior",
        "mean, Gaussian start",
        "mean of 16 draws, learned prior",
        "draws of each lap",
        "time",
        "commit",
    ]
    lead = "Mean squared error on the missing pixels of the digits (scale −2 … 2):"
    return "\n\n".join([lead, table(header, rows), source(result), *kept(result)])


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
        "draws of each lap",
        "mean of 16 draws",
        "coverage of 90 % intervals",
        "χ², last lap",
        "rejected, last lap",
    ]
    count = len({row["seed"] for row in result["rows"]})
    text = prose(
        f"Mean squared error on the missing pixels of the digits, averaged over {count} seeds. Lap 1 draws from the "
        "Gaussian start:"
    )
    return "\n\n".join([text, table(header, lines), source(result)])


def own_data(result: dict[str, Any]) -> str:
    """The results of the recipes for the user's own data, lap by lap."""
    names = {
        "pixels": "FashionMNIST in [0, 1], 60 % of the pixels missing",
        "pixels-fine": "FashionMNIST in [−2, 2] with noise of the same size, 60 % of the pixels missing",
        "blurs": "MNIST, blurred",
        "table": "Breast cancer table, 30 % of the values missing",
    }
    parts = []
    header = ["lap", "RMSE, mean of 8 draws", "MAE, mean of 8 draws", "RMSE, one draw", "coverage of 90 % intervals"]
    for case, name in names.items():
        laps = [row for row in result["rows"] if row["case"] == case]
        if not laps:
            continue
        rows = [
            [
                str(row["lap"]) if row["lap"] else "Gaussian start",
                f"{row['rmse_mean']:.3f}",
                f"{row['mae_mean']:.3f}",
                f"{row['mse_draw'] ** 0.5:.3f}",
                f"{row['coverage90']:.1%}",
            ]
            for row in laps
        ]
        took = f"{laps[-1]['run_seconds']:.0f} s, of which {laps[0]['start_seconds']:.0f} s for the Gaussian start"
        parts += [f"{name}, recipe `{laps[0]['recipe']}`, {took}:", table(header, rows)]
        if "rmse_mean_32" in (last := laps[-1]):
            whole = (
                "" if case == "blurs" else f", {last['rmse_mean_all_32']:.3f} on all values (measured ones included)"
            )
            parts.append(
                prose(
                    f"The mean of 32 draws in the last lap: RMSE {last['rmse_mean_32']:.3f}{whole}; coverage "
                    f"{last['coverage90_32']:.1%}."
                )
            )
    return "\n\n".join([*parts, source(result), *kept(result)])


def esteps(result: dict[str, Any]) -> str:
    """Both methods of the E-step, on digits and on the curve."""
    digits = [row for row in result["rows"] if row["problem"] == "digits"]
    curve = [row for row in result["rows"] if row["problem"] == "curve"]
    parts = []
    if digits:
        header = [
            "digits",
            "MSE of a draw",
            "MSE of the mean of 16",
            "MSE of the draws of each lap",
            "E-steps",
            "M-steps",
        ]
        rows = [
            [
                row["method"],
                f"{row['mse_draw']:.3f}",
                f"{row['mse_mean16']:.3f}",
                " → ".join(f"{error:.2f}" for error in row["mse_per_lap"]),
                f"{row['e_seconds']:.0f} s",
                f"{row['m_seconds']:.0f} s",
            ]
            for row in digits
        ]
        parts.append(table(header, rows))
    if curve:
        header = ["curve in R⁵", "squared distance of the draws of each lap from the curve", "E-steps", "M-steps"]
        rows = [
            [
                row["method"],
                " → ".join(f"{distance:.2g}" for distance in row["off_curve_per_lap"]),
                f"{row['e_seconds']:.0f} s",
                f"{row['m_seconds']:.0f} s",
            ]
            for row in curve
        ]
        parts.append(table(header, rows))
    return "\n\n".join([*parts, source(result)])


def forgetting(result: dict[str, Any]) -> str:
    parts = []
    leads = {
        "digits": "`digits`: mean squared error of the draws on the missing pixels, for each weight `train.measured`:",
        "manifold-quick": "`manifold-quick`: draws further than 0.1 from the curve, in %, for each weight:",
    }
    for name, lead in leads.items():
        rows = [row for row in result["rows"] if row["recipe"] == name]
        laps = sorted({row["lap"] for row in rows})
        cells = {(row["measured"], row["lap"]): row["error"] for row in rows}
        shares = sorted({row["measured"] for row in rows})
        form = (lambda v: f"{100 * v:.0f}") if name == "manifold-quick" else (lambda v: f"{v:.2f}")
        lines = [
            [f"{share:g}" + (" (plain EM)" if share == 0 else ""), *(form(cells[share, lap]) for lap in laps)]
            for share in shares
        ]
        guards = [
            row["guards"] for share in shares for row in rows if row["measured"] == share and row["lap"] == laps[-1]
        ]
        stops = ", ".join(f"{100 * guard:.0f} %" for guard in guards)
        parts += [
            lead,
            table(["lap", *map(str, laps)], lines),
            f"Evaluations of the last lap that the curvature guard stopped, for each weight: {stops}.",
        ]
    return "\n\n".join([*parts, source(result)])


def blurs(result: dict[str, Any]) -> str:
    names = {
        "determined": "0.8, weighted by what y determines (diffem)",
        "gain": "0.8, weighted by the square of the gain",
        "none": "0 (plain EM)",
    }
    cells = {(row["weight"], row["lap"]): row for row in result["rows"]}
    laps = sorted({lap for _, lap in cells})
    rows = [
        [
            name,
            *(
                f"{row['draw']:.3f} / {row['mean8']:.3f}, {100 * row['coverage90']:.0f} %" if row else "–"
                for row in (cells.get((weight, lap)) for lap in laps)
            ),
        ]
        for weight, name in names.items()
        if (weight, 0) in cells
    ]
    header = ["`train.measured`", *("Gaussian start" if lap == 0 else f"lap {lap}" for lap in laps)]
    return "\n\n".join([table(header, rows), source(result)])


def overshoot(result: dict[str, Any]) -> str:
    samplers = {
        "pc": "predictor–corrector",
        "pc above 0.1": "predictor–corrector, corrections at noise levels above 0.1",
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
    header = [
        "measured values and sampler",
        "`train.measured`",
        "`e_step.fresh`",
        *(f"lap {k + 1}" for k in range(len(rows[0]) - 3)),
    ]
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
    header = [
        "steps",
        "noise levels with corrections",
        "squared distance from the curve, median",
        "mean without outliers",
        "outliers",
    ]
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
        "SSIM",
        "χ²",
        "coverage",
    ]
    lead = prose(
        f"PSNR in dB on {result['rows'][0]['slices']} held-out slices. The prior was learned from the k-space of "
        f"{figures['slices']} other slices in {figures['gpu_minutes']:.1f} minutes. SSIM is given in the order of the "
        "first four columns, χ² per measured value, and the coverage is that of 90 % intervals over pixels:"
    )
    return "\n\n".join([lead, table(header, rows), source(result)])
