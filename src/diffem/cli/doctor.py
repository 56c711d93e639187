"""The command `doctor`: resources of this machine, missing packages, and the recipes that run on it.

The time of a recipe is a rough estimate from its arithmetic. The floating-point operations of one forward pass are
counted on tensors without memory and multiplied by the number of forward passes of all laps; a vector–Jacobian product
counts as one forward pass, a training step as three. The result is divided by half the measured rate of matrix
products, which is what networks typically reach.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from ..core.compile import fast_products
from ..core.counting import count_of
from ..core.version import __version__
from ..nn.networks import make_network
from ..runs.recipe import Recipe, load_recipe, names
from ..runs.sources import expected_size
from ..samplers import get_sampler, schedule

GIB = 1 << 30
SHARE_OF_PEAK = 0.5  # rate of networks as a fraction of the rate of large matrix products
PATIENCE = 3 * 24 * 3600.0  # seconds; a recipe that takes longer does not fit the machine


@dataclass
class Device:
    """A processor or GPU.

    Attributes:
        name: Name of the device.
        kind: `cpu`, `cuda` or `mps`.
        free_gib: Free memory in GiB.
        total_gib: Memory in GiB.
        precisions: Supported precisions.
        flops: Measured rate of matrix products in operations per second, by precision.
    """

    name: str
    kind: str
    free_gib: float
    total_gib: float
    precisions: list[str]
    flops: dict[str, float] = field(default_factory=dict)


@dataclass
class Fit:
    """Whether a recipe runs on a device.

    Attributes:
        recipe: Name of the recipe.
        about: Description of the recipe.
        parameters: Number of parameters of its network.
        memory_gib: Estimated memory of weights, optimizer and the activations of a training batch.
        seconds: Estimated time; None if the number of observations is not known.
        fits: Whether memory and time are sufficient.
        why: The reason, in words.
    """

    recipe: str
    about: str
    parameters: int
    memory_gib: float
    seconds: float | None
    fits: bool
    why: str


@dataclass
class Diagnosis:
    """The result of `diagnose`.

    Attributes:
        versions: Versions of packages and of the system, by name.
        devices: The processor and all GPUs.
        disk_free_gib: Free disk space in GiB.
        compiler: Whether torch.compile can generate GPU code.
        extras: The missing packages of each extra.
        recipes: The built-in recipes on the best device.
    """

    versions: dict[str, str]
    devices: list[Device]
    disk_free_gib: float
    compiler: bool
    extras: dict[str, list[str]]
    recipes: list[Fit]


def diagnose() -> Diagnosis:
    """Examine the machine, and the disk of the current directory."""
    found = devices()
    best = found[-1]
    return Diagnosis(
        versions={
            "diffem": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": metadata.version("numpy"),
            "system": f"{platform.system()} {platform.machine()}",
        },
        devices=found,
        disk_free_gib=shutil.disk_usage(Path()).free / GIB,
        compiler=torch.cuda.is_available() and find_spec("triton") is not None and shutil.which("cc") is not None,
        extras=missing_extras(),
        recipes=[estimate_fit(load_recipe(name), best) for name in names()],
    )


def devices() -> list[Device]:
    """The processor, then every GPU; a run uses the last one."""
    import psutil

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    found = [
        Device(
            f"{count_of(cores, 'core')}, {count_of(torch.get_num_threads(), 'thread')} in use",
            "cpu",
            memory.available / GIB,
            memory.total / GIB,
            ["float32"],
        )
    ]
    if torch.cuda.is_available():
        for k in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(k)
            modern = torch.cuda.get_device_capability(k) >= (8, 0)
            precisions = ["float32", *(["tf32", "bf16"] if modern else []), "fp16"]
            found.append(Device(torch.cuda.get_device_name(k), "cuda", free / GIB, total / GIB, precisions))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for precision in found[-1].precisions if device.type == "cuda" else ["float32"]:
        found[-1].flops[precision] = matrix_rate(device, precision)
    return found


def matrix_rate(device: torch.device, precision: str = "float32", seconds: float = 0.1) -> float:
    """Floating-point operations per second of large matrix products."""
    n = 4096 if device.type == "cuda" else 768
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    a = torch.ones(n, n, dtype=dtype, device=device)

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    with fast_products(precision == "tf32"):
        (a @ a).sum().item()
        count, elapsed, began = 0, 0.0, time.perf_counter()
        while elapsed < seconds:
            a @ a
            count += 1
            finish()
            elapsed = time.perf_counter() - began
    return 2 * n**3 * count / elapsed


def missing_extras() -> dict[str, list[str]]:
    """The missing packages of each extra; empty if diffem is not installed as a package."""
    try:
        requirements = metadata.requires("diffem") or []
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
        if extra is None:
            continue
        package = re.match(r"[\w.-]+", requirement)
        missing = extras.setdefault(extra[1], [])
        if package is not None and not _installed(package[0]):
            missing.append(package[0])
    return extras


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def network_cost(recipe: Recipe, shape: tuple[int, ...]) -> tuple[int, float, float]:
    """Number of parameters, operations of a forward pass per sample, and bytes of activations per sample in training.

    No memory is allocated.
    """
    return _network_cost(recipe.network.kind, shape, json.dumps(recipe.network.options("kind")))


@lru_cache
def _network_cost(kind: str, shape: tuple[int, ...], options: str) -> tuple[int, float, float]:
    from torch.utils.flop_counter import FlopCounterMode

    held: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage()._cdata] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.device("meta"):
        network = make_network(kind, shape, json.loads(options))
        x, log_sigma = torch.zeros(1, *shape), torch.zeros(1)
        weights = {p.untyped_storage()._cdata for p in network.parameters()}
        counter = FlopCounterMode(display=False)
        with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = network(x, log_sigma)
    del output
    activations = sum(size for storage, size in held.items() if storage not in weights)
    return sum(p.numel() for p in network.parameters()), float(counter.get_total_flops()), float(activations)


def estimate_fit(recipe: Recipe, device: Device) -> Fit:
    """Estimate whether a recipe runs on a device, and how long it takes."""
    expected = expected_size(recipe.data.source, recipe.data.options("source"))
    if expected is None:
        return Fit(recipe.name, recipe.about, 0, 0.0, None, True, "depends on the data")
    shape, n = expected
    parameters, _, activations = network_cost(recipe, shape)
    half = recipe.precision == "bf16" and "bf16" in device.precisions
    # weights, gradients, two moments and the average, in float32; activations of one training batch
    memory = (5 * 4 * parameters + activations * recipe.train.batch / (2 if half else 1)) / GIB
    rate = device.flops.get(recipe.precision) or device.flops.get("float32", 0.0)
    seconds = None
    if n is not None and rate > 0:
        seconds = _operations(recipe, shape, n) / (SHARE_OF_PEAK * rate)
    small, quick = memory <= device.total_gib, seconds is None or seconds <= PATIENCE
    why = f"{duration(seconds)} here" if seconds is not None else "fits"
    # not "about less than a minute"
    why = why if seconds is None or seconds < 57 else f"about {why}"
    if not quick and device.kind == "cpu":
        why += "; needs a GPU"
    elif not small:
        why = f"needs about {memory:.0f} GiB, the device has {device.total_gib:.0f}; lower train.batch"
    return Fit(recipe.name, recipe.about, parameters, memory, seconds, small and quick, why)


def _operations(recipe: Recipe, shape: tuple[int, ...], n: int) -> float:
    """Floating-point operations of all laps on n observations; shape: the shape of a sample."""
    total, before = 0.0, recipe
    for k in range(1, recipe.last_lap + 1):
        lap = recipe.at(k)
        if k > 1 and not lap.e_step.clean:  # lap 1 draws from the Gaussian start, without the network
            draws = n * lap.e_step.fresh_at(k) * lap.e_step.draws
            total += draws * _passes(lap) * network_cost(before, shape)[1]
        total += 3 * lap.train.batch * lap.train.steps_in(k == 1 <= recipe.laps) * network_cost(lap, shape)[1]
        before = lap
    return total


def _passes(recipe: Recipe) -> float:
    """Forward passes per draw; a vector–Jacobian product costs about as much as one."""
    options = recipe.e_step
    sampler = get_sampler(options.sampler, **options.sampler_options)
    phases = sampler.phases(schedule(options.steps, recipe.sigma_min, recipe.sigma_max))
    evaluations = sum(part.evaluations_per_step * (len(sigmas) - 1) for part, sigmas in phases) + 1
    products = 0 if options.method == "conditional" else options.iterations
    return sampler.particles / options.together * evaluations * (1 + products)


def duration(seconds: float) -> str:
    """A duration in words, rounded to one or two digits."""
    for unit, size in (("year", 365.25 * 86400), ("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 0.95 * size:
            count = seconds / size
            return count_of(round(count if count < 10 else round(count, 1 - math.floor(math.log10(count)))), unit)
    return "less than a minute"


def describe(diagnosis: Diagnosis) -> str:
    """The diagnosis as text for a terminal."""
    lines = ["  ".join(f"{name} {version}" for name, version in diagnosis.versions.items()), ""]
    for device in diagnosis.devices:
        lines.append(f"{device.kind:8}{device.name}; {device.free_gib:.1f} of {device.total_gib:.1f} GiB free")
        rates = [f"{p} ({rate / 1e12:.3g} Tflop/s)" if (rate := device.flops.get(p)) else p for p in device.precisions]
        lines.append(f"        precision: {', '.join(rates)}")
    if all(device.kind == "cpu" for device in diagnosis.devices):
        lines.append("        no GPU available to torch")
    elif not diagnosis.compiler:
        lines.append("        networks are not compiled: triton or a C compiler is not installed")
    lines += [f"disk    {diagnosis.disk_free_gib:.0f} GiB free here", ""]
    lines.append("extras  " + ("" if diagnosis.extras else "unknown: diffem is not installed as a package"))
    for extra, missing in diagnosis.extras.items():
        state = "complete" if not missing else f"missing {', '.join(missing)}: pip install 'diffem[{extra}]'"
        lines.append(f"  {extra:14}{state}")
    lines += ["", "recipes, with a rough estimate of their time"]
    for fit in diagnosis.recipes:
        mark = "yes" if fit.fits else "no"
        lines.append(
            f"  {fit.recipe:20}{mark:5}{fit.why}"
            + (f"; {fit.parameters / 1e6:.3g} M parameters" if fit.parameters else "")
        )
    first = next((fit for fit in diagnosis.recipes if fit.fits and fit.recipe == "digits"), None)
    lines += ["", "start with: diffem fit digits"] if first else []
    return "\n".join(lines)
