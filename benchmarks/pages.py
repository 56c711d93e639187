"""Fill the tables of README and docs from `benchmarks/results/`: `python -m benchmarks.pages` (`--check` only compares).

A page marks a place with `<!-- results: NAME -->` … `<!-- end -->`; what stands between is written here and nowhere else, so that
every number on a page comes from a result with its command, commit and machine.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .record import ROOT, load

BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def source(result: dict[str, Any]) -> str:
    return f"`{result['command']}`, commit {result['commit']}, {result['machine']}, {result['date']}."


def kept(result: dict[str, Any]) -> list[str]:
    """Where rows came from that were measured by another command."""
    commands = {
        row["command"]: row for row in result["rows"] if "command" in row and row["command"] != result["command"]
    }
    return [f"Rows of another run: {source(row)}" for row in commands.values()]


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


def manifold(result: dict[str, Any]) -> str:
    f, laps = result["figures"], [row for row in result["rows"] if "sinkhorn_prior" in row]
    columns = {"sinkhorn_draws": "{:.4f}", "sinkhorn_prior": "{:.4f}", "off_curve": "{:.4f}", "strays": "{:.3%}"}
    rows = [
        [str(row["lap"]), *(c.format(row[key]) if key in row else "" for key, c in columns.items())] for row in laps
    ]
    guards = [row["guards"] for row in result["rows"] if "guards" in row]
    draws = [row["sinkhorn_draws"] for row in result["rows"] if "sinkhorn_draws" in row]
    text = (
        f"Sinkhorn divergence from the truth (squared distance, regularisation 10⁻³, 16,384 points), {f['laps']} laps in "
        f"{f['compute_minutes']:.1f} minutes of E and M; and of all 65,536 draws the mean squared distance from the curve and how many are "
        "further than 0.5 from it:"
    )
    first = next(k for k, value in enumerate(draws) if value <= f["highest_floor"])
    floors = (
        f"Two sets of the truth itself are {f['floor']:.4f} to {f['highest_floor']:.4f} apart; the true points behind the observations "
        f"would give {f['perfect_draws']:.4f}. The draws are within that from lap {first + 1} on, and from there vary as such sets do, "
        f"between {min(draws[first:]):.4f} and {max(draws[first:]):.4f}; up to there {'every lap is below the one before' if decreasing(draws[: first + 1]) else 'not every lap is below the one before'}. "
        f"The worst rise of a lap over the best one before it is {f['worst_rise']:.0%} in the divergence and "
        f"{f['worst_rise_off_curve']:.0%} in the distance from the curve, which has no floor. "
        f"Where the learned Jacobian is no covariance the solver stops early: in "
        f"{guards[1]:.0%} of the evaluations of lap 2, in {guards[-1]:.0%} of the last lap's."
    )
    header = ["lap", "draws, pooled", "prior samples", "distance from the curve, squared", "strays"]
    return "\n\n".join([text, table(header, rows), floors, source(result)])


def decreasing(values: list[float]) -> bool:
    return all(b < a for a, b in itertools.pairwise(values))


def cifar(result: dict[str, Any]) -> str:
    laps = [row for row in result["rows"] if row["lap"]]
    with_fid = any("fid" in row for row in laps)
    rows = [
        [
            str(row["lap"]),
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
    if "fid_50k" in result["figures"]:
        f = result["figures"]
        parts.append(
            f"FID and KID of {f['samples']:,} prior samples after lap {f['laps']}: {f['fid_50k']:.1f} and {f['kid']:.4f}."
        )
    if "mse_deleted_next_lap" in result["figures"]:
        after = result["figures"]["mse_deleted_next_lap"]
        parts.append(f"The draws of one more lap, which were not trained on, have an error of {after:.3f}.")
    return "\n\n".join([*parts, source(result)])


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


def memory(result: dict[str, Any]) -> str:
    rows = [
        [row["run"], f"{row['asked']:,}", " → ".join(f"{n:,}" for n in row["tried_again"]), f"{row['e_batch']:,}", f"{row['largest_difference'] / row['size']:.0e}"]
        for row in result["rows"]
    ]  # fmt: skip
    lead = "One lap of a U-Net over 49,152 images of 32×32; draws are compared with those of the calm run, relative to the largest value:"
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


def mixture(result: dict[str, Any]) -> str:
    from diffem.samplers import DEFAULT_SAMPLER

    settings = list(dict.fromkeys((row["d"], row["m"]) for row in result["rows"]))
    found = {(row["method"], row["sampler"], row["d"], row["m"]): row for row in result["rows"]}
    entries = list(dict.fromkeys((row["method"], row["sampler"]) for row in result["rows"]))

    def line(label: str, method: str, sampler: str) -> list[str]:
        rows = [found.get((method, sampler, d, m)) for d, m in settings]
        # a third digit where the distance is small
        width = [0 if row is None else 2 + (row["w1"] < 0.1) for row in rows]
        cells = [
            "" if row is None else f"{row['w1']:.{k}f} ± {row['interval']:.{k}f}"
            for row, k in zip(rows, width, strict=True)
        ]
        return [label, *cells]

    header = ["d, m", *(f"{d}, {m}" for d, m in settings)]
    methods = [line(method, method, sampler) for method, sampler in entries if sampler in ("", DEFAULT_SAMPLER)]
    twisted = [line(f"**tds**, {method} as twist", method, sampler) for method, sampler in entries if sampler == "tds"]
    swept = {method for method, sampler in entries if sampler not in ("", DEFAULT_SAMPLER, "tds")}
    others = [line(f"{method}, `{sampler}`", method, sampler) for method, sampler in entries if method in swept]
    row = result["rows"][0]
    counts = sorted({row["seeds"] for row in result["rows"]})
    seeds = f"{' or '.join(map(str, counts))} problems, {row['steps']} steps, mean ± half a 95 % interval"
    parts = [
        f"Sliced W₁ to exact draws, all methods with `{DEFAULT_SAMPLER}` ({seeds}; `floor`: two exact sets):",
        table(header, [*methods, *twisted]),
    ]
    if swept:
        parts += ["The same, by sampler:", table(header, sorted(others))]
    return "\n\n".join([*parts, source(result), *kept(result)])


def figure2(result: dict[str, Any]) -> str:
    names = {"0": "0", "sigma_t": "Σ_t", "sigma_x": "(Σ_x⁻¹ + Σ_t⁻¹)⁻¹", "exact": "V[x given x_t]"}
    rows = result["rows"]
    sigmas = list(dict.fromkeys(row["sigma_t"] for row in rows))
    cells = {(row["covariance"], row["sigma_t"]): row for row in rows}

    def lines(key: str) -> list[list[str]]:
        return [[label, *(f"{cells[name, sigma][key]:.2g}" for sigma in sigmas)] for name, label in names.items()]

    header = ["σ_t", *(f"{sigma:g}" for sigma in sigmas)]
    floor = ["floor: two sets of the truth", *(f"{cells['exact', sigma]['floor']:.2g}" for sigma in sigmas)]
    return "\n\n".join(
        [
            f"Sinkhorn divergence of q(x_t | y) from p(x_t | y), coupled sets, medians over {rows[0]['curves']} curves:",
            table(header, lines("coupled")),
            "Independent sets:",
            table(header, [*lines("divergence"), floor]),
            "The paper's OT(u, v) − OT(u, u'):",
            table(header, lines("paper")),
            "Total variation between the two, from the importance weights:",
            table(header, lines("total_variation")),
            source(result),
        ]
    )


def images(result: dict[str, Any]) -> str:
    from .images import MAIN, NAMES, TASKS

    rows = result["rows"]
    steps = sorted({row["steps"] for row in rows})
    tasks = [task for task in TASKS if any(row["task"] == task for row in rows)]
    names = [name for name in NAMES if any(row["method"] == name for row in rows)]
    cells = {(row["task"], row["method"], row["steps"]): row for row in rows}
    main = MAIN if MAIN in steps else steps[-1]
    row = next(row for row in rows if row["steps"] == main)

    def figure(task: str, name: str, count: int, key: str, digits: int) -> str:
        found = cells.get((task, name, count))
        return "" if found is None else f"{found[key]:.{digits}f} ± {found[f'{key}_se']:.{digits}f}"

    columns = [(task, count) for task in tasks for count in steps]
    parts = [
        f"LPIPS by problem and number of steps ({row['images']} images, {row['draws']} draws each, `{row['sampler']}`, mean ± standard error):",
        table(
            ["", *(f"{task}, {count}" for task, count in columns)],
            [[name, *(figure(task, name, count, "lpips", 3) for task, count in columns)] for name in names],
        ),
    ]
    header = [
        "",
        "LPIPS",
        "LPIPS, 64×64",
        "PSNR",
        "PSNR of the mean",
        "SSIM",
        "χ²",
        "coverage",
        "CRPS",
        "failed",
        "VJPs",
        "s",
    ]
    shown = [
        ("lpips", 3),
        ("lpips_64", 3),
        ("psnr", 2),
        ("psnr_mean", 2),
        ("ssim", 3),
        ("chi2", 2),
        ("coverage90", 3),
        ("crps", 3),
    ]
    for task in tasks:
        lines = [
            [
                name,
                *(figure(task, name, main, key, digits) for key, digits in shown),
                f"{100 * found['failed']:.1f} %",
                f"{found['vjps']:.0f}",
                f"{found['seconds']:.1f}",
            ]
            for name in names
            if (found := cells.get((task, name, main))) is not None
        ]
        parts += [f"{task}, {main} steps:", table(header, lines)]
    settings = {row["method"]: ", ".join(f"{key} {value}" for key, value in row["options"].items()) for row in rows}
    levels = {row["task"]: f"{row['task']} {row['sigma_y']:g}" for row in rows}
    parts.append(
        f"Settings: {'; '.join(settings[name] for name in names)}; network in {row['precision']}. σ_y: {', '.join(levels.values())}."
    )
    return "\n\n".join([*parts, source(result), *kept(result)])


RENDER: dict[str, Callable[[dict[str, Any]], str]] = {
    "digits": digits,
    "samplers": samplers,
    "manifold": manifold,
    "forgetting": forgetting,
    "cifar10-fast": cifar,
    "mri-fast": mri,
    "mri-complex": mri,
    "speed": speed,
    "fid-sanity": fid_sanity,
    "chaos": chaos,
    "memory": memory,
    "scaling": scaling,
    "hostile": hostile,
    "cost": cost,
    "mixture": mixture,
    "figure2": figure2,
    "images": images,
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
