"""Blocks for speed, memory, failures and the checks of a run."""

from __future__ import annotations

from typing import Any

from .parts import kept, prose, source, table

FAULTS = {
    "data": "data file moved or changed",
    "disk-full": "disk full",
    "flip": "one bit of a file flipped",
    "kill": "process killed",
    "kill-rank": "one of two processes killed",
    "memory-e": "out of memory in the E-step",
    "memory-m": "out of memory in the M-step",
    "rank-error": "error in one of two processes",
    "shown": "samples or draws for the report deleted",
    "stop": "stop signal at a random time",
    "stop-event": "stop signal at a random event",
    "stop-rank": "stop signal to one of two processes",
    "swap-lap": "file replaced by that of another lap",
    "swap-run": "file replaced by that of another run",
    "swap-seed": "file replaced by that of another seed",
    "truncate": "file truncated",
}


def speed(result: dict[str, Any]) -> str:
    f = result["figures"]
    vjps = f.get("vjps", 1)
    rows = [
        [
            f"E-step, 1 forward pass and {vjps} VJPs" if vjps != 1 else "E-step, 1 forward pass and 1 VJP",
            f"{f['bare_evals_per_s']:,.0f} evaluations/s",
            f"{f['estep_evals_per_s']:,.0f} evaluations/s",
            f"{100 * f['estep_ratio_to_bare']:.1f} %",
            f"{f['estep_peak_gib']:.1f} GiB",
        ],
        [
            "M-step, training step",
            f"{f['bare_images_per_s']:,.0f} images/s",
            f"{f['mstep_images_per_s']:,.0f} images/s",
            f"{100 * f['mstep_ratio_to_bare']:.1f} %",
            f"{f['mstep_peak_gib']:.1f} GiB",
        ],
    ]
    network = "The paper's CIFAR-10 network" if vjps else "The network of the recipe `cifar10-conditional`"
    lead = f"{network}, {f['parameters']:,} parameters, batch {f['batch']}, bf16:"
    return "\n\n".join([lead, table(["", "bare network", "diffem", "ratio", "peak memory"], rows), source(result)])


def optimizers(result: dict[str, Any]) -> str:
    """Held-out losses of trainings with different optimizers, at several points of each."""
    runs: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        runs.setdefault((row["optimizer"], row["lr"]), []).append(row)
    points = [f"{row['images'] / 1000:.0f} thousand examples" for row in next(iter(runs.values()))]
    rows = [
        [f"`{name}`", f"{rate:g}", *(f"{row['loss']:.4f}" for row in measured)]
        for (name, rate), measured in runs.items()
    ]
    return "\n\n".join([table(["optimizer", "learning rate", *points], rows), *kept(result), source(result)])


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
        header = ["method", "library", "forwards", "VJPs", "ms", "peak MiB", "time relative to diffem", "difference"]
        parts += [f"On the {device.upper()}, batch {rows[0]['batch']}:", table(header, cells)]
    gains = {
        "plain": "without the element-wise kernels that diffem compiles by default",
        "compiled": "with a compiled network",
        "compiled_bf16": "with a compiled network in bf16",
    }
    figures = result["figures"]
    if any(f"speedup_azula_k1_gpu_{name}" in figures for name in gains):
        by_k = {name: [figures[f"speedup_azula_k{k}_gpu_{name}"] for k in (1, 3)] for name in gains}
        times = [
            f"{label} {by_k[name][0]:.2f} (k = 1) and {by_k[name][1]:.2f} (k = 3)" for name, label in gains.items()
        ]
        parts.append(
            prose(f"Time of azula relative to diffem on the GPU, measured one after the other: {'; '.join(times)}.")
        )
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
            f"A run of {len(shares)} processes with one core each, from the Gaussian start to the last lap:",
            table(["process", "total", "waiting", "summing gradients", "writing", "overhead"], rows),
            prose(f"Additional memory of an E-step whose observations are on disk: {memory} observations."),
            source(result),
        ]
    )


def chaos(result: dict[str, Any]) -> str:
    f = result["figures"]
    kinds = list(dict.fromkeys(row["kind"] for row in result["rows"]))
    outcomes = ["identical", "refused", "lost", "silently wrong"]
    counts = {(row["kind"], row["outcome"]): row["count"] for row in result["rows"]}
    rows = [[FAULTS.get(kind, kind), *(str(counts.get((kind, outcome), 0)) for outcome in outcomes)] for kind in kinds]
    lead = prose(
        f"{f['faults']} faults at random times in {f['minutes']:.0f} minutes. Identical: all weights and draws are "
        "bit-identical to those of an undisturbed run. Refused: an error names the file, when the run resumes or when "
        "draws of a finished lap are read that the run no longer needs. "
        "Lost: the run cannot be resumed. Silently wrong: weights or draws differ without an error."
    )
    return "\n\n".join([lead, table(["fault", *outcomes], rows), source(result)])


def memory(result: dict[str, Any]) -> str:
    stages = {"load": "load", "start": "Gaussian start", "E": "E-step", "M": "M-step", "watch": "evaluation"}
    stages |= {"report": "report", "export": "export"}
    rows = [
        [
            f"{row['observations']:,}",
            f"{row['data_mib']:.0f}",
            f"{row['fit']:.0f}",
            *(f"{row[name]:.0f}" for name in stages),
        ]
        for row in result["rows"]
    ]
    lead = "Peak memory of each stage in MiB, including the libraries, for images of 32×32:"
    return "\n\n".join([lead, table(["observations", "data", "whole fit", *stages.values()], rows), source(result)])


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
    lead = prose(
        "One lap of a U-Net on images of 32×32. The last column is the largest difference from the draws of the "
        "reference run, relative to the largest value:"
    )
    names = {"calm": "reference", "real": "real out-of-memory errors", "simulated": "simulated out-of-memory errors"}
    rows = [[names.get(row[0], row[0]), *row[1:]] for row in rows]
    header = ["run", "requested batch", "batch of each retry", "batch used", "difference"]
    return "\n\n".join([lead, table(header, rows), source(result)])


def hostile(result: dict[str, Any]) -> str:
    figures = result["figures"]
    lead = prose(
        f"In a test with {figures['inputs']} malicious or malformed inputs, the commands that read them rejected "
        f"{figures['inputs'] - figures['not_refused']} and accepted {figures['not_refused']}. The slowest rejection "
        f"took {figures['worst_seconds']:.1f} s, and the largest used {figures['worst_mib']} MiB beyond the import of "
        f"torch. Of {figures['sound_inputs']} valid inputs for the same commands, {figures['sound_inputs_refused']} "
        "were rejected."
    )
    return "\n\n".join([lead, source(result)])


def watch(result: dict[str, Any]) -> str:
    names = {
        "noise_x2": "stated noise twice the true noise",
        "noise_half": "stated noise half the true noise",
        "shuffled": "operators in the wrong order",
        "shifted": "y shifted by one entry",
    }
    kinds = list(dict.fromkeys(row["data"] for row in result["rows"]))
    cells = {(row["fault"], row["data"]): row for row in result["rows"]}
    rows = [["correct model", *(f"{cells['right', kind]['flagged']:.0%}" for kind in kinds)]]
    for fault, name in names.items():
        both = [cells[fault, kind] for kind in kinds]
        rows.append([name, *(f"{row['flagged']:.0%} ({row['exact']:.0%})" for row in both)])
    lead = prose(
        f"Fraction of {result['figures']['repeats']} runs with a warning. In parentheses: the detection rate of the "
        "exact likelihood-ratio test, which is given the distribution of x and the mistake to look for. With the "
        "correct model, the run makes two laps, and any warning counts:"
    )
    return "\n\n".join([lead, table(["", *kinds], rows), source(result)])


def flicker(result: dict[str, Any]) -> str:
    rows = [
        [row["commit"], str(row["tests"]), f"{row['seconds'] / 60:.1f}", f"{row['load']:.1f}"]
        + [f"{row['cpu_share']:.0%}" if "cpu_share" in row else ""]
        + [", ".join(row[name]) or "0" for name in ("failures", "hangs")]
        for row in result["rows"]
    ]
    lead = prose(
        "Runs of the whole test suite on two cores that also do other work. The load is the mean number of runnable "
        "processes, the share is the part of the CPU time of both cores that the suite got:"
    )
    header = ["commit", "tests", "minutes", "load", "share of CPU time", "failures", "hangs"]
    return "\n\n".join([lead, table(header, rows), *kept(result), source(result)])
