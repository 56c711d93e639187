"""No compounding bias: EM with sampled E-steps stays at the maximum-likelihood fit, lap after lap.

Observations of a known Gaussian in 16 dimensions, half the coordinates measured. The exact fit is `fit_gaussian`; then
eight laps (four in the suite) of (draw with the default sampler, fit) start from it. A sampler that shrinks would walk
away from it at a few per cent per lap.
"""

import math

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.expectation import draw_shard
from diffem.em.maximization import maximization
from diffem.nn import MLP
from diffem.runs.recipe import EStep, Train

N, LAPS = 4096, 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def problem(size=16, n=N):
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    values = torch.logspace(-0.7, 0.5, size, dtype=torch.float64)
    x = torch.randn(n, size, generator=generator, dtype=torch.float64) * values.sqrt() @ basis.T
    mask = torch.rand(n, size, generator=generator) < 0.5
    y = x + 0.1 * torch.randn(n, size, generator=generator, dtype=torch.float64)
    return Observations(y.float(), operators.Mask(mask), sigma=0.1)


def moments(draws):
    x = draws.flatten(0, 1).double()
    return x.mean(0), torch.cov(x.T)


def check(mean, cov, exact, tolerance, lap, n=N):
    exact_mean, exact_cov = exact.mean.double(), exact.covariance().matrix()[0].double()
    # draws of half-measured vectors: the mean is known to about the spread over √(n/2)
    standard_error = exact_cov.diagonal().sqrt() / math.sqrt(n / 2)
    assert ((mean - exact_mean).abs() < 4 * standard_error).all(), f"lap {lap}: mean"
    ratio = torch.linalg.eigvalsh(cov) / torch.linalg.eigvalsh(exact_cov)
    assert ((ratio - 1).abs() < tolerance).all(), f"lap {lap}: eigenvalue ratios {ratio.tolist()}"


@pytest.mark.parametrize(
    ("size", "draws_each", "laps"),
    [
        (4, 4, 4),
        pytest.param(4, 4, LAPS, marks=pytest.mark.slow),
        pytest.param(16, 8, LAPS, marks=pytest.mark.slow),
    ],
)
def test_a_gaussian_m_step_agrees_with_the_exact_fit(size, draws_each, laps):
    """Sampled E-step (diffusion, MMPS), Gaussian M-step: every eigenvalue within 5 % of the exact fit in every lap.

    Several draws per observation keep the noise of the draws themselves, √(2/(4096·draws)) per lap, below the bound.
    """
    obs = problem(size)
    exact = priors.fit_gaussian(obs)
    prior = exact
    for lap in range(1, laps + 1):
        draws = prior.posterior(obs, iterations=size // 2).sample(draws_each, steps=128, lap=lap)
        mean, cov = moments(draws)
        check(mean, cov, exact, 0.05, lap)
        prior = priors.GaussianPrior(mean.float(), cov.float())


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes hours without a GPU")
def test_a_network_m_step_comes_close_to_the_exact_fit():
    """The same with a network trained on the draws: within 10 %.

    Half-measured vectors contain little information about the combination of coordinates with the smallest variance, so
    errors of an M-step there persist for many laps and add up. Networks of 128 to 256 units trained for 3,000 to 6,000
    steps on 32,768 observations were within 5 % everywhere but for that one eigenvalue, at 0.92 after two laps and 0.88
    after six. Hence more observations, and more steps.
    """
    n = 32 * N
    obs = problem(n=n).to(DEVICE)
    exact = priors.fit_gaussian(obs)
    torch.manual_seed(0)
    prior = priors.DiffusionPrior(
        MLP((16,), (256, 256), 64),
        mean=exact.mean.cpu(),
        cov=exact.covariance().to("cpu"),
        sigma_min=0.02,
        sigma_max=30.0,
    ).to(DEVICE)
    options, train = EStep(steps=128, iterations=8), Train(steps=1, batch=1024, lr=1e-3, ema=0.9995)
    index, current = torch.arange(n), exact
    for lap in range(1, LAPS + 1):
        shard = draw_shard(current, obs, options, index=index, seed=0, lap=lap, bound=20.0)
        maximization(prior, shard.x.flatten(0, 1), train, steps=16000 if lap == 1 else 12000, seed=0, lap=lap)
        current = prior
        samples = prior.sample(40_000, steps=128, seed=lap)
        mean, cov = moments(samples[None].cpu())
        print(lap, (torch.linalg.eigvalsh(cov) / torch.linalg.eigvalsh(exact.covariance().matrix()[0].double().cpu())))
        check(mean, cov, exact.to("cpu"), 0.10, lap, n)
