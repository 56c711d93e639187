"""Blocks that compare samplers and posterior methods."""

from __future__ import annotations

from typing import Any

from diffem.samplers import DEFAULT_SAMPLER

from ..images import MAIN, NAMES, TASKS
from .parts import COVARIANCES, kept, prose, source, table


def samplers(result: dict[str, Any]) -> str:
    steps = sorted({row["steps"] for row in result["rows"]})
    names = list(dict.fromkeys(row["sampler"] for row in result["rows"]))
    cells = {(row["sampler"], row["steps"]): row for row in result["rows"]}

    def rows(key: str) -> list[list[str]]:
        return [[f"`{name}`", *(f"{100 * cells[name, k][key]:+.2f}" for k in steps)] for name in names]

    header = ["steps", *map(str, steps)]
    return "\n\n".join(
        [
            "Error of the standard deviation of prior samples, in %:",
            table(header, rows("prior_std")),
            "Error of the mean of posterior draws, in % of the posterior standard deviation:",
            table(header, rows("posterior_mean")),
            "Error of the standard deviation of posterior draws, in %:",
            table(header, rows("posterior_std")),
            source(result),
        ]
    )


def mixture(result: dict[str, Any]) -> str:
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
    *fewer, most = map(str, sorted({row["seeds"] for row in result["rows"]}))
    numbers = f"{', '.join(fewer)} or {most}" if fewer else most
    parts = [
        prose(
            f"Sliced W₁ distance between the draws of each method and exact draws, with `{DEFAULT_SAMPLER}` and "
            f"{row['steps']} steps: mean over {numbers} problems ± half a 95 % "
            "interval. `floor` is the distance between two sets of exact draws:"
        ),
        table(header, [*methods, *twisted]),
    ]
    if swept:
        parts += ["The same distance for other samplers:", table(header, sorted(others))]
    return "\n\n".join([*parts, source(result), *kept(result)])


def two_digits(value: float) -> str:
    """Two significant digits, or an integer from 100 on."""
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"


def figure2(result: dict[str, Any]) -> str:
    rows = result["rows"]
    sigmas = list(dict.fromkeys(row["sigma_t"] for row in rows))
    cells = {(row["covariance"], row["sigma_t"]): row for row in rows}
    names = dict.fromkeys(row["covariance"] for row in rows)

    def by_level(key: str, floor: bool = False) -> str:
        """One row per noise level; ten columns would not fit on a page."""
        header = ["σ_t", *(COVARIANCES[name] for name in names), *(["floor: two sets from p"] if floor else [])]
        keys = [(name, key) for name in names] + ([("exact", "floor")] if floor else [])
        return table(header, [[f"{s:g}", *(two_digits(cells[name, s][k]) for name, k in keys)] for s in sigmas])

    def times(name: str, key: str, sigma: float) -> str:
        """How many times closer the exact covariance is; empty if its median is negative by chance."""
        exact, other = cells["exact", sigma][key], cells[name, sigma][key]
        return two_digits(other / exact) if exact > 0 else ""

    measures = {"paper": "OT(u, v) − OT(u, u')", "divergence": "Sinkhorn divergence", "coupled": "coupled sets"}
    middle = [sigma for sigma in sigmas if 0.1 <= sigma <= 1]
    closer = [
        [f"{COVARIANCES[name]}, {text}", *(times(name, key, sigma) for sigma in middle)]
        for name in ("sigma_t", "sigma_x")
        for key, text in measures.items()
    ]
    return "\n\n".join(
        [
            f"Sinkhorn divergence of q(x_t | y) from p(x_t | y), medians over {rows[0]['curves']} curves:",
            by_level("divergence", floor=True),
            "OT(u, v) − OT(u, u'), the measure of the paper:",
            by_level("paper"),
            "Sinkhorn divergence between coupled sets of points:",
            by_level("coupled"),
            "Total variation distance between q(x_t | y) and p(x_t | y), from importance weights:",
            by_level("total_variation"),
            "Median of each approximation divided by the median of the exact covariance:",
            table(["σ_t", *(f"{sigma:g}" for sigma in middle)], closer),
            source(result),
        ]
    )


def images(result: dict[str, Any]) -> str:
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
        prose(
            f"LPIPS by problem and number of steps ({row['images']} images, {row['draws']} draws each, "
            f"`{row['sampler']}`, mean ± standard error):"
        ),
        table(
            ["", *(f"{task}, {count}" for task, count in columns)],
            [[name, *(figure(task, name, count, "lpips", 3) for task, count in columns)] for name in names],
        ),
    ]
    shown = {
        "lpips": ("LPIPS", 3),
        "lpips_64": ("LPIPS, 64×64", 3),
        "psnr": ("PSNR", 2),
        "psnr_mean": ("PSNR of the mean", 2),
        "ssim": ("SSIM", 3),
        "chi2": ("χ²", 2),
        "coverage90": ("coverage", 3),
        "crps": ("CRPS", 3),
    }
    failures = any(row["failed"] for row in rows)
    for task in tasks:
        lines = [
            [
                name,
                *(figure(task, name, main, key, digits) for key, (_, digits) in shown.items()),
                *([f"{100 * found['failed']:.1f} %"] if failures else []),
            ]
            for name in names
            if (found := cells.get((task, name, main))) is not None
        ]
        header = ["", *(label for label, _ in shown.values()), *(["failed"] if failures else [])]
        parts += [f"{task}, {main} steps:", table(header, lines)]
    if not failures:
        parts.append("No draw failed.")
    options = {
        row["method"]: ", ".join(f"{key} {value}" for key, value in row["options"].items() if key != "method")
        for row in rows
    }
    settings = [f"`{name}` with {options[name]}" for name in names if options[name]]
    levels = {row["task"]: f"{row['task']} {row['sigma_y']:g}" for row in rows}
    parts.append(
        prose(f"Settings: {'; '.join(settings)}; network in {row['precision']}. σ_y: {', '.join(levels.values())}.")
    )
    return "\n\n".join([*parts, source(result), *kept(result)])


def twisted(result: dict[str, Any]) -> str:
    plane = [row for row in result["rows"] if row["problem"] == "plane"]
    unequal = [row for row in result["rows"] if row["problem"] == "unequal"]
    first, second = plane[0], unequal[0]

    def setting(row: dict[str, Any]) -> list[str]:
        return [str(row[key]) for key in ("order", "steps", "particles")]

    steps = [
        [*setting(row), f"{row['w1']:.3f} ± {row['w1_se']:.3f}", f"{row['share']:+.3f} ± {row['share_se']:.3f}"]
        for row in sorted(plane, key=lambda row: (row["order"], row["steps"], row["particles"]))
    ]
    solvers = [
        [row["solver"], str(row["particles"]), f"{row['ratio']:.2f} ± {row['ratio_se']:.2f}", f"{row['effective']:.1f}"]
        for row in unequal
    ]
    return "\n\n".join(
        [
            prose(
                f'Three clusters in the plane and one measured value ({first["draws"]:,} draws, `solver="direct"`). W₁ '
                f"is the sliced distance to exact draws; between two exact sets it is {first['floor']:.3f}. The last "
                "column is the fraction of draws in the upper cluster minus the exact fraction. ± is a standard error:"
            ),
            table(["order", "steps", "particles", "W₁", "error of the fraction in the upper cluster"], steps),
            prose(
                f"Six clusters in R⁸ and six measured values whose noise differs by a factor of 100 "
                f"({second['problems']} problems, {second['steps']} steps). The W₁ distance is relative to that "
                "between two exact sets:"
            ),
            table(["solver", "particles", "W₁ / floor", "effective particles"], solvers),
            source(result),
        ]
    )
