"""Exact posteriors of a Gaussian prior use an iterative solver; missing convergence is reported."""

import warnings

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.linalg import ConvergenceWarning, Diagonal
from diffem.priors import fit, gaussian


def problem(sigma=1e-3):
    """Four observations with separate dense operators and little noise: condition numbers of about 1e7."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 12, 12, generator=generator, dtype=torch.float64)
    prior = priors.GaussianPrior(torch.zeros(12, dtype=torch.float64), torch.diag(torch.logspace(-2, 2, 12).double()))
    return prior, Observations(torch.ones(4, 12, dtype=torch.float64), operators.Dense(matrix), sigma=sigma)


@pytest.mark.parametrize("method", ["posterior_mean", "draw_posterior"])
def test_a_solve_that_hits_its_limit_is_reported(method, monkeypatch):
    prior, obs = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(prior, method)(obs)
    monkeypatch.setattr(gaussian, "ITERATIONS", 3)
    residual = r"\(relative residual up to \d.\de[+-]\d\d, required: 1.0e-08\)"
    with pytest.warns(ConvergenceWarning, match=rf"4 of 4 systems did not converge within 3 iterations {residual}"):
        getattr(prior, method)(obs)


def test_only_systems_that_did_not_converge_are_counted(monkeypatch):
    """With noise far above the signal the first iterations suffice."""
    prior, obs = problem(sigma=torch.tensor([1e9, 1e9, 1e-3, 1e9], dtype=torch.float64))
    monkeypatch.setattr(gaussian, "ITERATIONS", 3)
    with pytest.warns(ConvergenceWarning, match="1 of 4 systems"):
        prior.posterior_mean(obs)


def test_the_low_rank_fit_reports_its_last_round():
    """A dense operator, and measured values whose noise differs by a factor of 1e5: 256 iterations are not enough."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(300, 300, generator=generator, dtype=torch.float64) * torch.logspace(0, 4, 300).double()
    y = torch.randn(6, 300, generator=generator, dtype=torch.float64)
    obs = Observations(y, operators.Dense(matrix), cov=Diagonal(torch.logspace(-10, 0, 300).double()))
    with pytest.warns(ConvergenceWarning, match=r"low rank, last round: \d+ of 18 systems did not converge within 256"):
        priors.fit_gaussian(obs, rank=2, rounds=1)


def in_a_plane(sigma=1e-4):
    """Masked observations of x that varies in 4 of 8 directions, with tiny noise: EM needs many rounds."""
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    x = torch.randn(100, 4, generator=generator, dtype=torch.float64) @ plane.T / 2
    mask = torch.rand(100, 8, generator=generator) < 0.5
    y = x + sigma * torch.randn(100, 8, generator=generator, dtype=torch.float64)
    return Observations(torch.where(mask, y, 0), operators.Mask(mask), sigma=sigma)


def test_a_gaussian_fit_that_needs_more_rounds_is_reported(monkeypatch):
    monkeypatch.setattr(fit, "ROUNDS", 128)
    with pytest.warns(ConvergenceWarning, match="likelihood still increases, by .* pass more rounds") as caught:
        priors.fit_gaussian(in_a_plane())
    assert caught[0].filename == __file__


def test_a_number_of_rounds_that_the_caller_chose_causes_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        priors.fit_gaussian(in_a_plane(), rounds=16)


def test_a_gaussian_fit_that_ends_because_of_rounding_errors_is_reported():
    with pytest.warns(ConvergenceWarning, match="decreased the likelihood by 1.0e-05 nats .* rounding errors"):
        fit._warn_if_not_converged([0.0, 0.1, 0.2, 0.2, 0.19999])
    # with noise of 1e-5 a round lost 2e-4 nats and the next ones gained 5e-5 and nothing, so the fit ended
    with pytest.warns(ConvergenceWarning, match="one of the last 4 rounds decreased the likelihood by 2.0e-04 nats"):
        fit._warn_if_not_converged([3.8834, 3.88356, 3.88336, 3.88341, 3.88341])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit._warn_if_not_converged([0.0])
        fit._warn_if_not_converged([0.0, 0.1, 0.2, 0.2, 0.2 - 1e-9])
