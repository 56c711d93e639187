"""Properties that every posterior method must have, for any approximation."""

import warnings

import pytest
import torch
from torch import nn

from diffem import Observations, operators, priors
from diffem.linalg import ConvergenceWarning
from diffem.posterior import METHODS
from diffem.priors.family import Family

from ..exact import random_covariance
from .registry import ANY_PRIOR, CONFIGURATIONS

EVENT, SIZE = (2, 4), 8
EACH = pytest.mark.parametrize("name", CONFIGURATIONS)
EACH_FOR_ANY_PRIOR = pytest.mark.parametrize("name", ANY_PRIOR)
FAMILY = Family("Compose", "rows", "part", EVENT, (0.0, 1.0), (0.0, 10.0))


def network_prior(seed=0):
    """A smooth random network, whose Jacobian is neither symmetric nor positive."""
    torch.manual_seed(seed)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(SIZE + 1, 32), nn.Tanh(), nn.Linear(32, SIZE))

        def forward(self, x, log_sigma, shown=None):
            h = self.layers(torch.cat([x.flatten(1), log_sigma[:, None]], 1)).reshape(x.shape)
            return h if shown is None else h + 0.3 * shown.sin()

    cov = random_covariance(SIZE)
    from diffem.linalg import DenseCovariance

    return priors.DiffusionPrior(
        Network().double(), EVENT, cov=DenseCovariance(cov), mean=torch.zeros(EVENT, dtype=torch.float64), family=FAMILY
    )


def observations(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, *EVENT, generator=generator) < 0.6
    mask[:, 0, 0] = True
    blur = operators.Blur(torch.rand(n, 2, 3, generator=generator, dtype=torch.float64))
    y = torch.randn(n, *EVENT, generator=generator, dtype=torch.float64)
    sigma = 0.05 + torch.rand(n, generator=generator, dtype=torch.float64)
    return Observations(y, operators.Compose(operators.Mask(mask), blur), sigma=sigma)


def test_the_registry_holds_every_method():
    assert {method for method, _ in CONFIGURATIONS.values()} == set(METHODS) - {"exact"}


@EACH
@pytest.mark.parametrize("sigma", [0.01, 0.5, 20.0])
def test_a_sample_alone_equals_the_sample_in_a_batch(name, sigma):
    method, options = CONFIGURATIONS[name]
    prior, obs = network_prior(), observations(64)
    x_t = sigma * torch.randn(64, *EVENT, dtype=torch.float64)
    together = prior.posterior(obs, method=method, **options)(x_t, sigma)
    for i in (0, 13, 63):
        alone = prior.posterior(obs[i], method=method, **options)(x_t[i : i + 1], sigma)
        assert float((alone[0] - together[i]).abs().max()) <= 1e-10 * max(1, float(together[i].abs().max()))


@EACH
def test_draws_do_not_depend_on_the_batch(name):
    method, options = CONFIGURATIONS[name]
    prior, obs = network_prior(), observations(64)
    posterior = prior.posterior(obs, method=method, **options)
    together = posterior.sample(steps=8, seed=3)
    in_parts = posterior.sample(steps=8, seed=3, batch_size=13)
    scale = together.flatten(1).norm(dim=1).clamp(min=1)
    assert float(((in_parts - together).flatten(1).norm(dim=1) / scale).max()) <= 1e-10
    alone = posterior[17].sample(steps=8, seed=3, index=torch.tensor([17]))
    assert float((alone[0] - together[17]).norm() / scale[17]) <= 1e-10


@EACH
def test_scalar_and_per_sample_noise_levels_agree(name):
    method, options = CONFIGURATIONS[name]
    posterior = network_prior().posterior(observations(6), method=method, **options)
    x_t = torch.randn(6, *EVENT, dtype=torch.float64)
    assert torch.allclose(posterior(x_t, 0.7), posterior(x_t, torch.full((6,), 0.7, dtype=torch.float64)), atol=1e-12)


@EACH
def test_float32_agrees_with_float64(name):
    method, options = CONFIGURATIONS[name]
    prior, obs = network_prior(), observations(6)
    x_t = torch.randn(6, *EVENT, dtype=torch.float64)
    fine = prior.posterior(obs, method=method, **options)(x_t, 0.7)
    prior = network_prior().float()
    coarse = prior.posterior(obs.to(torch.float32), method=method, **options)(x_t.float(), 0.7)
    assert coarse.dtype == torch.float32
    # float32 epsilon 1e-7 times the condition number of the system, about 1e3 at the smallest noise
    assert float((coarse - fine).norm() / fine.norm()) < 1e-3


@EACH_FOR_ANY_PRIOR
def test_an_ill_behaved_jacobian_leaves_everything_finite(name):
    """In some samples the Jacobian has negative eigenvalues and a rotation."""
    method, options = CONFIGURATIONS[name]
    obs = observations(8)
    clean = priors.GaussianPrior(torch.zeros(EVENT, dtype=torch.float64), random_covariance(SIZE))

    class Rogue(priors.Prior):
        def __init__(self, rogue):
            super().__init__(torch.zeros(EVENT, dtype=torch.float64))
            self.rogue = rogue
            generator = torch.Generator().manual_seed(0)
            self.matrix = -2 * torch.eye(SIZE, dtype=torch.float64)
            self.matrix += torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)

        def covariance(self):
            return clean.covariance()

        def denoise(self, x_t, sigma):
            wild = (x_t.flatten(1) @ self.matrix).reshape(x_t.shape)
            flags = torch.zeros(len(x_t), dtype=torch.bool)
            flags[self.rogue] = True
            return torch.where(flags.reshape(-1, 1, 1), wild / (1 + sigma**2), clean.denoise(x_t, sigma))

    x_t = torch.randn(8, *EVENT, dtype=torch.float64)
    rogue = Rogue([2, 5]).posterior(obs, method=method, **options)
    tame = Rogue([]).posterior(obs, method=method, **options)
    for sigma in (0.1, 1.0, 10.0):
        evaluation = rogue.evaluate(x_t, torch.tensor(sigma, dtype=torch.float64))
        assert torch.isfinite(evaluation.x_hat).all()
        others = [0, 1, 3, 4, 6, 7]
        assert torch.allclose(evaluation.x_hat[others], tame(x_t, sigma)[others], rtol=1e-12, atol=1e-12)
        if method == "mmps":
            assert evaluation.solution is not None
            assert (evaluation.solution.guards[[2, 5]] >= 1).all()
            assert (evaluation.solution.guards[others] == 0).all()
    if method == "mmps":
        _, statistics = rogue.sample(steps=8, return_stats=True)
        assert (statistics.guards[[2, 5]] >= 1).all()
        assert (statistics.guards[others] == 0).all()


class Counter(nn.Module):
    """A network that counts its forward passes and, through a gradient hook, its vector–Jacobian products."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE).double()
        self.forwards = self.vjps = 0

    def forward(self, x, log_sigma):
        self.forwards += 1
        h = self.linear(x.flatten(1)).reshape(x.shape)
        if h.requires_grad:
            h.register_hook(self._count)
        return h

    def _count(self, gradient):
        self.vjps += 1


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize(("solver", "per_iteration"), [("cg", 1), ("gmres", 1), ("bicgstab", 2)])
def test_one_forward_and_k_vector_jacobian_products(solver, per_iteration, k):
    network = Counter()
    prior, obs = priors.DiffusionPrior(network, EVENT), observations(4)
    evaluation = prior.posterior(obs, solver=solver, iterations=k, guard=False).evaluate(
        torch.randn(4, *EVENT, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    )
    assert (network.forwards, network.vjps) == (1, k * per_iteration)
    assert (evaluation.forwards, evaluation.vjps) == (1, k * per_iteration)


@pytest.mark.parametrize(
    ("method", "vjps"), [("sigma_t", 1), ("identity", 1), ("dps", 1), ("pigdm", 1), ("tmpd", 2), ("diffpir", 0)]
)
def test_products_of_the_other_methods(method, vjps):
    network = Counter()
    prior, obs = priors.DiffusionPrior(network, EVENT), observations(4)
    prior.posterior(obs, method=method)(torch.randn(4, *EVENT, dtype=torch.float64), 0.5)
    assert (network.forwards, network.vjps) == (1, vjps)


def test_statistics_of_a_draw():
    network = Counter()
    prior, obs = priors.DiffusionPrior(network, EVENT), observations(4)
    posterior = prior.posterior(obs, iterations=2)
    x, statistics = posterior.sample(steps=5, return_stats=True)
    assert x.shape == (4, *EVENT)
    assert (statistics.evaluations == 6).all()  # five steps and the last denoising
    assert (statistics.forwards == 6).all()
    assert (statistics.vjps == 12).all()
    assert network.forwards == 6
    assert (statistics.iterations + statistics.guards <= 12).all()
    x, statistics = posterior.sample(draws=3, steps=5, return_stats=True)
    assert x.shape == (3, 4, *EVENT)
    assert statistics.vjps.shape == (3, 4)


def test_draws_of_one_observation_differ_and_the_first_is_the_single_draw():
    prior, obs = network_prior(), observations(4)
    posterior = prior.posterior(obs)
    many = posterior.sample(draws=3, steps=8)
    assert torch.allclose(many[0], posterior.sample(steps=8), atol=1e-12)
    assert (many[0] - many[1]).norm() > 0.1
    assert (posterior.sample(steps=8, seed=1) - many[0]).norm() > 0.1
    assert (posterior.sample(steps=8, lap=1) - many[0]).norm() > 0.1


def test_dropout_is_off_while_drawing_and_on_again_afterwards():
    network = nn.Module()
    network.layer = nn.Linear(SIZE, SIZE).double()
    network.dropout = nn.Dropout(0.5)
    network.forward = lambda x, log_sigma: network.dropout(network.layer(x.flatten(1))).reshape(x.shape)
    prior = priors.DiffusionPrior(network, EVENT).train()
    posterior = prior.posterior(observations(4))
    assert torch.equal(posterior.sample(steps=4), posterior.sample(steps=4))
    assert torch.equal(prior.sample(4, steps=4), prior.sample(4, steps=4))
    assert network.dropout.training


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "mmpss"}, "unknown posterior method 'mmpss'.*mmps"),
        ({"solver": "lu"}, "unknown solver 'lu'.*cg"),
        ({"iterations": 0}, "iterations must be a positive integer, got 0"),
        ({"iterations": True}, "iterations must be a positive integer, got True"),
        ({"guard": "no"}, "guard must be True or False, got 'no'"),
        ({"tolerance": 2.0}, r"tolerance must lie in \(0, 1\), got 2.0"),
        ({"method": "dps", "solver": "cg"}, "'dps' does not take these options.*solver"),
        ({"iteration": 2}, "'iteration': 2}; its options: solver, iterations"),
        ({"method": "exact"}, "MixturePrior"),
    ],
)
def test_bad_options_are_rejected(options, words):
    with pytest.raises(ValueError, match=words):
        network_prior().posterior(observations(2), **options)


def test_bad_data_is_rejected():
    prior, obs = network_prior(), observations(4)
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(3,\)"):
        prior.posterior(Observations(torch.zeros(2, 3, dtype=torch.float64), operators.Identity(), sigma=1.0))
    with pytest.raises(ValueError, match=r"float32.*float64"):
        prior.posterior(obs.to(torch.float32))
    posterior = prior.posterior(obs)
    with pytest.raises(ValueError, match="4 observations, x_t has 3"):
        posterior(torch.zeros(3, *EVENT, dtype=torch.float64), 1.0)
    for sigma in (0.0, -1.0, float("nan"), torch.tensor([1.0, 1.0, 0.0, 1.0])):
        with pytest.raises(ValueError, match="sigma must be positive"):
            posterior(torch.zeros(4, *EVENT, dtype=torch.float64), sigma)
    with pytest.raises(ValueError, match=r"one value per sample, got shape \(3,\) for 4"):
        posterior(torch.zeros(4, *EVENT, dtype=torch.float64), torch.ones(3))
    with pytest.raises(ValueError, match="does not have; pass cov_x"):
        priors.DiffusionPrior(Counter(), EVENT).posterior(obs, method="sigma_x")
    for bad in ({"draws": 0}, {"steps": 0}, {"sampler": "euler"}, {"index": torch.arange(3)}, {"eta": 3.0}):
        with pytest.raises(ValueError, match=r"must be|unknown sampler|must name|does not take"):
            posterior.sample(**bad)


def test_draws_of_systems_that_are_not_solved_cause_a_warning():
    """Frequencies k and −k of a real image are one number: with very different noise, the system is ill-conditioned."""
    generator = torch.Generator().manual_seed(0)
    A = operators.Fourier()
    y = A(torch.randn(4, 6, 8, generator=generator, dtype=torch.float64))
    sigma = 10 ** (-5 * torch.rand(y.shape, generator=generator, dtype=torch.float64))
    cov = random_covariance(48)
    given = priors.GaussianPrior(torch.zeros(6, 8, dtype=torch.float64), cov)
    posterior = given.posterior(Observations(y, A, sigma=sigma), "sigma_x")
    with pytest.warns(ConvergenceWarning, match=r"'\w+': systems of 4 of 4 draws did not converge within 64 iter"):
        posterior.sample(steps=4, sampler="ddim")
    x_t = torch.randn(4, 6, 8, generator=generator, dtype=torch.float64)
    with pytest.warns(ConvergenceWarning, match=r"systems of \d of 4 estimates did not converge"):
        posterior(100 * x_t, 100.0)
    with warnings.catch_warnings():  # the exact posterior takes more iterations
        warnings.simplefilter("error", ConvergenceWarning)
        found = given.posterior(Observations(y, A, sigma=sigma))(x_t, 0.1)
    solved = given.posterior(Observations(y, A, sigma=sigma), "sigma_x", solver="direct")(x_t, 0.1)
    assert torch.allclose(found, solved, atol=1e-7)
    advised = given.posterior(Observations(y, A, sigma=sigma), "mmps", solver="direct")(x_t, 0.1)
    assert torch.allclose(found, advised, atol=1e-7)
    for options in ({"iterations": 3}, {"solver": "direct"}):  # chosen, and solved
        given.posterior(Observations(y, A, sigma=sigma), "sigma_x", **options).sample(steps=4)
