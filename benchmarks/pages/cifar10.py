"""Blocks for CIFAR-10: EM with both methods of the E-step, fixed covariances, and training on complete images."""

from __future__ import annotations

from typing import Any

from ..record import load
from .parts import COVARIANCES, kept, source, table

# FID of prior samples and of draws with three pixels in four deleted, and the computing time, as published
PUBLISHED = {
    "DiEM ([Rozet et al. 2024](https://arxiv.org/abs/2405.13712))": (13.18, 6.49, "512 A100-hours"),
    "DiffEM (conditional network)": (10.24, 4.68, "about 23 GPU-hours"),
}
LAWS = {"beta": "t ~ Beta(3, 3), σ log-linear in t", "lognormal": "log σ ~ N(−0.5, 1.2²)"}


def _fid(figures: dict[str, float]) -> float:
    """The FID of the prior samples; its key contains their number."""
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
        "total minutes",
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
        parts.append(f"The draws of one more lap, which were not used for training, have an error of {after:.3f}.")
    return "\n\n".join([*parts, source(result)])


def cifar_conditional(result: dict[str, Any]) -> str:
    """Some laps of a long run, with FID for the laps at which it was measured."""
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
    header = ["lap", "total minutes", "error on deleted pixels", "FID of the draws", samples, "rejected"]
    return "\n\n".join([table(header, rows), source(result)])


def table1(result: dict[str, Any]) -> str:
    """Some laps of a run for the paper's Table 1, with the training examples so far."""
    laps = [row for row in result["rows"] if row["lap"]]
    shown = [row for row in laps if row["lap"] in (1, 2, 3) or row["lap"] % 4 == 0 or {"fid", "fid_draws"} & {*row}]
    last = laps[-1]["lap"] if result["figures"].get("final") else None
    rows = [
        [
            "final" if row["lap"] == last else str(result["figures"]["laps_before"] + row["lap"]),
            f"{row['gpu_minutes']:.1f}",
            f"{row['images'] / 1e6:.1f}",
            f"{row['mse_deleted']:.3f}" if "mse_deleted" in row else "",
            f"{row['fid_draws']:.2f}" if "fid_draws" in row else "",
            f"{row['fid']:.2f}" if "fid" in row else "",
        ]
        for row in shown
    ]
    samples = f"FID of {result['figures']['samples']:,} prior samples"
    header = ["lap", "total minutes", "million examples", "error on deleted pixels", "FID of the draws", samples]
    return "\n\n".join([_beside_published(result["figures"]), table(header, rows), *kept(result), source(result)])


def _beside_published(figures: dict[str, float]) -> str:
    """The result of a run beside published ones."""
    final = figures.get("final", 0)
    name = f"diffem, {figures['laps'] - final} laps{' and the final prior' if final else ''}"
    ours = (_fid(figures), figures["fid_draws"], f"{figures['gpu_minutes'] / 60:.1f} H200-hours")
    rows = [
        [method, f"{fid:.2f}", f"{fid_draws:.2f}", time]
        for method, (fid, fid_draws, time) in {**PUBLISHED, name: ours}.items()
    ]
    return table(["method", "FID of prior samples", "FID of the draws", "computing time"], rows)


def cifar_covariances(result: dict[str, Any]) -> str:
    """Three runs of equal time; `result` is that of `mmps`."""
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
        "laps",
        "error on deleted pixels",
        "rejected",
        "FID of the draws",
        f"FID of {result['figures']['samples']:,} prior samples",
    ]
    return "\n\n".join([table(header, rows), source(result)])


def floor(result: dict[str, Any]) -> str:
    """Training on complete images: FID by number of images, then by moving average and sampler."""
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
            f"Comparison of averages and samplers with fewer samples ({counts}), which increases every FID:",
            table(["noise levels", "million images", "EMA", "sampler", "FID", "KID ± std over subsets"], choices),
            *kept(result),
            source(result),
        ]
    )


def guidance(result: dict[str, Any]) -> str:
    """Samples guided by a weaker prior, for several weights."""
    with_fid = any("fid" in row for row in result["rows"])
    rows = [
        [
            "1 (not guided)" if row["weight"] == 1 else f"{row['weight']:g}",
            *([f"{row['fid']:.2f}"] if with_fid else []),
            f"{row['kid']:.4f} ± {row['kid_std']:.4f}",
        ]
        for row in result["rows"]
    ]
    f = result["figures"]
    return "\n\n".join(
        [
            f"{f['samples']:,} samples for each weight, from the same random numbers, against {f['real']:,} training "
            "images; ± is the standard deviation over subsets:",
            table(["weight", *(["FID"] if with_fid else []), "KID"], rows),
            source(result),
        ]
    )
