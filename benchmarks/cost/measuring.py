"""Measure times in rotation, counts, memory, and the differences between results."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from ..peers import available, torchvision_imports
from .counting import Step, peak_mib
from .libraries import PEERS
from .problem import STEPS, Problem, relative, same_noise

OURS = {
    "mmps k=1": ("mmps", {"iterations": 1}),
    "mmps k=3": ("mmps", {"iterations": 3}),
    "mmps k=5": ("mmps", {"iterations": 5}),
    "dps": ("dps", {"reference_steps": STEPS}),
    "pigdm": ("pigdm", {"reference_steps": STEPS}),
    "tmpd": ("tmpd", {}),
    "diffpir": ("diffpir", {}),
    "sigma_t": ("sigma_t", {}),
    "identity": ("identity", {}),
}


def seconds(step: Step, device: torch.device) -> float:
    """Time of the device; on the CPU the time of the process, which excludes the work of other processes."""
    if device.type == "cpu":
        start = time.process_time()
        step()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def rounds(steps: dict[str, Step], count: int, device: torch.device) -> dict[str, list[float]]:
    """Time `count` rounds of one step each; the first step rotates from round to round."""
    names = list(steps)
    for name in names:
        steps[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(count):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(seconds(steps[name], device))
    return times


def answers(small: Problem, library: str, method: str) -> float | None:
    """Relative difference between a library's x_s and ours with the same noise; None if diffem lacks the method."""
    if method not in OURS:
        return None
    if (library, method) == ("azula", "dps"):
        small = small[:1]
    name, options = OURS[method]
    options = options | ({"guard": False} if name != "dps" else {})
    ours = small.ours(name, options, noise=lambda: same_noise(small.x_t))()
    steps = {"theirs": PEERS[library](small)[method], "prior": small.plain()}
    done = {}
    for key, step in steps.items():
        torch.manual_seed(0)
        done[key] = step()
    return relative(done["theirs"], ours, done["prior"])


def measure(
    device: torch.device, settings: dict[str, Any], batch: int, count: int
) -> tuple[dict[str, float], list[Any]]:
    problem = Problem.make(settings, batch, device, torch.float32)
    where = "gpu" if device.type == "cuda" else "cpu"
    steps = {("diffem", "prior alone"): problem.plain()}
    steps |= {("diffem", method): problem.ours(*OURS[method]) for method in OURS}
    for library, make in PEERS.items():
        try:
            if not available(library):
                raise ModuleNotFoundError(f"{library} is not installed")
            torchvision_imports()
            steps |= {(library, method): step for method, step in make(problem).items()}
        # not installed, or one of its dependencies is missing or was built for another version of torch
        except (ImportError, OSError, RuntimeError) as error:
            print(f"without {library}: {error}", flush=True)

    keyed = {f"{library}: {method}": step for (library, method), step in steps.items()}
    times = rounds(keyed, count, device)
    rows: list[dict[str, Any]] = []
    figures: dict[str, float] = {}
    few = min(batch, 4)
    doubles = Problem.make(settings, few, device, torch.float64)
    singles = Problem.make(settings, few, device, torch.float32)
    for library, method in steps:
        key = f"{library}: {method}"
        with problem.network.count() as counts:
            steps[library, method]()
        row: dict[str, Any] = {
            "device": where,
            "library": library,
            "method": method,
            "batch": batch,
            **vars(counts),
            "ms": 1e3 * statistics.median(times[key]),
            "peak_mib": peak_mib(steps[library, method], device),
        }
        ours = "diffem: " + method.removesuffix(", gmres")
        if library != "diffem":
            ratios = [theirs / own for theirs, own in zip(times[key], times[ours], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            row |= {"times_ours": middle, "times_ours_quartiles": [low, high]}
            row["difference"] = answers(doubles if library == "azula" else singles, library, method)
            row["difference_dtype"] = "float64" if library == "azula" else "float32"
            if method in ("mmps k=1", "mmps k=3"):
                short = f"{library}_k{method[-1]}_{where}"
                figures[f"speedup_{short}"], figures[f"difference_{short}"] = middle, row["difference"]
        rows.append(row)
        print(
            " ".join(f"{name}={v:.4g}" if isinstance(v, float) else f"{name}={v}" for name, v in row.items()),
            flush=True,
        )
    if device.type == "cuda":
        figures |= accelerated(problem, times, count, rows)
    return figures, rows


def accelerated(
    problem: Problem, times: dict[str, list[float]], count: int, rows: list[dict[str, Any]]
) -> dict[str, float]:
    """Compare azula with diffem without any compiled code, and with a compiled network in two precisions."""
    figures = {}
    for name, precision in (("plain", None), ("compiled", "float32"), ("compiled_bf16", "bf16")):
        if precision is not None:
            problem.prior.accelerate(len(problem.x_t), precision=precision)
        own = {f"k={k}": problem.ours("mmps", {"iterations": k}) for k in (1, 3)}
        # also prevents the compilation of the library's fused element-wise kernels
        torch.compiler.set_stance("force_eager" if precision is None else "default")
        try:
            mine = rounds(own, count, problem.x_t.device)
        finally:
            torch.compiler.set_stance("default")
        for k in (1, 3):
            ms = 1e3 * statistics.median(mine[f"k={k}"])
            rows.append({"device": "gpu", "library": "diffem", "method": f"mmps k={k}, {name}", "ms": ms})
            print(rows[-1], flush=True)
            if f"azula: mmps k={k}" in times:
                figures[f"speedup_azula_k{k}_gpu_{name}"] = 1e3 * statistics.median(times[f"azula: mmps k={k}"]) / ms
    return figures
