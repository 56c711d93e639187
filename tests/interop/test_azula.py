"""azula's denoisers as priors and our priors as azula's denoisers: noise levels, exact posteriors, round trips."""

import itertools

import pytest
import torch
from torch import nn

from diffem import InputError, Observations, operators, priors
from diffem.nn import MLP

from ..em.small import observations
from ..em.test_conditional_training import conditional_prior
from .gaussian import SIGMA_Y, denoised, exact_posterior, gaussian, relative
from .packages import need

need("azula")

from azula import noise  # noqa: E402
from azula.denoise import Denoiser, DiracPosterior, GaussianDenoiser, KarrasDenoiser, SimpleDenoiser  # noqa: E402
from azula.guidance.mmps import MMPSDenoiser  # noqa: E402
from azula.linalg.covariance import FullCovariance, IsotropicCovariance  # noqa: E402
from azula.sample import DDIMSampler  # noqa: E402

from diffem.interop import azula as interop  # noqa: E402
from diffem.interop.ranges import Range  # noqa: E402

EVENT, SIZE, N = (2, 3), 6, 3
# forward-mode derivatives inside azula make torch script a decomposition, which raises a deprecation warning
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Sloped(noise.Schedule):
    """A schedule that azula does not have; its time is found by bisection."""

    def __call__(self, t):
        return torch.exp(-t), torch.exp(6 * t - 5)


SCHEDULES = {
    "ve": noise.VESchedule(1e-3, 1e2),
    "vp": noise.VPSchedule(),
    "cosine": noise.CosineSchedule(),
    "rectified": noise.RectifiedSchedule(),
    "decay": noise.DecaySchedule(),
    "other": Sloped(),
}
EACH = pytest.mark.parametrize("name", SCHEDULES)


def azula_gaussian(schedule, change=None):
    """The Gaussian of the suite as azula's own analytical denoiser, in azula's scale."""
    change = change or Range()
    prior, cov = gaussian(EVENT)
    values, vectors = torch.linalg.eigh(cov)
    theirs = FullCovariance(vectors.reshape(*EVENT, SIZE), values / change.scale**2)
    return GaussianDenoiser(change.theirs(prior.mean), theirs, schedule), prior, cov


@EACH
def test_times_and_levels_are_inverse(name):
    """A noise level keeps at least twelve digits through float64 times in [0, 1]."""
    schedule = SCHEDULES[name]
    low, high = interop.level_of(schedule, torch.tensor([0.0, 1.0], dtype=torch.float64))
    sigma = torch.logspace(low.log10().item(), high.log10().item(), 201, dtype=torch.float64)[1:-1]
    t = interop.time_of(schedule, sigma)
    assert ((interop.level_of(schedule, t) - sigma).abs() / sigma).max() < 1e-9
    assert (t.diff() > 0).all()
    assert interop.time_of(schedule, low) < 1e-9
    assert interop.time_of(schedule, high) > 1 - 1e-9


@EACH
@pytest.mark.parametrize("change", [Range(), Range.between((-1, 1), (-2, 2))], ids=["same range", "other range"])
def test_a_gaussian_denoiser_is_the_gaussian_prior(name, change):
    """1e-8: azula divides by α_t, as small as 1e-3, and multiplies back."""
    denoiser, exact, cov = azula_gaussian(SCHEDULES[name], change)
    prior = interop.prior(denoiser, mean=exact.mean, range=change)
    x_t = torch.randn(N, *EVENT, dtype=torch.float64)
    levels = torch.tensor([max(0.02, prior.sigma_min), 0.7, min(20.0, prior.sigma_max)], dtype=torch.float64)
    assert relative(prior(x_t, levels), denoised(exact.mean, cov, x_t, levels)) < 1e-8
    for sigma in (prior.sigma_min, 0.7, prior.sigma_max):
        assert relative(prior(x_t, sigma), denoised(exact.mean, cov, x_t, sigma)) < 1e-8


@EACH
def test_converged_mmps_on_it_is_the_exact_posterior(name):
    change = Range.between((-1, 1), (-2, 2))
    denoiser, exact, cov = azula_gaussian(SCHEDULES[name], change)
    prior = interop.prior(denoiser, mean=exact.mean, range=change)
    A = operators.Dense(torch.randn(N, 4, SIZE, dtype=torch.float64), event_shape=EVENT)
    obs = Observations(torch.randn(N, 4, dtype=torch.float64), A, sigma=SIGMA_Y)
    posterior = prior.posterior(obs, iterations=100, tolerance=1e-12)
    for sigma in (0.05, 0.7, 10.0):
        x_t = torch.randn(N, *EVENT, dtype=torch.float64)
        got, expected = posterior(x_t, sigma), exact_posterior(exact.mean, cov, obs, x_t, sigma)
        assert relative(got, expected) < 1e-8
        alone = prior.posterior(obs[1], iterations=100, tolerance=1e-12)(x_t[1:2], sigma)
        assert relative(alone, got[1:2]) < 1e-9


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_azulas_preconditioning_of_our_network_is_our_prior(name, dtype):
    """The same backbone in azula's KarrasDenoiser with any schedule and in our prior: one function, up to rounding."""
    torch.manual_seed(0)
    network = MLP(EVENT, hidden=(32, 32)).to(dtype).requires_grad_(False)
    ours = priors.DiffusionPrior(network)
    theirs = interop.prior(KarrasDenoiser(interop.Backbone(network), SCHEDULES[name]), EVENT)
    x_t = torch.randn(N, *EVENT, dtype=dtype)
    levels = torch.tensor([max(0.01, theirs.sigma_min), 0.5, min(30.0, theirs.sigma_max)], dtype=dtype)
    # times are float64 for any precision of the network: near t = 0 a float32 time does not determine its noise level
    tolerance = 1e-9 if dtype == torch.float64 else 2e-6
    assert relative(theirs(x_t, levels), ours(x_t, levels)) < tolerance
    assert relative(theirs(x_t, 0.5), ours(x_t, 0.5)) < tolerance
    assert theirs(x_t, 0.5).dtype == dtype


@EACH
def test_our_prior_as_an_azula_denoiser(name):
    prior, _ = gaussian(EVENT)
    change, schedule = Range.between((-1, 1), (-2, 2)), SCHEDULES[name]
    denoiser = interop.denoiser(prior, schedule, range=change)
    reference, _, _ = azula_gaussian(schedule, change)
    for t in (0.1, 0.5, 0.95):
        t = torch.tensor(t, dtype=torch.float64)
        alpha_t, sigma_t = schedule(t)
        x_t = alpha_t * torch.randn(N, *EVENT, dtype=torch.float64) + sigma_t * torch.randn(N, *EVENT)
        got = denoiser(x_t, t).mean
        assert relative(got, reference(x_t, t).mean) < 1e-9
        assert relative(denoiser(x_t, t.expand(N)).mean, got) < 1e-12
        assert relative(denoiser(x_t[1:2], t).mean, got[1:2]) < 1e-12


@EACH
@pytest.mark.parametrize("conditioned", [False, True], ids=["prior", "posterior"])
def test_a_conditional_network_as_an_azula_denoiser(name, conditioned):
    """Prior and posterior of one network: azula's call is one forward pass at the noise level of its time."""
    obs = observations(6)
    prior = conditional_prior(obs)
    ours = prior.posterior(obs, method="conditional") if conditioned else prior
    denoiser = interop.denoiser(ours, SCHEDULES[name])
    t = torch.tensor(0.5, dtype=torch.float64)
    alpha_t, sigma_t = SCHEDULES[name](t)
    x_t = torch.randn(6, 4)
    calls = []
    handle = prior.network.register_forward_hook(lambda *_: calls.append(1))
    got = denoiser((alpha_t * x_t).float(), t).mean
    handle.remove()
    assert len(calls) == 1
    assert relative(got, ours(x_t, float(sigma_t / alpha_t))) < 1e-5


@EACH
def test_a_prior_survives_the_way_there_and_back(name):
    prior, _ = gaussian(EVENT)
    change = Range.between((0, 1), (-2, 2))
    back = interop.prior(interop.denoiser(prior, SCHEDULES[name], range=change), mean=prior.mean, range=change)
    x_t = torch.randn(N, *EVENT, dtype=torch.float64)
    levels = torch.tensor([max(0.02, back.sigma_min), 0.5, min(20.0, back.sigma_max)], dtype=torch.float64)
    assert relative(back(x_t, levels), prior(x_t, levels)) < 1e-9


def test_the_default_schedule_has_the_priors_levels():
    prior, _ = gaussian(EVENT)
    denoiser = interop.denoiser(prior)
    back = interop.prior(denoiser, mean=prior.mean)
    assert back.sigma_min == pytest.approx(prior.sigma_min)
    assert back.sigma_max == pytest.approx(prior.sigma_max)


class TestMMPS:
    def setup_method(self):
        self.prior, self.cov = gaussian((SIZE,))
        self.matrix = torch.randn(4, SIZE, dtype=torch.float64)
        self.y = torch.randn(N, 4, dtype=torch.float64)
        self.obs = Observations(self.y, operators.Dense(self.matrix), sigma=SIGMA_Y)
        self.schedule = noise.VPSchedule()

    def azulas(self, denoiser, iterations):
        cov_y = IsotropicCovariance(torch.tensor(SIGMA_Y**2, dtype=torch.float64))
        return MMPSDenoiser(denoiser, self.y, lambda x: x @ self.matrix.T, cov_y, solver="cg", iterations=iterations)

    def test_azulas_mmps_on_our_prior_is_the_exact_posterior(self):
        guided = self.azulas(interop.denoiser(self.prior, self.schedule), 4)
        for t in (0.2, 0.6):
            t = torch.tensor(t, dtype=torch.float64)
            alpha_t, sigma_t = self.schedule(t)
            x_t = alpha_t * torch.randn(N, SIZE, dtype=torch.float64)
            expected = exact_posterior(self.prior.mean, self.cov, self.obs, x_t / alpha_t, float(sigma_t / alpha_t))
            assert relative(guided(x_t, t).mean, expected) < 1e-8

    @pytest.mark.parametrize("iterations", [1, 2, 3])
    def test_truncated_solves_agree_too(self, iterations):
        guided = self.azulas(interop.denoiser(self.prior, self.schedule), iterations)
        ours = interop.denoiser(self.prior.posterior(self.obs, iterations=iterations), self.schedule)
        t = torch.tensor(0.4, dtype=torch.float64)
        x_t = torch.randn(N, SIZE, dtype=torch.float64)
        assert relative(ours(x_t, t).mean, guided(x_t, t).mean) < 1e-10

    def test_azulas_samplers_take_our_posterior(self):
        """Deterministic DDIM by azula and by diffem on the same posterior, with the same start and noise levels."""
        schedule = noise.VESchedule(self.prior.sigma_min, self.prior.sigma_max)
        posterior = self.prior.posterior(self.obs, iterations=50, tolerance=1e-12)
        sampler = DDIMSampler(
            interop.denoiser(posterior, schedule), steps=16, eta=0.0, silent=True, dtype=torch.float64
        )
        start = self.prior.mean + self.prior.sigma_max * torch.randn(N, SIZE, dtype=torch.float64)
        theirs = sampler(start)
        x = start
        sigmas = self.prior.sigmas(16)
        for sigma_t, sigma_s in itertools.pairwise(sigmas):
            x_hat = posterior(x, sigma_t)
            x = x_hat + sigma_s / sigma_t * (x - x_hat)
        assert relative(theirs, x) < 1e-9


class Clipping(Denoiser):
    def __init__(self):
        super().__init__()
        self.schedule, self.clip_mean = noise.VESchedule(), True

    def forward(self, x_t, t):
        return DiracPosterior(x_t.clip(-1, 1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: interop.prior(nn.Identity(), (2,)), "azula denoiser"),
        (lambda: interop.prior(SimpleDenoiser(nn.Identity(), noise.VPSchedule())), "event_shape"),
        (lambda: interop.prior(Clipping(), (2,)), "clips"),
        (lambda: interop.denoiser(nn.Identity()), "prior or posterior"),
        (lambda: interop.prior(azula_gaussian(noise.VPSchedule())[0], EVENT)(torch.zeros(1, *EVENT).double(), 1e5),
         "1e+05|100000"),
        (lambda: interop.denoiser(gaussian(EVENT)[0])(torch.zeros(1, *EVENT), torch.tensor(0.5), label=1), "label"),
    ],
)  # fmt: skip
def test_bad_input_is_rejected(call, words):
    with pytest.raises(InputError, match=words):
        call()
