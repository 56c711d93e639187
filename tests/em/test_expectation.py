"""The E-step: exact draws from the Gaussian start, screening, redraws, and draws that are kept."""

import math

import torch

from diffem import Observations, operators, priors
from diffem.em.expectation import default_sampler_options, draw_shard
from diffem.em.screening import acceptable, chi2_limit
from diffem.runs.recipe import EStep

from ..exact import random_covariance


def observations(n=200, size=4):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(n, size, generator=generator) < 0.6
    mask[:, 0] = True
    return Observations(torch.randn(n, size, generator=generator), operators.Mask(mask), sigma=0.2)


def gaussian(size=4):
    return priors.GaussianPrior(torch.linspace(-1, 1, size), random_covariance(size).float())


def test_matheron_draws_follow_the_exact_posterior():
    prior, obs = gaussian(), observations(1)
    same = obs[[0] * 20_000]
    x = prior.draw_posterior(same).double()
    keep = obs.measured[0]
    cov = prior.covariance().matrix()[0].double()
    precision = torch.linalg.inv(cov) + torch.diag(keep.double()) / 0.2**2
    exact_cov = torch.linalg.inv(precision)
    information = torch.linalg.solve(cov, prior.mean.double()) + keep * obs.y[0].double() / 0.2**2
    mean = exact_cov @ information
    assert ((x.mean(0) - mean).abs() < 4 * exact_cov.diagonal().sqrt() / math.sqrt(20_000)).all()
    assert float((torch.cov(x.T) - exact_cov).norm() / exact_cov.norm()) < 0.03
    assert torch.allclose(prior.posterior_mean(obs)[0].double(), mean, atol=1e-4)


def test_draws_depend_on_their_address_alone():
    prior, obs, index = gaussian(), observations(), torch.arange(200)
    options = EStep(draws=2)
    whole = draw_shard(prior, obs, options, index=index, seed=3, lap=1, bound=10.0).x
    part = draw_shard(prior, obs[50:60], options, index=index[50:60], seed=3, lap=1, bound=10.0).x
    assert torch.allclose(whole[:, 50:60], part, atol=1e-5)
    assert (whole[0] - whole[1]).abs().max() > 0.1
    other = draw_shard(prior, obs, options, index=index, seed=3, lap=2, bound=10.0).x
    assert (whole - other).abs().max() > 0.1


def test_the_chi2_limit_respects_what_noise_alone_gives():
    """Five standard deviations: about 3 in ten million draws of pure noise are rejected, for any number of values."""
    for m in (1, 2, 10, 100, 3000):
        noise = torch.distributions.Chi2(torch.tensor(float(m))).sample((200_000,)) / m
        assert (noise > float(chi2_limit(torch.tensor([m]), 1.0))).double().mean() < 1e-4
    assert float(chi2_limit(torch.tensor([1000]), 3.0)) == 3.0
    assert float(chi2_limit(torch.tensor([2]), 3.0)) > 10


def test_screening_separates_the_causes_of_rejection():
    obs = observations(6)
    x = torch.where(obs.measured, obs.y, 0)
    assert acceptable(x, obs, 3.0, 10.0).all()
    x[1, 2] = torch.nan
    x[2, 1] = torch.inf
    x[3] = 50.0
    x[4, 0] += 5.0  # 25 standard deviations of the noise
    assert acceptable(x, obs, 3.0, 10.0).tolist() == [True, False, False, False, False, True]


class Unreliable(priors.Prior):
    """Returns useless results for the first draws of some observations, like a network that is not good enough yet."""

    def __init__(self, good, bad, fails):
        super().__init__(torch.zeros(4))
        self.good, self.bad, self.fails, self.calls = good, bad, fails, 0

    def denoise(self, x_t, sigma):
        x = self.good.denoise(x_t, sigma)
        if len(x_t) == 200:
            flags = torch.zeros(200, dtype=torch.bool)
            flags[self.bad] = True
        else:
            flags = torch.full((len(x_t),), self.fails)
        return torch.where(flags[:, None], x + 1000.0, x)


def test_rejected_draws_are_drawn_again():
    prior = Unreliable(gaussian(), [3, 77], fails=False)
    shard = draw_shard(prior, observations(), EStep(steps=8), index=torch.arange(200), seed=0, lap=1, bound=10.0)
    assert shard.report["rejected"] == 2
    assert shard.report["redrawn"] == 2
    assert shard.report["kept"] == shard.report["replaced"] == 0
    assert acceptable(shard.x[0], observations(), 3.0, 10.0).all()


def test_draws_rejected_in_every_attempt_keep_those_of_the_previous_lap():
    prior = Unreliable(gaussian(), [3, 77], fails=True)
    last = torch.arange(800.0).reshape(1, 200, 4) / 1000
    shard = draw_shard(
        prior,
        observations(),
        EStep(steps=8, redraws=1),
        index=torch.arange(200),
        seed=0,
        lap=2,
        bound=10.0,
        previous=lambda: last,
    )
    assert shard.report["kept"] == 2
    assert torch.equal(shard.x[0, [3, 77]], last[0, [3, 77]])


def renewed(fresh, **changes):
    """A shard in which only some observations get new draws, and one in which all do."""
    obs, last = observations(), torch.arange(1600.0).reshape(2, 200, 4) / 1000
    settings = {"index": torch.arange(200), "seed": 0, "lap": 2, "bound": 10.0, "previous": lambda: last}
    options = EStep(draws=2, steps=8)
    whole = draw_shard(gaussian(), obs, options, **settings).x
    return whole, last, draw_shard(gaussian(), obs, options, fresh=fresh, **settings, **changes)


def test_a_lap_may_draw_for_some_observations_only():
    whole, last, shard = renewed(0.3)
    kept = (shard.x == last).all(-1)
    assert kept.sum(1).tolist() == [140, 140]
    assert torch.equal(shard.x[~kept], whole[~kept])
    assert (kept[0] != kept[1]).any()  # each draw of an observation has its own turn
    assert shard.report["draws"] == 120
    assert torch.equal(renewed(0.3, batch_size=7)[2].x, shard.x)


def test_each_lap_draws_for_other_observations():
    _, last, shard = renewed(0.5)
    obs = observations()
    settings = {"index": torch.arange(200), "seed": 0, "bound": 10.0, "previous": lambda: last}
    other = draw_shard(gaussian(), obs, EStep(draws=2), lap=3, fresh=0.5, **settings)
    kept, kept_next = ((s.x[0] == last[0]).all(-1) for s in (shard, other))
    assert 30 < int((kept & kept_next).sum()) < 70  # independent: a quarter of 200 both times


def test_without_earlier_draws_all_observations_are_drawn_for():
    shard = draw_shard(
        gaussian(), observations(), EStep(), index=torch.arange(200), seed=0, lap=1, bound=10.0, fresh=0.1
    )
    assert shard.report["draws"] == 200


def test_the_default_sampler_is_that_of_a_run_with_particles():
    assert default_sampler_options(EStep(sampler="tds", sampler_options={"particles": 4, "picks": 2}, draws=2)) == {
        "sampler": "tds",
        "particles": 4,
    }
    assert default_sampler_options(EStep(sampler="ddpm", sampler_options={})) == {"sampler": "ddpm2"}
