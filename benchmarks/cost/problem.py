"""The measured step: one network, one batch, one operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffem import Observations, operators, priors
from diffem.core.randomness import Stream
from diffem.nn.networks import make_network
from diffem.samplers import DDIM

from .counting import CountingNetwork, Step

EVENT, SIGMA_Y, STEPS = (3, 32, 32), 0.05, 100


@dataclass
class Problem:
    """A network, observations, and one step from σ_t to σ_s, in one precision on one device."""

    network: CountingNetwork
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
        network = CountingNetwork(make_network(settings["kind"], EVENT, options)).eval().requires_grad_(False)
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
        """ζ in variance-exploding coordinates that equals ζ' = 0.5 in the published ones."""
        return 0.5 * (1 + self.sigma_t**2)

    @property
    def r(self) -> float:
        return self.sigma_t**2 / (1 + self.sigma_t**2)


def same_noise(like: Tensor) -> Tensor:
    """The first normal numbers of torch's generator after a seed, which the other libraries draw in the same way."""
    torch.manual_seed(0)
    return torch.randn_like(like)


def relative(a: Tensor, b: Tensor, without: Tensor) -> float:
    """Relative difference between a and b in what they add to an unconditional step; the largest over samples."""
    difference, change = (a - b).double().flatten(1), (b - without).double().flatten(1)
    return float((difference.norm(dim=1) / change.norm(dim=1)).max())
