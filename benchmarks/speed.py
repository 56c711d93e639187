"""Speed of E-step and M-step relative to the bare network: `python -m benchmarks.speed [--recipe cifar10] [--batch N]`.

Bare: the compiled network alone, with one forward pass and k vector–Jacobian products (none for a conditional recipe);
and a training step of network, loss, backward pass and fused Adam. Ours: the same number of evaluations in a posterior
draw (conditioning, conjugate gradients or the pivot, sampler, addressed noise), and in `maximization` (shuffling, noise
levels, noise, operators of other observations, clipping, averaged weights). Both are measured alternately in one
process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from diffem import Observations, operators, priors
from diffem.em.conditioning import TrainingOperators
from diffem.em.maximization import maximization
from diffem.em.start import shown_inputs
from diffem.nn.networks import make_network
from diffem.observations.lazy import as_lazy
from diffem.runs.recipe import Recipe, load_recipe

from .record import RESULTS, record


def rate(work: Callable[[], None], images: int, seconds: float) -> float:
    """Images per second of `work`, repeated for about `seconds` after one warm-up call."""
    work()
    torch.cuda.synchronize()
    start, repeats = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        work()
        torch.cuda.synchronize()
        repeats += 1
    return repeats * images / (time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="cifar10")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--skip-m", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--name", default="speed")
    arguments = parser.parse_args()
    batch, k, steps = arguments.batch, arguments.iterations, 16
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    recipe = load_recipe(arguments.recipe)
    settings, shape = recipe.network.model_dump(), (3, 32, 32)
    mask = torch.rand(8192, 1, 32, 32, device="cuda") < 0.25
    everything = Observations(torch.randn(8192, *shape, device="cuda"), operators.Mask(mask), sigma=1e-3)
    conditioning = TrainingOperators(as_lazy(everything), 1.0, torch.device("cuda")) if recipe.conditional else None
    if conditioning is not None:
        settings, k = {**settings, "shown": shown_inputs(settings, conditioning.family, shape)}, 0
    family = None if conditioning is None else conditioning.family
    network = make_network(settings["kind"], shape, {n: v for n, v in settings.items() if n != "kind"}).cuda().eval()
    network.requires_grad_(False)
    prior = priors.DiffusionPrior(network, event_shape=shape, settings=settings, family=family).cuda()
    figures: dict[str, float] = {"vjps": k, "parameters": sum(p.numel() for p in network.parameters()), "batch": batch}
    figures["automatic_batch"] = prior.batch_for(1 << 20)
    prior.accelerate(batch, precision="bf16")

    # E-step: T steps and the last denoising are T + 1 evaluations
    x, log_sigma = torch.randn(batch, *shape, device="cuda"), torch.zeros(batch, device="cuda")
    w, shown = torch.randn_like(x), (torch.rand(batch, 4, 32, 32, device="cuda"),) if conditioning is not None else ()

    def bare_e() -> None:
        for _ in range(steps + 1):
            with torch.set_grad_enabled(k > 0), torch.autocast("cuda", torch.bfloat16):
                z = x.detach().requires_grad_(k > 0)
                h = network(z, log_sigma, *shown)
            for i in range(k):
                torch.autograd.grad(h, z, w.to(h.dtype), retain_graph=i + 1 < k)

    obs = everything[:batch]
    posterior = prior.posterior(obs, "conditional") if recipe.conditional else prior.posterior(obs, iterations=k)

    def our_e() -> None:
        posterior.sample(steps=steps, sampler=recipe.e_step.sampler, progress=False)

    began = time.monotonic()
    evaluations = batch * (steps + 1)
    torch.cuda.reset_peak_memory_stats()
    figures["bare_evals_per_s"] = rate(bare_e, evaluations, arguments.seconds)
    figures["estep_evals_per_s"] = rate(our_e, evaluations, arguments.seconds)
    figures["bare_evals_per_s_again"] = rate(bare_e, evaluations, arguments.seconds / 2)
    bare = (figures["bare_evals_per_s"] + figures["bare_evals_per_s_again"]) / 2
    figures["estep_ratio_to_bare"] = figures["estep_evals_per_s"] / bare
    figures["estep_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    print({name: round(v, 4) for name, v in figures.items()}, f"{time.monotonic() - began:.0f} s", flush=True)

    if not arguments.skip_m:
        figures |= m_step(prior, recipe, everything, conditioning, (x, log_sigma, *shown), w, arguments.seconds)
        figures["peak_gib"] = max(figures["estep_peak_gib"], figures["mstep_peak_gib"])
    print({name: round(v, 4) for name, v in figures.items()}, flush=True)
    print(record(arguments.name, figures, [], arguments.results))


def bare_training(network: torch.nn.Module, inputs: tuple[Tensor, ...], w: Tensor, seconds: float) -> float:
    """Images per second of network, loss, backward pass and optimizer alone."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def steps() -> None:
        for _ in range(8):
            with torch.autocast("cuda", torch.bfloat16):
                loss = (network(*inputs).float() - w).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return rate(steps, 8 * len(w), seconds)


def m_step(
    prior: priors.DiffusionPrior,
    recipe: Recipe,
    everything: Observations,
    conditioning: TrainingOperators | None,
    inputs: tuple[Tensor, ...],
    w: Tensor,
    seconds: float,
) -> dict[str, float]:
    """Images per second of training, bare and by the library.

    Args:
        inputs: The inputs of the network for one batch.
        w: (batch, *event). What the bare training fits.
    """
    network, batch, figures = prior.network, len(w), dict[str, float]()
    torch.cuda.reset_peak_memory_stats()
    network.requires_grad_(True).train()
    figures["bare_images_per_s"] = bare_training(network, inputs, w, seconds)
    draws = torch.randn(8192, *prior.event_shape, device="cuda")
    options = recipe.train.model_copy(update={"batch": batch})
    run = {"seed": 0, "lap": 1, "precision": "bf16", "progress": False, "conditioning": conditioning}
    if conditioning is not None:
        run["measured_with"] = (everything.A, torch.arange(len(draws)), everything.cov)
    maximization(prior, draws, options, steps=32, **run)
    count = int(figures["bare_images_per_s"] * seconds / batch)
    times = []
    for steps_m in (count // 4, count + count // 4):  # the difference excludes costs that occur once per lap
        torch.cuda.synchronize()
        start = time.monotonic()
        maximization(prior, draws, options, steps=steps_m, **run)
        torch.cuda.synchronize()
        times.append(time.monotonic() - start)
    figures["mstep_images_per_s"] = count * batch / (times[1] - times[0])
    figures["mstep_seconds_per_lap_beside"] = times[0] - (count // 4) * batch / figures["mstep_images_per_s"]
    figures["mstep_ratio_to_bare"] = figures["mstep_images_per_s"] / figures["bare_images_per_s"]
    figures["mstep_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return figures


if __name__ == "__main__":
    main()
