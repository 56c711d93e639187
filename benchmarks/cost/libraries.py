"""The same step with the code of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .counting import Step
from .problem import EVENT, SIGMA_Y, Problem


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
    # a tolerance that is never reached, so that the numbers of iterations are equal
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
