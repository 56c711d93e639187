r"""How one lap changes an error along the data, computed exactly: `python -m benchmarks.overshoot [--quick]`.

If the data lie along a line or a surface, the error of a denoiser can shift draws along the data, if y localises them
poorly there. A shifted draw must still explain its y, so it also moves across the data. The loss on measured values
sees only that movement, interprets it as a shift along the data in the opposite direction, and teaches the next
denoiser the opposite error.

For a Gaussian that is long in one direction and thin in the others, all of this is linear and can be computed without a
network or a sample. Let x ~ N(0, Σ), C = Σ(Σ + σ²)⁻¹, and let the denoiser d(x_t) = C x_t + c_σ have the error c_σ. The
mean e_A of the draws given A is the output of the sampler without noise, with x̂ = (I − K A)(C x_t + c_σ). Training
with W = (1 − m) I + m AᵀA/g, whose mean is I, gives c_σ' = E_A[W (I − C) e_A].
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffem.samplers import Sampler, get_sampler, schedule

from .record import record

SIGMA_MIN, SIGMA_MAX = 1e-3, 10.0
# the first denoiser has an error at noise levels below this, proportional to σ²
REACH = 0.3
LAPS = 6


@dataclass
class Data:
    """Gaussian data of covariance `(N, N)`, whose first direction is the long one, with operators `(n, M, N)`."""

    name: str
    cov: Tensor
    A: Tensor
    sigma_y: float


def line(n: int = 256) -> Data:
    """A local model of the curve of `manifold`: a line of width 0.02 in R⁵, two random directions measured."""
    rows = torch.randn(n, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cov = torch.diag(torch.tensor([1.0, *[0.02] * 4], dtype=torch.float64).square())
    return Data("two directions of five", cov, rows / rows.norm(dim=-1, keepdim=True), 1e-2)


def pixels(kept: int, n: int = 256, size: int = 16) -> Data:
    """A signal in its spectral basis: its spectrum is like that of images, and `kept` of `size` values are measured."""
    k = torch.arange(size, dtype=torch.float64)
    basis = torch.cos(math.pi * k[:, None] * (k + 0.5) / size)  # frequency × position
    basis = basis / basis.norm(dim=1, keepdim=True)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(size, generator=generator)[:kept] for _ in range(n)])
    return Data(f"{kept} values of {size}", torch.diag(4 * (1 + k**2) ** -1.25), basis.T[chosen], 1e-3)


def determined(data: Data) -> Tensor:
    """W of `diffem/em/determined.py`, `(n, N, N)`, with the scale s of the data."""
    A, variance = data.A, data.cov.diagonal().mean()
    noise = data.sigma_y**2 * torch.eye(A.shape[1], dtype=torch.float64)
    D = variance * A.mT @ torch.linalg.solve(noise + variance * A @ A.mT, A)
    values, vectors = torch.linalg.eigh(D.mean(0))
    level = values.mean()
    S = (vectors * values.clamp(min=level).rsqrt()) @ vectors.T
    return S @ D @ S + (vectors * (1 - values / level).clamp(min=0)) @ vectors.T


def shifts(data: Data, share: float, fresh: float, sampler: Sampler, steps: int) -> list[float]:
    """Mean shift of the draws along the long direction, lap by lap.

    Args:
        share: Weight of the loss on measured values.
        fresh: Fraction of the draws that are renewed in a lap.
    """
    A, eye = data.A, torch.eye(data.cov.shape[0], dtype=torch.float64)
    sigmas = schedule(steps, SIGMA_MIN, SIGMA_MAX)
    levels = {float(sigma): i for i, sigma in enumerate(sigmas)}
    square = sigmas[:, None, None] ** 2
    C = data.cov @ torch.linalg.inv(data.cov + square * eye)  # (levels, N, N)
    noise = data.sigma_y**2 * torch.eye(A.shape[1], dtype=torch.float64)
    D = determined(data)
    gain = D.diagonal(dim1=1, dim2=2).mean()
    W = (1 - share) * eye + share / gain * D  # (n, N, N)
    c = torch.zeros(len(sigmas), len(eye), dtype=torch.float64)
    c[:, 0] = torch.where(sigmas < REACH, sigmas**2, 0)

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        """The posterior mean of rows x `(n, N)` given the mean observation, zero."""
        i = levels[float(sigma)]
        d = x @ C[i].T + c[i]
        V = square[i] * C[i]
        u = torch.linalg.solve(noise + A @ V @ A.mT, A @ d[:, :, None])
        return d - (V @ A.mT @ u)[:, :, 0]

    population, off = None, []
    for _ in range(LAPS):
        zero = torch.zeros(len(A), len(eye), dtype=torch.float64)
        state = sampler.start(zero)
        for phase, some in sampler.phases(sigmas):
            for row in phase.table(some):
                state = phase.step(denoise, state, row, lambda slot, zero=zero: zero)  # type: ignore[misc]
        e = denoise(state[0], sigmas[-1])
        population = e if population is None else (1 - fresh) * population + fresh * e
        taught = torch.einsum("aij,ljk,ak->li", W, eye - C, population) / len(A)
        c = torch.linalg.solve(W.mean(0), taught.T).T
        off.append(float(e[:, 0].mean()))
    return off


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer steps of the predictor–corrector")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    many = 512 if arguments.quick else 4096
    samplers = {
        "pc": (get_sampler("pc"), many),
        "pc above 0.1": (get_sampler("pc", down_to=0.1), many),
        "ddpm2": (get_sampler("ddpm2"), 20),
    }
    settings = [(0.0, 1.0), (0.4, 1.0), (0.8, 1.0), (0.8, 0.5), (0.8, 0.25)]
    brief = [(0.8, 1.0), (0.8, 0.5)]
    cases = [(line(), "pc", settings), (line(), "pc above 0.1", brief)]
    cases += [(data, "ddpm2", brief) for data in (line(), pixels(8), pixels(4))]
    rows: list[dict[str, Any]] = []
    for data, sampler, choices in cases:
        for share, fresh in choices:
            off = shifts(data, share, fresh, *samplers[sampler])
            steps = samplers[sampler][1]
            row = {"data": data.name, "sampler": sampler, "steps": steps, "measured": share, "fresh": fresh}
            rows.append(row | {"left": [value / off[0] for value in off]})
            print(row, [round(value, 3) for value in rows[-1]["left"]], flush=True)
    print(record("overshoot", {"laps": LAPS}, rows))


if __name__ == "__main__":
    main()
