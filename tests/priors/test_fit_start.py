"""A cheap Gaussian fit: measured coordinates, a sampled E-step, and a stop when held-out predictions stop improving."""

import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.em.start_plan import plan_start
from diffem.linalg import Isotropic
from diffem.observations.diagonal import diagonalised, in_coordinates, likelihood_factor
from diffem.operators.coordinates import from_coordinates, to_coordinates
from diffem.runs.recipe import Gaussian

from ..em.small import RECIPE, observations
from ..exact import random_covariance
from .test_fit import log_likelihood

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(kind, n=80, sigma=0.3):
    """Correlated 3×4 images with separate noise levels, through circular blurs, or as real or complex k-space."""
    shape = {"complex": (3, 4, 2), "channels": (2, 3, 4)}.get(kind, (3, 4))
    size = torch.Size(shape).numel()
    x = torch.randn(n, size, generator=generator(1), dtype=DOUBLE) @ torch.linalg.cholesky(random_covariance(size, 3)).T
    x = x.reshape(n, *shape) + 0.5
    if kind == "blur":
        kernel = torch.rand(n, 3, 3, generator=generator(2), dtype=DOUBLE)
        A = operators.Blur(kernel / kernel.sum((1, 2), keepdim=True))
    elif kind == "window":
        A = operators.Crop((2, 3), (3, 4), top=torch.arange(n) % 2, left=torch.arange(n) % 2)
    else:
        mask = torch.rand(n, 3, 4, generator=generator(2)) < 0.6
        A = operators.Fourier(mask, complex=kind != "real", channels=kind == "channels")
    y = A(x)
    level = sigma * (0.5 + torch.rand(n, generator=generator(4), dtype=DOUBLE))
    noise = torch.randn(y.shape, generator=generator(5), dtype=DOUBLE)
    return Observations(y + level.reshape(-1, *(1,) * (y.ndim - 1)) * noise, A, cov=Isotropic(level**2))


KINDS = ["blur", "real", "complex", "channels", "window"]


@pytest.mark.parametrize("kind", KINDS)
def test_observations_in_coordinates_have_the_same_likelihood(kind):
    """Up to a known factor that does not depend on x."""
    obs = images(kind, n=5)
    coordinates = diagonalised(obs)
    x = torch.randn(2, 5, *obs.x_shape, generator=generator(6), dtype=DOUBLE)
    assert torch.allclose(
        from_coordinates(coordinates.basis, to_coordinates(coordinates.basis, x[0]), obs.x_shape), x[0]
    )

    def log_density(part, samples):
        shape = tuple(part.y.shape[1:])
        variances = part.cov.diagonal(shape).expand_as(part.y)
        inside = torch.ones_like(part.y, dtype=torch.bool) if part.measured is None else part.measured.expand_as(part.y)
        law = torch.distributions.Normal(part.A(samples), variances.sqrt())
        return torch.where(inside, law.log_prob(part.y), 0).sum()

    other = in_coordinates(obs)
    for samples in x:
        inside = log_density(other, to_coordinates(coordinates.basis, samples))
        assert float(inside) + likelihood_factor(obs) == pytest.approx(float(log_density(obs, samples)), rel=1e-10)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_fit_in_coordinates_equals_the_ordinary_fit(kind, rank, monkeypatch):
    """The maximum of the likelihood, and its value, by dense algebra."""
    obs, history = images(kind), priors.FitHistory()
    fitted = priors.fit_gaussian(obs, rank, rounds=400, history=history)
    eye = torch.eye(fitted.mean.numel(), dtype=DOUBLE).reshape(-1, *obs.x_shape)
    cov = fitted.covariance().matvec(eye).flatten(1)
    value = log_likelihood(fitted.mean.flatten(), cov, obs)
    # the result is one round ahead of the history, and almost converged
    assert value - 1e-5 < history.log_likelihood[-1] < value + 1e-8
    monkeypatch.setattr("diffem.priors.fit.diagonalised", lambda obs: None)
    dense = priors.FitHistory()
    priors.fit_gaussian(obs, rank, rounds=400, history=dense)
    # if traces are estimated (low rank, AAᵀ not diagonal), the ordinary fit has an error of its own; repeated k-space
    # is folded there
    if rank is None and kind != "real":
        assert history.log_likelihood[-1] == pytest.approx(dense.log_likelihood[-1], abs=2e-4)


def test_continuing_a_fit_in_coordinates():
    obs, first, rest = images("blur"), priors.FitHistory(), priors.FitHistory()
    prior = priors.fit_gaussian(obs, rounds=10, tolerance=-1.0, history=first)
    priors.fit_gaussian(obs, rounds=4, tolerance=-1.0, start=prior, history=rest)
    value = log_likelihood(prior.mean.flatten(), prior.covariance().matrix()[0], obs)
    assert rest.log_likelihood[0] == pytest.approx(value, abs=1e-9)
    assert value > first.log_likelihood[-1]


@pytest.mark.parametrize("kind", ["blur", "dense"])
def test_a_sampled_e_step_comes_close_to_the_exact_one(kind):
    """Its error is that of one draw per observation, far below the error of estimating from these observations."""
    if kind == "blur":
        obs = images("blur", n=600)
    else:
        A = operators.Dense(torch.randn(600, 5, 8, generator=generator(1), dtype=DOUBLE))
        x = torch.randn(600, 8, generator=generator(2), dtype=DOUBLE) @ random_covariance(8)
        obs = Observations(A(x) + 0.3 * torch.randn(600, 5, generator=generator(3), dtype=DOUBLE), A, sigma=0.3)
    exact, sampled = (
        priors.fit_gaussian(obs, rounds=40, moments=moments, tolerance=-1.0) for moments in ("exact", "sampled")
    )
    size = exact.mean.numel()
    values = [log_likelihood(p.mean.flatten(), p.covariance().matrix()[0], obs) for p in (exact, sampled)]
    # the N(N + 3)/2 parameters are estimated from n draws: half a nat each, over all measured values, and twice that
    # for chance
    assert values[0] - values[1] < size * (size + 3) / 2 / float(obs.counts().sum())


def test_a_fit_stops_when_held_out_predictions_stop_improving():
    """With 16 observations of 12 numbers, the maximum of the likelihood overfits: the fit returns an earlier round."""
    obs, stopped = images("blur", n=240, sigma=0.1), priors.FitHistory()
    few, held_out, others = obs[:16], obs[16:116], obs[116:]
    early = priors.fit_gaussian(few, rounds=300, held_out=held_out, history=stopped)
    late = priors.fit_gaussian(few, rounds=300, tolerance=0.0)
    assert len(stopped.log_likelihood) < 100
    better, worse = (log_likelihood(p.mean.flatten(), p.covariance().matrix()[0], others) for p in (early, late))
    assert better > worse + 0.1
    last, best = stopped.held_out[-1], max(stopped.held_out)
    assert best >= last


@pytest.mark.parametrize("moments", ["exact", "sampled"])
def test_a_fit_with_held_out_observations_resumes_bit_for_bit(moments):
    obs = images("blur", n=90, sigma=1.0)
    states, history = [], priors.FitHistory()
    options = {"rounds": 20, "moments": moments, "held_out": obs[70:]}
    fitted = priors.fit_gaussian(obs[:70], history=history, checkpoint=states.append, **options)
    assert len(states) > 2
    for state in states:
        again = priors.FitHistory()
        resumed = priors.fit_gaussian(obs[:70], history=again, resume=state, **options)
        assert again.held_out == history.held_out
        assert torch.equal(resumed.mean, fitted.mean)
        assert torch.equal(resumed.covariance().matrix(), fitted.covariance().matrix())


def test_options_of_the_recipe_are_followed():
    obs, cpu = observations(), torch.device("cpu")
    stated = plan_start(Gaussian(rounds=7), obs, cpu, 0)
    assert (stated.rounds, stated.moments, stated.observations, stated.held_out) == (7, "exact", None, None)
    some = plan_start(Gaussian(rounds=7, observations=60), obs, cpu, 0)
    assert len(some.observations) == 60
    left_open = plan_start(Gaussian(), obs, cpu, 0)
    assert left_open.moments == "exact"
    assert len(left_open.held_out) == 136 // 8
    assert len(left_open.observations) == 136 - 136 // 8
    assert not set(left_open.observations.tolist()) & set(left_open.held_out.tolist())


def test_expensive_moments_are_sampled_and_more_expensive_ones_use_fewer_observations():
    y = torch.zeros(3000, 14, 14)
    kernel = torch.rand(3000, 5, 5, generator=generator())
    for boundary, all_of_them in (("circular", True), ("zero", False)):
        obs = Observations(y, operators.Blur(kernel, boundary), sigma=0.1)
        plan = plan_start(Gaussian(), obs, torch.device("cpu"), 0)
        assert plan.moments == "sampled"
        assert (len(plan.observations) + len(plan.held_out) == 3000) is all_of_them
        assert len(plan.observations) >= 4 * 196
    complete = Observations(torch.zeros(3000, 14, 14), operators.Identity(), sigma=0.1)
    assert plan_start(Gaussian(), complete, torch.device("cpu"), 0).observations is None  # in closed form


def test_a_run_records_the_time_of_its_start(tmp_path):
    changes = {"laps": 1, "train.steps": 8, "gaussian.rounds": None}
    run = diffem.fit(observations(), RECIPE, tmp_path / "run", changes=changes, progress=False)
    assert 0 < run.laps[0]["start_seconds"] <= run.laps[0]["seconds"]
    assert "start_held_out" in run.laps[0]
