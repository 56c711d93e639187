r"""What a step costs, ours beside azula's and deepinv's own code: `python -m benchmarks.cost [--quick] [--devices cpu cuda]`.

One network, one batch, one operator (a quarter of the pixels, another quarter for each image), one process. A step is a DDPM step from σ_t
to σ_s with the posterior method's correction. For every method: forward passes and vector–Jacobian products of the network (counted at
the network itself), time, peak memory; and how far the answers of the libraries are apart. Steps are timed in rounds, one of each per round in
turning order, and compared within a round; medians of the ratios are reported, since a busy machine slows all of them alike.

Answers of azula are compared in float64, those of deepinv, which computes in float32, in float32; both without the curvature guard, which they do not have,
and, where a library's norm runs over the whole batch (azula's DPS), at a batch of one. ΠGDM and DPS are given the same weights: azula takes any
pseudo-inverse and any ζ, deepinv any weight.
"""

from __future__ import annotations

import argparse
import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from diffem import Observations, operators, priors
from diffem.nn.networks import make_network
from diffem.randomness import Stream
from diffem.runs.recipe import load_recipe
from diffem.samplers import DDIM

from .peers import available, torchvision_imports
from .record import RESULTS, record

EVENT, SIGMA_Y, STEPS = (3, 32, 32), 0.05, 100
SMALL = {"kind": "unet", "hidden": [32, 64, 128], "blocks": 2, "heads": [0, 4, 0], "embedding": 64}
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

Step = Callable[[], Tensor]


# counting ----------------------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    forwards: int = 0
    vjps: int = 0


class _Marked(torch.autograd.Function):
    """The identity, counting how often it is differentiated through."""

    @staticmethod
    def forward(x: Tensor, counts: Counts) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.counts = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.counts.vjps += 1
        return gradient, None


class Counted(nn.Module):
    """h(x, log σ), counting its forward passes and vector–Jacobian products while `counting`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.counts, self.counting = Counts(), False

    def forward(self, x: Tensor, log_sigma: Tensor) -> Tensor:
        if self.counting:
            self.counts.forwards += 1
            x = _Marked.apply(x, self.counts)
        return self.network(x, log_sigma)

    @contextmanager
    def count(self) -> Iterator[Counts]:
        self.counts, self.counting = Counts(), True
        try:
            yield self.counts
        finally:
            self.counting = False


class StorageTracker(TorchDispatchMode):
    """Bytes of tensors alive on the CPU that were made inside, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, Tensor):
                self._see(part.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def peak_mib(step: Step, device: torch.device) -> float:
    """Memory a step needs beyond what is there before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with StorageTracker() as tracker:
        step()
    return tracker.peak / 2**20


# the problem -------------------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """A network, observations, and one step from σ_t to σ_s, in one precision on one device."""

    network: Counted
    prior: priors.DiffusionPrior
    mask: Tensor  # (n, 3, 32, 32), 0 and 1
    obs: Observations
    x_t: Tensor
    sigma_t: float
    sigma_s: float
    row: Tensor = field(init=False)
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        levels = torch.tensor([self.sigma_t, self.sigma_s], dtype=torch.float64)
        self.row = DDIM(1.0).table(levels)[0].to(self.x_t)
        self.stream = Stream(0, "cost")

    @classmethod
    def make(cls, settings: dict[str, Any], batch: int, device: torch.device, dtype: torch.dtype) -> Problem:
        torch.manual_seed(0)
        options = {name: value for name, value in settings.items() if name != "kind"}
        network = Counted(make_network(settings["kind"], EVENT, options)).eval().requires_grad_(False)
        network = network.to(device=device, dtype=dtype)
        prior = priors.DiffusionPrior(network, EVENT, settings=settings)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(batch, *EVENT, generator=generator, dtype=torch.float64)
        z = torch.randn(batch, *EVENT, generator=generator, dtype=torch.float64)
        e = torch.randn(batch, *EVENT, generator=generator, dtype=torch.float64)
        mask = (torch.rand(batch, 1, *EVENT[1:], generator=generator) < 0.25).expand(batch, *EVENT)
        sigma_t = 1.0
        sigma_s = sigma_t * (prior.sigma_min / prior.sigma_max) ** (1 / STEPS)
        y = torch.where(mask, x + SIGMA_Y * e, 0).to(device=device, dtype=dtype)
        obs = Observations(y, operators.Mask(mask.to(device)), sigma=SIGMA_Y)
        x_t = (x + sigma_t * z).to(device=device, dtype=dtype)
        return cls(network, prior, mask.to(device=device, dtype=dtype), obs, x_t, sigma_t, sigma_s)

    def __getitem__(self, index: slice) -> Problem:
        return Problem(
            self.network, self.prior, self.mask[index], self.obs[index], self.x_t[index], self.sigma_t, self.sigma_s
        )

    def ours(self, method: str, options: dict[str, Any], noise: Callable[[], Tensor] | None = None) -> Step:
        posterior = self.prior.posterior(self.obs, method, **options)
        index = torch.arange(len(self.x_t), device=self.x_t.device)
        sampler = DDIM(1.0)

        def addressed() -> Tensor:
            return self.stream.normal(index, EVENT, step=1, dtype=self.x_t.dtype)

        @torch.no_grad()
        def step() -> Tensor:
            return sampler.step(posterior, (self.x_t,), self.row, lambda slot: (noise or addressed)())[0]

        return step

    def plain(self) -> Step:
        """A step of the prior alone."""

        @torch.no_grad()
        def step() -> Tensor:
            return DDIM(1.0).step(self.prior, (self.x_t,), self.row, lambda slot: torch.randn_like(self.x_t))[0]

        return step

    @property
    def zeta(self) -> float:
        """ζ in variance-exploding coordinates that is ζ' = 0.5 in the published ones."""
        return 0.5 * (1 + self.sigma_t**2)

    @property
    def r(self) -> float:
        return self.sigma_t**2 / (1 + self.sigma_t**2)


def same_noise(like: Tensor) -> Tensor:
    """The first normals of torch's generator after a seed: the libraries draw theirs in this way."""
    torch.manual_seed(0)
    return torch.randn_like(like)


def relative(a: Tensor, b: Tensor, without: Tensor) -> float:
    """How far a is from b in what each adds to a step without conditioning; the largest over samples, so that none can hide."""
    difference, change = (a - b).double().flatten(1), (b - without).double().flatten(1)
    return float((difference.norm(dim=1) / change.norm(dim=1)).max())


# the peers ---------------------------------------------------------------------------------------------------------------


def azula_steps(problem: Problem) -> dict[str, Step]:
    from azula.denoise import KarrasDenoiser
    from azula.guidance.dps import DPSSampler
    from azula.guidance.mmps import MMPSDenoiser
    from azula.guidance.pgdm import PGDMSampler
    from azula.linalg.covariance import IsotropicCovariance
    from azula.noise import VESchedule
    from azula.sample import DDPMSampler

    from diffem.interop.azula import Backbone, time_of

    prior, x_t, mask = problem.prior, problem.x_t, problem.mask
    schedule = VESchedule(prior.sigma_min, prior.sigma_max)
    denoiser = KarrasDenoiser(Backbone(problem.network), schedule)
    levels = torch.tensor([problem.sigma_t, problem.sigma_s], dtype=torch.float64)
    t, s = time_of(schedule, levels).to(x_t).unbind()
    y, shape = problem.obs.y.flatten(1), x_t.shape
    cov_y = IsotropicCovariance(torch.tensor(SIGMA_Y**2, dtype=x_t.dtype, device=x_t.device))
    weight = problem.r / (SIGMA_Y**2 + problem.r)

    def masked(x: Tensor) -> Tensor:
        return (mask * x).flatten(1)

    def mmps(k: int, solver: str) -> Step:
        sampler = DDPMSampler(MMPSDenoiser(denoiser, y, masked, cov_y, solver=solver, iterations=k), silent=True)
        return lambda: sampler.step(x_t, t, s)

    dps = DPSSampler(denoiser, y, masked, zeta=problem.zeta, silent=True)
    pigdm = PGDMSampler(denoiser, y, masked, lambda v: weight * v.reshape(shape), eta=1.0, silent=True)
    return {
        "mmps k=1": mmps(1, "cg"),
        "mmps k=3": mmps(3, "cg"),
        "mmps k=5": mmps(5, "cg"),
        "mmps k=1, gmres": mmps(1, "gmres"),
        "dps": lambda: dps.step(x_t, t, s),
        "pigdm": lambda: pigdm.step(x_t, t, s),
    }


def deepinv_steps(problem: Problem) -> dict[str, Step]:
    from deepinv.physics import GaussianNoise, Inpainting
    from deepinv.sampling import DPSDataFidelity, MomentMatchingDataFidelity, PiGDMDataFidelity

    from diffem.interop.deepinv import Denoiser

    x_t, y = problem.x_t, problem.obs.y
    physics = Inpainting(EVENT, mask=problem.mask, noise_model=GaussianNoise(SIGMA_Y), device=x_t.device)
    denoiser = Denoiser(problem.prior)
    sigma = torch.tensor(problem.sigma_t, dtype=x_t.dtype, device=x_t.device)
    _, keep, move, fresh, _ = problem.row

    def step(fidelity: Any, weight: float) -> Step:
        """deepinv's gradient of −log q(y | x_t) in the same DDPM step; a weight on x̂ counts ∂x_s/∂x̂ times on x_s."""

        def run() -> Tensor:
            noise = torch.randn_like(x_t)
            gradient, x_hat = fidelity.grad(x_t.clone(), y, physics, sigma, get_model_outputs=True)
            return (keep * x_t + move * x_hat + fresh * noise - weight * gradient).detach()

        return run

    kappa = float(move)
    # a tolerance that is never met: the number of iterations is what is compared
    return {
        f"mmps k={k}": step(
            MomentMatchingDataFidelity(denoiser, cg_max_iter=k, cg_tol=1e-12), kappa * problem.sigma_t**2
        )
        for k in (1, 3, 5)
    } | {
        "dps": step(DPSDataFidelity(denoiser), problem.zeta),
        "pigdm": step(PiGDMDataFidelity(denoiser), problem.r),
    }


PEERS: dict[str, Callable[[Problem], dict[str, Step]]] = {"azula": azula_steps, "deepinv": deepinv_steps}


# measuring ---------------------------------------------------------------------------------------------------------------


def seconds(step: Step, device: torch.device) -> float:
    """Time of the device; on the CPU that of the process, which does not run while others do."""
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
    """`count` rounds of one step each, every round beginning with the next."""
    names = list(steps)
    for name in names:
        steps[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(count):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(seconds(steps[name], device))
    return times


def answers(small: Problem, library: str, method: str) -> float | None:
    """How far a library's x_s is from ours with the same noise; None for a method or solver that is not ours."""
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
        except (
            ImportError,
            OSError,
            RuntimeError,
        ) as error:  # or something it needs is not, or was built for another torch
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
    """What is ours alone, stated apart: no compiled code at all, and a compiled network in two precisions, against azula as measured."""
    figures = {}
    for name, precision in (("plain", None), ("compiled", "float32"), ("compiled_bf16", "bf16")):
        if precision is not None:
            problem.prior.accelerate(len(problem.x_t), precision=precision)
        own = {f"k={k}": problem.ours("mmps", {"iterations": k}) for k in (1, 3)}
        # also keeps the few fused element-wise kernels of the library from being compiled
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
    parser.add_argument("--quick", action="store_true", help="few rounds of a small batch: for a test")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--gpu-batch", type=int, default=256)
    parser.add_argument("--gpu-recipe", default="cifar10-fast", help="whose network is used on the GPU")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures: dict[str, float] = {}
    rows: list[Any] = []
    for name in arguments.devices:
        device = torch.device(name)
        settings, batch = SMALL, 2 if arguments.quick else 4
        if device.type == "cuda" and not arguments.quick:
            settings, batch = load_recipe(arguments.gpu_recipe).network.model_dump(), arguments.gpu_batch
        count = arguments.rounds or (3 if arguments.quick else 21)
        more, lines = measure(device, settings, batch, count)
        figures, rows = figures | more, rows + lines
    print(" ".join(f"{name}={value:.4g}" for name, value in figures.items()))
    print(record("cost", figures, rows, arguments.results))


if __name__ == "__main__":
    main()
