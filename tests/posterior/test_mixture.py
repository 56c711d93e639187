"""The exact posterior of a mixture, and the errors of the approximations."""

import math

import torch

from diffem import Observations, operators, priors
from diffem.linalg import DenseCovariance


def mixture():
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(5, 3, generator=generator, dtype=torch.float64) * 2
    return priors.MixturePrior(
        torch.rand(5, generator=generator, dtype=torch.float64) + 0.2,
        means,
        torch.tensor([0.3, 0.5, 0.2, 0.4, 0.6], dtype=torch.float64),
    )


def observations(n=4):
    generator = torch.Generator().manual_seed(1)
    A = operators.Dense(torch.randn(n, 2, 3, generator=generator, dtype=torch.float64))
    return Observations(torch.randn(n, 2, generator=generator, dtype=torch.float64), A, sigma=0.5)


def brute_force(prior, obs, x_t=None, sigma=None, draws=400_000):
    """Mean of p(x | x_t, y) by self-normalised importance sampling from the prior, and its standard error."""
    generator = torch.Generator().manual_seed(2)
    x = prior.exact_sample(
        torch.rand(draws, generator=generator), torch.randn(draws, 3, generator=generator, dtype=torch.float64)
    )
    out = []
    for i in range(len(obs)):
        one = obs[i]
        residual = one.y - x @ one.A._tensors["matrix"][0].T
        log_w = -0.5 * residual.square().sum(1) / 0.5**2
        if x_t is not None:
            log_w = log_w - 0.5 * (x_t[i] - x).square().sum(1) / sigma**2
        w = torch.softmax(log_w, 0)
        mean = w @ x
        out.append((mean, ((w.unsqueeze(1) * (x - mean)) ** 2).sum(0).sqrt()))
    return torch.stack([m for m, _ in out]), torch.stack([e for _, e in out])


def test_exact_denoiser_against_importance_sampling():
    prior, obs = mixture(), observations()
    x_t = torch.randn(4, 3, dtype=torch.float64)
    for sigma in (0.7, 2.0, 50.0):
        mean, error = brute_force(prior, obs, x_t, sigma)
        got = prior.posterior(obs, method="exact")(x_t, sigma)
        assert ((got - mean).abs() < 5 * error + 1e-9).all()  # five standard errors over 36 comparisons


def test_exact_draws_against_importance_sampling():
    prior, obs = mixture(), observations()
    x = prior.posterior(obs, method="exact").exact_sample(20_000)
    mean, error = brute_force(prior, obs)
    standard_error = (x.std(0) ** 2 / 20_000 + error**2).sqrt()
    assert ((x.mean(0) - mean).abs() < 5 * standard_error).all()


def test_an_exact_draw_does_not_depend_on_the_other_observations():
    posterior = mixture().posterior(observations(4), method="exact")
    draws = posterior.exact_sample(3, seed=1)
    # a batch of another size rounds its matrix products differently
    assert torch.allclose(posterior[:2].exact_sample(5, seed=1)[:3], draws[:, :2], rtol=0, atol=1e-12)


def test_diffusion_with_the_exact_denoiser_reaches_the_exact_posterior():
    prior, obs = mixture(), observations()
    posterior = prior.posterior(obs, method="exact")
    x = posterior.sample(draws=4000, steps=128)
    exact = posterior.exact_sample(4000)
    for power in (1, 2):  # Monte-Carlo error of two sets of 4,000
        a, b = x**power, exact**power
        assert ((a.mean(0) - b.mean(0)).abs() < 5 * ((a.var(0) + b.var(0)) / 4000).sqrt()).all()


def test_mmps_is_exact_for_a_single_component():
    means, stds = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64), torch.tensor([0.8], dtype=torch.float64)
    prior, obs = priors.MixturePrior(torch.ones(1, dtype=torch.float64), means, stds), observations()
    x_t = torch.randn(4, 3, dtype=torch.float64)
    for sigma in (0.01, 1.0, 30.0):
        converged = prior.posterior(obs, iterations=20, tolerance=1e-13)(x_t, sigma)
        assert torch.allclose(converged, prior.posterior(obs, method="exact")(x_t, sigma), atol=1e-9)


def test_tweedie_covariance_beats_the_heuristics_along_a_curve():
    """Mean squared error of E[x | x_t, y] for x_t ~ p(x_t | y): the reason for MMPS (the paper's Figures 1 and 2)."""
    angle = 2 * math.pi * torch.arange(64, dtype=torch.float64) / 64
    curve = torch.stack([angle.cos(), angle.sin(), 0.3 * (2 * angle).cos()], 1)
    prior = priors.MixturePrior(
        torch.ones(64, dtype=torch.float64), curve, torch.full((64,), 0.05, dtype=torch.float64)
    )
    generator = torch.Generator().manual_seed(3)
    x = curve + 0.05 * torch.randn(64, 3, generator=generator, dtype=torch.float64)
    rows = torch.randn(64, 1, 3, generator=generator, dtype=torch.float64)
    A = operators.Dense(rows / rows.norm(dim=-1, keepdim=True))
    obs = Observations(A(x), A, sigma=0.02)
    exact = prior.posterior(obs, method="exact")
    errors = dict.fromkeys(("mmps", "sigma_x", "sigma_t"), 0.0)
    for sigma in (0.1, 0.2, 0.4):
        x_t = exact.exact_sample(1)[0] + sigma * torch.randn(64, 3, generator=generator, dtype=torch.float64)
        for method in errors:
            posterior = prior.posterior(obs, method=method, iterations=4)
            errors[method] += float((posterior(x_t, sigma) - exact(x_t, sigma)).square().mean())
    assert errors["mmps"] < 0.3 * min(errors["sigma_x"], errors["sigma_t"])


def test_the_exact_posterior_is_that_of_its_components():
    """Mean and log p(y | x_t), written out component by component, at one noise level and at one per sample."""
    prior, obs = mixture(), observations()
    x_t = torch.randn(4, 3, dtype=torch.float64)
    matrix = obs.A.tensors()["matrix"]
    for sigma in (torch.tensor(0.4, dtype=torch.float64), torch.tensor([0.01, 0.5, 3.0, 60.0], dtype=torch.float64)):
        log_r, m, v = prior.components(x_t, sigma)
        evaluation = prior.posterior(obs, method="exact").evaluate(x_t, sigma)
        for i in range(4):
            A = matrix[i]
            log_w, means = [], []
            for k in range(5):
                S = 0.25 * torch.eye(2, dtype=torch.float64) + v[i, k] * A @ A.T
                residual = obs.y[i] - A @ m[i, k]
                log_w.append(log_r[i, k] - 0.5 * (residual @ torch.linalg.solve(S, residual) + torch.logdet(S)))
                means.append(m[i, k] + v[i, k] * A.T @ torch.linalg.solve(S, residual))
            log_w, means = torch.stack(log_w), torch.stack(means)
            assert torch.allclose(evaluation.x_hat[i], torch.softmax(log_w, 0) @ means, atol=1e-10)
            assert torch.allclose(evaluation.prior[i], log_r[i].exp() @ m[i], atol=1e-10)
            # up to the determinant of Σ_y, which does not depend on x_t
            constant = math.log(0.25)
            assert torch.allclose(
                evaluation.log_likelihood(obs, obs.y, 1)[i] - constant, torch.logsumexp(log_w, 0), atol=1e-10
            )


def test_unequal_noise_is_whitened():
    """Values with noise s are the same observation as values divided by s, with unit noise."""
    prior, obs = mixture(), observations()
    sigma = torch.tensor([[0.1, 2.0]], dtype=torch.float64).expand(4, 2) * torch.arange(1, 5)[:, None]
    matrix = obs.A._tensors["matrix"]
    unequal = Observations(obs.y, operators.Dense(matrix), sigma=sigma)
    whitened = Observations(obs.y / sigma, operators.Dense(matrix / sigma.unsqueeze(-1)), sigma=1.0)
    x_t = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    a, b = (prior.posterior(o, method="exact") for o in (unequal, whitened))
    torch.testing.assert_close(a(x_t, 0.7), b(x_t, 0.7))
    torch.testing.assert_close(a[[2, 0]](x_t[[2, 0]], 0.7), b(x_t, 0.7)[[2, 0]])  # a part keeps its decomposition


def test_the_exact_posterior_is_the_default_where_it_applies():
    prior, obs = mixture(), observations()
    assert prior.posterior(obs).method == "exact"
    assert prior.posterior(obs, iterations=2).method == "mmps"  # its option
    correlated = DenseCovariance(torch.eye(2, dtype=torch.float64) + 0.5)
    assert prior.posterior(Observations(obs.y, obs.A, cov=correlated)).method == "mmps"
    large = priors.MixturePrior(torch.ones(2), torch.zeros(2, 300), torch.ones(2))
    assert (
        large.posterior(Observations(torch.zeros(1, 300), operators.Mask(torch.arange(300) > 9), sigma=0.1)).method
        == "mmps"
    )
