"""Fill the tables of README and docs from `benchmarks/results/`: `python -m benchmarks.pages` (`--check` only compares).

A page marks a place with `<!-- results: NAME -->` … `<!-- end -->`; what stands between is written here and nowhere else, so that
every number on a page comes from a result with its command, commit and machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .record import ROOT, load

BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def source(result: dict[str, Any]) -> str:
    return f"`{result['command']}`, commit {result['commit']}, {result['machine']}, {result['date']}."


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def samplers(result: dict[str, Any]) -> str:
    steps = sorted({row["steps"] for row in result["rows"]})
    names = list(dict.fromkeys(row["sampler"] for row in result["rows"]))
    cells = {(row["sampler"], row["steps"]): row for row in result["rows"]}

    def rows(key: str) -> list[list[str]]:
        return [[f"`{name}`", *(f"{100 * cells[name, k][key]:+.2f}" for k in steps)] for name in names]

    header = ["steps", *map(str, steps)]
    return "\n\n".join(
        [
            "Standard deviation of prior draws, error in %:",
            table(header, rows("prior_std")),
            "Mean of posterior draws, error in % of the posterior's standard deviation:",
            table(header, rows("posterior_mean")),
            "Standard deviation of posterior draws, error in %:",
            table(header, rows("posterior_std")),
            source(result),
        ]
    )


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


def speed(result: dict[str, Any]) -> str:
    f = result["figures"]
    rows = [
        [
            "E, forward + 1 VJP",
            f"{f['bare_evals_per_s']:,.0f} evaluations/s",
            f"{f['estep_evals_per_s']:,.0f} evaluations/s",
            f"{100 * f['estep_ratio_to_bare']:.1f} %",
            f"{f['estep_peak_gib']:.1f} GiB",
        ],
        [
            "M, training step",
            f"{f['bare_images_per_s']:,.0f} images/s",
            f"{f['mstep_images_per_s']:,.0f} images/s",
            f"{100 * f['mstep_ratio_to_bare']:.1f} %",
            f"{f['mstep_peak_gib']:.1f} GiB",
        ],
    ]
    lead = f"The paper's CIFAR-10 network, {f['parameters']:,} parameters, batch {f['batch']}, bf16:"
    return "\n\n".join([lead, table(["", "bare network", "diffem", "ratio", "peak memory"], rows), source(result)])


def fid_sanity(result: dict[str, Any]) -> str:
    rows = [
        [row["name"], f"{row['images']:,}", f"{row['reference']:,}", f"{row['fid']:.3f}", f"{1e5 * row['kid']:.1f}"]
        for row in result["rows"]
    ]
    return "\n\n".join([table(["", "images", "reference", "FID", "KID × 10⁵"], rows), source(result)])


def chaos(result: dict[str, Any]) -> str:
    f = result["figures"]
    kinds = list(dict.fromkeys(row["kind"] for row in result["rows"]))
    outcomes = ["identical", "refused", "lost", "silently wrong"]
    counts = {(row["kind"], row["outcome"]): row["count"] for row in result["rows"]}
    rows = [[kind, *(str(counts.get((kind, outcome), 0)) for outcome in outcomes)] for kind in kinds]
    lead = (
        f"{f['faults']} faults at random instants in {f['minutes']:.0f} minutes. Identical: every weight and draw has the bits of the "
        "undisturbed run. Refused: a file that was damaged is named and not read."
    )
    return "\n\n".join([lead, table(["fault", *outcomes], rows), source(result)])


def cost(result: dict[str, Any]) -> str:
    parts = []
    for device in dict.fromkeys(row["device"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["device"] == device and "forwards" in row]
        cells = [
            [
                row["method"],
                row["library"],
                str(row["forwards"]),
                str(row["vjps"]),
                f"{row['ms']:.1f}",
                f"{row['peak_mib']:.1f}",
                f"{row['times_ours']:.2f}" if "times_ours" in row else "",
                f"{row['difference']:.0e} ({row['difference_dtype']})" if row.get("difference") is not None else "",
            ]
            for row in sorted(rows, key=lambda row: row["method"])
        ]
        header = ["method", "library", "forwards", "VJPs", "ms", "peak MiB", "time, ours = 1", "difference"]
        parts += [f"On the {device.upper()}, batch {rows[0]['batch']}:", table(header, cells)]
    return "\n\n".join([*parts, source(result)])


def hostile(result: dict[str, Any]) -> str:
    figures = result["figures"]
    return (
        f"{figures['inputs']} such inputs, each given to the command that reads it: {figures['inputs'] - figures['not_refused']} refused, "
        f"{figures['not_refused']} not; the slowest took {figures['worst_seconds']:.1f} s, the largest {figures['worst_mib']} MiB beyond the "
        f"import of torch. {figures['sound_inputs']} sound inputs for the same commands, {figures['sound_inputs_refused']} refused.\n\n"
        + source(result)
    )


RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "digits": digits,
    "samplers": samplers,
    "mri-fast": mri,
    "mri-complex": mri,
    "speed": speed,
    "fid-sanity": fid_sanity,
    "chaos": chaos,
    "hostile": hostile,
    "cost": cost,
}


def filled(text: str) -> str:
    return BLOCK.sub(lambda m: f"{m[1]}{RENDER[m[2]](load(m[2]))}\n{m[3]}", text)


def main(check: bool) -> int:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        if (new := filled(text)) != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                Path(path).write_text(new)
    print(("stale: " if check else "written: ") + (", ".join(stale) or "none"))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
