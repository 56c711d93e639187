"""Blocks of speed, memory and what can go wrong."""

from __future__ import annotations

from typing import Any

from .parts import kept, source, table


def speed(result: dict[str, Any]) -> str:
    f = result["figures"]
    vjps = f.get("vjps", 1)
    rows = [
        [
            f"E, one forward pass and {vjps} VJPs" if vjps != 1 else "E, forward + 1 VJP",
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
    network = "The paper's CIFAR-10 network" if vjps else "The network of the recipe cifar10-conditional"
    lead = f"{network}, {f['parameters']:,} parameters, batch {f['batch']}, bf16:"
    return "\n\n".join([lead, table(["", "bare network", "diffem", "ratio", "peak memory"], rows), source(result)])


def fid_sanity(result: dict[str, Any]) -> str:
    rows = [
        [row["name"], f"{row['images']:,}", f"{row['reference']:,}", f"{row['fid']:.3f}", f"{1e5 * row['kid']:.1f}"]
        for row in result["rows"]
    ]
    return "\n\n".join([table(["", "images", "reference", "FID", "KID × 10⁵"], rows), source(result)])


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
    gains = {
        "plain": "without the few element-wise kernels that are compiled by default",
        "compiled": "with a compiled network",
        "compiled_bf16": "with a compiled network in bf16",
    }
    figures = result["figures"]
    if any(f"speedup_azula_k1_gpu_{name}" in figures for name in gains):
        times = [
            f"{label} {figures[f'speedup_azula_k1_gpu_{name}']:.2f} (k = 1) and {figures[f'speedup_azula_k3_gpu_{name}']:.2f} (k = 3)"
            for name, label in gains.items()
        ]
        parts.append(f"azula's time over ours on the GPU, measured one after the other: {'; '.join(times)}.")
    return "\n\n".join([*parts, source(result), *kept(result)])


def scaling(result: dict[str, Any]) -> str:
    shares = [row for row in result["rows"] if "process" in row]
    held = [row for row in result["rows"] if "observations" in row]
    rows = [
        [
            str(row["process"]),
            f"{row['seconds']:.0f} s",
            *(f"{row.get(name, 0.0):.1f} s" for name in ("waiting", "summing", "writing")),
            f"{100 * row['outside']:.1f} %",
        ]
        for row in shares
    ]
    memory = ", ".join(f"{row['mib']:.0f} MiB for {row['observations']:,}" for row in held)
    return "\n\n".join(
        [
            f"A run of {len(shares)} processes, one core each, from the start's fit to the last lap:",
            table(["process", "run", "waiting", "summing gradients", "writing", "beside computing"], rows),
            f"Memory of an E-step whose observations lie on disk, beyond what the process held before: {memory} observations.",
            source(result),
        ]
    )


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


def memory(result: dict[str, Any]) -> str:
    stages = ["load", "start", "E", "M", "watch", "report", "export"]
    rows = [
        [
            f"{row['observations']:,}",
            f"{row['data_mib']:.0f}",
            f"{row['fit']:.0f}",
            *(f"{row[name]:.0f}" for name in stages),
        ]
        for row in result["rows"]
    ]
    lead = "Peak memory of each stage in MiB, of which the libraries take about 290; images of 32×32:"
    return "\n\n".join([lead, table(["observations", "data", "whole fit", *stages], rows), source(result)])


def oom(result: dict[str, Any]) -> str:
    rows = [
        [
            row["run"],
            f"{row['asked']:,}",
            " → ".join(f"{n:,}" for n in row["tried_again"]),
            f"{row['e_batch']:,}",
            f"{row['largest_difference'] / row['size']:.0e}",
        ]
        for row in result["rows"]
    ]
    lead = "One lap of a U-Net over images of 32×32; draws are compared with those of the calm run, relative to the largest value:"
    header = ["run", "batch asked for", "ran out of memory with", "draws made at a time", "difference"]
    return "\n\n".join([lead, table(header, rows), source(result)])


def hostile(result: dict[str, Any]) -> str:
    figures = result["figures"]
    return (
        f"{figures['inputs']} such inputs, each given to the command that reads it: {figures['inputs'] - figures['not_refused']} refused, "
        f"{figures['not_refused']} not; the slowest took {figures['worst_seconds']:.1f} s, the largest {figures['worst_mib']} MiB beyond the "
        f"import of torch. {figures['sound_inputs']} sound inputs for the same commands, {figures['sound_inputs_refused']} refused.\n\n"
        + source(result)
    )


def watch(result: dict[str, Any]) -> str:
    names = {
        "noise_x2": "noise stated twice as large",
        "noise_half": "noise stated half as large",
        "shuffled": "operators in another order",
        "shifted": "y shifted by one entry",
    }
    kinds = list(dict.fromkeys(row["data"] for row in result["rows"]))
    cells = {(row["fault"], row["data"]): row for row in result["rows"]}
    rows = [["the right model", *(f"{cells['right', kind]['flagged']:.0%}" for kind in kinds)]]
    for fault, name in names.items():
        both = [cells[fault, kind] for kind in kinds]
        rows.append([name, *(f"{row['flagged']:.0%} ({row['exact']:.0%})" for row in both)])
    lead = (
        f"Runs flagged, of {result['figures']['repeats']} each; in parentheses what the test of the exact likelihood ratio reaches, "
        "which knows the law of x and which mistake to look for. The right model is taken through two laps, and any warning counts."
    )
    return "\n\n".join([lead, table(["", *kinds], rows), source(result)])


def flicker(result: dict[str, Any]) -> str:
    rows = [
        [row["commit"], str(row["tests"]), f"{row['seconds'] / 60:.1f}", f"{row['load']:.1f}"]
        + [", ".join(row[name]) or "0" for name in ("failures", "hangs")]
        for row in result["rows"]
    ]
    lead = "Whole runs of the suite on two cores, with other work beside it; the load is the mean number of runnable processes:"
    return "\n\n".join([lead, table(["commit", "tests", "minutes", "load", "failures", "hangs"], rows), source(result)])
