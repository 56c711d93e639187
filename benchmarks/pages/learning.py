"""Blocks of what was learned: digits, photographs, slices."""

from __future__ import annotations

from statistics import mean
from typing import Any

from ..record import load
from .parts import COVARIANCES, kept, source, table


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


def _fid(figures: dict[str, float]) -> float:
    """Of the prior samples; named with how many they were."""
    return figures[f"fid_{figures['samples'] // 1000:.0f}k"]


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
    if "samples" in result["figures"]:
        f = result["figures"]
        lap = f.get("laps_before", 0) + f["laps"]
        parts.append(
            f"FID and KID of {f['samples']:,} prior samples after lap {lap}: {_fid(f):.1f} and {f['kid']:.4f}."
        )
    if "mse_deleted_next_lap" in result["figures"]:
        after = result["figures"]["mse_deleted_next_lap"]
        parts.append(f"The draws of one more lap, which were not trained on, have an error of {after:.3f}.")
    return "\n\n".join([*parts, source(result)])


def cifar_conditional(result: dict[str, Any]) -> str:
    """Some laps of a long run, and FID where it was measured."""
    laps = [row for row in result["rows"] if row["lap"]]
    shown = [row for row in laps if row["lap"] in (1, 2, 3) or row["lap"] % 4 == 0 or "fid" in row]
    rows = [
        [
            str(row["lap"]),
            f"{row['gpu_minutes']:.1f}",
            f"{row['mse_deleted']:.3f}",
            f"{row['fid_draws']:.2f}" if "fid_draws" in row else "",
            f"{row['fid']:.2f}" if "fid" in row else "",
            f"{100 * row['rejected']:.3f} %",
        ]
        for row in shown
    ]
    samples = f"FID of {result['figures']['samples']:,} prior samples"
    header = ["lap", "minutes so far", "error on deleted pixels", "FID of the draws", samples, "rejected"]
    return "\n\n".join([table(header, rows), source(result)])


def own_data(result: dict[str, Any]) -> str:
    """The recipes for one's own data, lap by lap."""
    names = {"pixels": "FashionMNIST, 60 % missing", "blurs": "MNIST, blurred", "table": "breast cancer, 30 % missing"}
    parts = []
    header = ["lap", "mean of 8 draws, RMSE", "mean absolute", "one draw, RMSE", "coverage of 90 % intervals"]
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
        took = f"{laps[-1]['run_seconds']:.0f} s, of which {laps[0]['start_seconds']:.0f} s for the start"
        parts += [f"{name}, `{laps[0]['recipe']}`, {took}:", table(header, rows)]
    return "\n\n".join([*parts, source(result), *kept(result)])


def esteps(result: dict[str, Any]) -> str:
    """Both E-steps on digits and on the curve."""
    digits = [row for row in result["rows"] if row["problem"] == "digits"]
    curve = [row for row in result["rows"] if row["problem"] == "curve"]
    parts = []
    if digits:
        header = ["digits", "error of a draw", "of the mean of 16", "draws, lap by lap", "E", "M"]
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
        header = ["curve in R⁵", "squared distance of draws from the curve, lap by lap", "E", "M"]
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
                f"{_fid(f):.1f}",
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


def blurs(result: dict[str, Any]) -> str:
    names = {
        "determined": "0.8, by what was determined",
        "gain": "0.8, by the square of the gain",
        "none": "0, EM",
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


LAWS = {"beta": "t ~ Beta(3, 3), σ log-linear in t", "lognormal": "log σ ~ N(−0.5, 1.2²)"}


def floor(result: dict[str, Any]) -> str:
    """Whole images: FID by images seen, then what averages and samplers make of it."""
    figures = result["figures"]
    full = [row for row in result["rows"] if row["samples"] == figures["samples"]]
    rows = [
        [
            LAWS.get(row["setting"], row["setting"]),
            f"{row['images'] / 1e6:.1f}",
            f"{row['training_seconds'] / 60:.1f}",
            f"{row['ema']:g}",
            f"`{row['sampler']}`",
            f"**{row['fid']:.2f}**",
            f"{row['kid']:.4f}",
        ]
        for row in full
    ]
    header = ["noise levels", "million images", "minutes of training", "EMA", "sampler", "FID", "KID"]
    few = [row for row in result["rows"] if row["samples"] != figures["samples"]]
    choices = [
        [
            LAWS.get(row["setting"], row["setting"]),
            f"{row['images'] / 1e6:.1f}",
            f"{row['ema']:g}",
            f"`{row['sampler']}`",
            f"{row['fid']:.2f}",
            f"{row['kid']:.4f} ± {row['kid_std']:.4f}",
        ]
        for row in few
    ]
    counts = ", ".join(f"{n:,}" for n in sorted({row["samples"] for row in few}))
    return "\n\n".join(
        [
            f"FID and KID of {figures['samples']:,} samples against the 50,000 training images:",
            table(header, rows),
            f"The same weights, averages and samplers compared with fewer samples ({counts}), which raises every FID:",
            table(["noise levels", "million images", "EMA", "sampler", "FID", "KID ± std of subsets"], choices),
            *kept(result),
            source(result),
        ]
    )
