"""Numeric types and torch modes: results are the same, or an error names the type or mode."""

import math
from contextlib import nullcontext

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.linalg import LowRank

from ..exact import gaussian_posterior_mean
from .registry import CONFIGURATIONS
from .test_battery import Counter, network_prior, observations

SIZE = 6
MODES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
}
EACH_MODE = pytest.mark.parametrize("mode", MODES)


def problem():
    """A Gaussian prior and noise that both use matrix products, in float32, and the exact E[x | x_t, y] at σ = 0.5."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    factor, noise_factor, matrix = normal(2, SIZE), 0.3 * normal(1, 3), normal(3, SIZE)
    prior = priors.GaussianPrior(torch.zeros(SIZE), LowRank(factor, 0.3))
    y, x_t = normal(4, 3), normal(4, SIZE)
    cov = (factor.T @ factor + 0.3 * torch.eye(SIZE)).double()
    cov_y = (noise_factor.T @ noise_factor + 0.2 * torch.eye(3)).double()
    exact = gaussian_posterior_mean(
        torch.zeros(SIZE).double(), cov, x_t.double(), 0.5, y.double(), matrix.double().expand(4, 3, SIZE),
        cov_y.expand(4, 3, 3),
    )  # fmt: skip
    return prior, (y, operators.Dense(matrix), LowRank(noise_factor, 0.2)), x_t, exact


@EACH_MODE
def test_a_gaussian_posterior_is_exact_in_every_mode(mode):
    """Observations, posterior and state are created in the mode.

    The tolerance 1e-5 is float32 epsilon times a condition number below 100.
    """
    prior, (y, A, noise), x_t, exact = problem()
    with MODES[mode]():
        obs = Observations(y, A, cov=noise)
        for solver in ("cg", "gmres", "bicgstab", "direct"):
            got = prior.posterior(obs, solver=solver, iterations=20)(x_t * 1.0, 0.5)
            assert got.dtype == torch.float32
            assert not got.requires_grad
            assert float((got - exact).norm() / exact.norm()) < 1e-5


def results(prior, make_obs, context):
    """Results of all public functions that compute with matrices or Jacobians."""
    with context:
        obs = make_obs()
        found = {
            "posterior": prior.posterior(obs).sample(steps=6),
            "twisted": prior.posterior(obs, method="mmps").sample(steps=6, sampler="tds", particles=3),
            "prior": prior.sample(3, steps=6),
            "denoised": prior(torch.ones(2, *prior.event_shape), 0.7),
            "chi2": obs.chi2(torch.ones(len(obs), *prior.event_shape)),
        }
        if isinstance(prior, priors.GaussianPrior):
            found |= {
                "exact": prior.draw_posterior(obs),
                "mean": prior.posterior_mean(obs),
                "log_prob": prior.log_prob(torch.ones(2, SIZE)),
                "fit": priors.fit_gaussian(obs, rounds=3).mean,
            }
    return found


@EACH_MODE
@pytest.mark.parametrize("kind", ["gaussian", "network", "function"])
def test_results_are_bit_identical_in_every_mode(mode, kind):
    prior, (y, A, noise), _, _ = problem()
    make = lambda: Observations(y * 1.0, A, cov=noise)  # noqa: E731
    if kind == "network":
        prior, obs = network_prior().float(), observations(4).to(torch.float32)
        make = lambda: obs  # noqa: E731
    elif kind == "function":  # an adjoint by automatic differentiation, with a parameter created in the mode
        matrix = A.tensors()["matrix"]

        def make() -> Observations:
            m = matrix.expand(4, 3, SIZE) * 1.0
            B = operators.Function(lambda x, m: (m @ x.unsqueeze(-1)).squeeze(-1), (SIZE,), m=m)
            return Observations(y * 1.0, B, sigma=0.3)

    expected = results(prior, make, nullcontext())
    for name, value in results(prior, make, MODES[mode]()).items():
        assert value.dtype == expected[name].dtype, name
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_method_ignores_autocast_and_inference_mode(name):
    method, options = CONFIGURATIONS[name]
    posterior = network_prior().float().posterior(observations(3).to(torch.float32), method=method, **options)
    x_t = torch.randn(3, *posterior.prior.event_shape, generator=torch.Generator().manual_seed(0))
    expected = posterior(x_t, 0.3)
    for mode in MODES.values():
        with mode():
            assert torch.equal(posterior(x_t, 0.3), expected)


def test_the_spread_of_draws_under_autocast():
    """The posterior's standard deviation for x ~ N(0, 1) and σ_y = 0.5, in low-rank form.

    The tolerance is four standard errors plus 1 % for the steps.
    """
    n = 4000
    prior = priors.GaussianPrior(torch.zeros(2), LowRank(torch.ones(1, 2), 1e-2))
    obs = Observations(torch.ones(n, 2), operators.Dense(torch.eye(2)), sigma=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        x = prior.posterior(obs).sample(steps=64)
    cov = torch.linalg.inv(torch.linalg.inv(torch.ones(2, 2) + 1e-2 * torch.eye(2)) + 4 * torch.eye(2))
    assert float(x.std(0).mean() / cov.diagonal().sqrt().mean()) == pytest.approx(1, abs=4 / math.sqrt(2 * n) + 0.01)


def test_a_prior_created_in_inference_mode_works_or_is_named_in_an_error():
    """Weights created in inference mode have no Jacobian; a Gaussian with a matrix creates its own tensors."""
    with torch.inference_mode():
        obs = Observations(torch.ones(3, 2), operators.Identity(), sigma=0.5)
        prior = priors.GaussianPrior(torch.zeros(2), torch.eye(2))
        assert torch.allclose(prior.posterior(obs)(torch.zeros(3, 2), 100.0), torch.full((3, 2), 0.8), atol=1e-3)
        for made in (
            lambda: priors.GaussianPrior(torch.zeros(2), LowRank(torch.ones(1, 2), 1.0)),
            lambda: priors.DiffusionPrior(Counter().float(), (2,)),
        ):
            prior = made()
            with pytest.raises(ValueError, match=f"{type(prior).__name__} was made under torch.inference_mode"):
                prior.posterior(obs)


def test_a_mixture_made_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        prior = priors.MixturePrior(torch.ones(3), torch.rand(3, 2), torch.ones(3))
    assert prior.mean.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_named_in_an_error(dtype):
    half, whole = torch.zeros(2, dtype=dtype), torch.zeros(2)
    words = "must be float32 or float64, got torch.(b?)float16.*compute_in"
    with pytest.raises(ValueError, match=f"mean of a GaussianPrior {words}"):
        priors.GaussianPrior(half, torch.eye(2, dtype=dtype))
    with pytest.raises(ValueError, match=f"mean of a MixturePrior {words}"):
        priors.MixturePrior(torch.ones(1), half[None], torch.ones(1))
    for mean in (None, whole):
        with pytest.raises(ValueError, match=f"DiffusionPrior: the network's linear.weight {words}"):
            priors.DiffusionPrior(Counter().to(dtype), (2,), mean=mean)
    with pytest.raises(ValueError, match=f"y {words}"):
        Observations(half[None], operators.Identity(), sigma=1.0)
    obs = Observations(whole[None], operators.Identity(), sigma=1.0)
    with pytest.raises(ValueError, match=f"y {words}"):
        obs.to(dtype)
    prior = priors.MixturePrior(torch.ones(1), whole[None], torch.ones(1)).to(dtype)  # converted after its creation
    for use in (lambda: prior(half[None], 1.0), lambda: prior.sample(2), lambda: prior.posterior(obs)):
        with pytest.raises(ValueError, match=f"the MixturePrior {words}"):
            use()


def test_samples_without_an_axis_are_named_in_an_error():
    with pytest.raises(ValueError, match=r"GaussianPrior: samples need at least one axis.*\(1,\)"):
        priors.GaussianPrior(torch.tensor(0.0), torch.eye(1))
    with pytest.raises(
        ValueError, match=r"at least two axes, .*, got shape \(3,\); single numbers have shape \(n, 1\)"
    ):
        Observations(torch.zeros(3), operators.Identity(), sigma=1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Observations(torch.ones(2, 3), operators.Identity(), sigma=1e-20),
        lambda: Observations(torch.ones(2, 3).double(), operators.Identity(), sigma=1e-20).to(torch.float32),
        lambda: Observations(torch.ones(1, 2).double(), operators.Mask(torch.tensor([True, False])), sigma=1e-160),
    ],
)
def test_noise_that_vanishes_in_the_dtype_is_refused(make):
    """If a variance rounded to 0, a measured value would count as unmeasured."""
    with pytest.raises(ValueError, match=r"variance of 1.0e-(40|320), below the smallest number"):
        make()
