"""diffusers' models as priors: agreement with their own schedulers, and exact posteriors at any noise level."""

import pytest
import torch
from torch import nn

from diffem import InputError, Observations, operators

from .gaussian import SIGMA_Y, denoised, exact_posterior, gaussian, relative
from .packages import need

diffusers = need("diffusers")

from diffem.interop import diffusers as interop  # noqa: E402
from diffem.interop.ranges import Range  # noqa: E402

N, EVENT = 3, (1, 8, 8)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def unet(out_channels=1):
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=out_channels,
        layers_per_block=1,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=4,
    )
    return model.double().eval().requires_grad_(False)


PREDICTIONS = ["epsilon", "sample", "v_prediction"]


class ExactNetwork(nn.Module):
    """The exact network of a Gaussian: its output is computed from E[u | u_t], independently for each parametrisation.

    `level(time)` returns σ; `scale(σ)` is the factor of the network's input; `output(u_t, σ, x̂)` is the network's
    output.
    """

    def __init__(self, mean, cov, level, scale, output):
        super().__init__()
        self.register_buffer("mean", mean)
        self.cov, self.level, self.scale, self.output = cov, level, scale, output

    def forward(self, u, time):
        sigma = self.level(time)
        shape = (-1, *(1,) * (u.ndim - 1))
        u_t = u / self.scale(sigma).reshape(shape)
        return (self.output(u_t, sigma.reshape(shape), denoised(self.mean, self.cov, u_t, sigma)),)


def interpolated(scheduler):
    alpha_bar = scheduler.alphas_cumprod.double()
    table = ((1 - alpha_bar) / alpha_bar).sqrt().log()

    def level(step):
        i = step.floor().clamp(0, len(table) - 2).long()
        return torch.lerp(table[i], table[i + 1], step - i).exp()

    return level


def vp_output(kind):
    return {
        "epsilon": lambda u_t, s, x_hat: (u_t - x_hat) / s,
        "sample": lambda u_t, s, x_hat: x_hat,
        "v_prediction": lambda u_t, s, x_hat: ((u_t - x_hat) / s - s * x_hat) / (1 + s**2).sqrt(),
    }[kind]


def exact(name, mean, cov):
    """An exact network and the scheduler it belongs to."""
    if name.startswith("vp"):
        kind = name.removeprefix("vp ")
        scheduler = diffusers.DDPMScheduler(prediction_type=kind)
        rsqrt = lambda s: torch.rsqrt(1 + s**2)  # noqa: E731
        return ExactNetwork(mean, cov, interpolated(scheduler), rsqrt, vp_output(kind)), scheduler
    if name == "edm":
        scheduler = diffusers.EDMEulerScheduler(sigma_min=0.002, sigma_max=80.0, sigma_data=0.5)
        d = 0.5

        def output(u_t, s, x_hat):
            return (x_hat - d**2 / (s**2 + d**2) * u_t) * (s**2 + d**2).sqrt() / (s * d)

        return (
            ExactNetwork(mean, cov, lambda t: (4 * t).exp(), lambda s: (s**2 + d**2).rsqrt(), output),
            scheduler,
        )
    if name == "score":
        scheduler = diffusers.ScoreSdeVeScheduler(sigma_min=0.01, sigma_max=50.0)
        return (
            ExactNetwork(mean, cov, lambda t: t, torch.ones_like, lambda u_t, s, x_hat: (x_hat - u_t) / s**2),
            scheduler,
        )
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    return (
        ExactNetwork(
            mean,
            cov,
            lambda t: (t / 1000) / (1 - t / 1000),
            lambda s: 1 / (1 + s),
            lambda u_t, s, x_hat: (u_t - x_hat) / s - x_hat,  # z − u
        ),
        scheduler,
    )


EXACT = [*(f"vp {kind}" for kind in PREDICTIONS), "edm", "score", "flow"]


@pytest.mark.parametrize("kind", PREDICTIONS)
@pytest.mark.parametrize("betas", ["linear", "squaredcos_cap_v2", "scaled_linear"])
def test_it_equals_the_schedulers_estimate_at_every_training_step(kind, betas):
    """`pred_original_sample` of diffusers' DDPM scheduler, which computes with float32 ᾱ."""
    model = unet()
    scheduler = diffusers.DDPMScheduler(beta_schedule=betas, prediction_type=kind, clip_sample=False)
    prior = interop.prior(model, scheduler)
    assert prior.event_shape == EVENT
    for step in (0, 1, 250, 731, 990):
        alpha_bar = scheduler.alphas_cumprod[step].double()
        sample = torch.randn(N, *EVENT, dtype=torch.float64)
        expected = scheduler.step(model(sample, step).sample, step, sample).pred_original_sample
        got = prior(sample / alpha_bar.sqrt(), float(((1 - alpha_bar) / alpha_bar).sqrt()))
        # at the last steps 1/√ᾱ magnifies the float32 rounding of ᾱ in the scheduler
        assert relative(got, expected) < 2e-6


def test_nothing_is_clipped():
    scheduler = diffusers.DDPMScheduler(clip_sample=True, thresholding=False)
    prior = interop.prior(unet(), scheduler)
    assert prior(100 * torch.ones(1, *EVENT, dtype=torch.float64), 0.02).abs().max() > 50


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
def test_edm_preconditioning_is_the_schedulers(kind):
    scheduler = diffusers.EDMEulerScheduler(prediction_type=kind)
    model = unet()
    prior = interop.prior(model, scheduler)
    u_t = torch.randn(N, *EVENT, dtype=torch.float64)
    for sigma in (0.01, 0.7, 60.0):
        sigma = torch.tensor(sigma, dtype=torch.float64)
        out = model(scheduler.precondition_inputs(u_t, sigma), scheduler.precondition_noise(sigma)).sample
        assert relative(prior(u_t, sigma), scheduler.precondition_outputs(u_t, out, sigma)) < 1e-7  # times in float32


def test_a_flow_step_to_noise_level_zero_gives_the_estimate():
    model = unet()
    prior = interop.prior(model, diffusers.FlowMatchEulerDiscreteScheduler())
    for s in (0.1, 0.5, 0.9):
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        scheduler.set_timesteps(sigmas=[s])
        sample = torch.randn(N, *EVENT, dtype=torch.float64)
        (time,) = scheduler.timesteps
        expected = scheduler.step(model(sample, time.double()).sample, time, sample).prev_sample
        assert (
            relative(prior(sample / (1 - s), s / (1 - s)), expected.double()) < 1e-6
        )  # the scheduler works in float32


def test_a_learned_variance_is_left_out():
    model = unet(out_channels=2)
    prior = interop.prior(model, diffusers.DDPMScheduler())
    u_t = torch.randn(N, *EVENT, dtype=torch.float64)
    sigma = float(prior.read.log_sigma[500].exp())
    scale = (1 + sigma**2) ** -0.5
    out = model(scale * u_t, 500).sample[:, :1]
    assert relative(prior(u_t, sigma), u_t - sigma * out) < 1e-6


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("change", [Range(), Range.between((-1, 1), (-2, 2))], ids=["same range", "other range"])
def test_exact_posterior_through_the_adapter(name, change):
    """Between training steps too. 1e-8 is the solver's tolerance times the condition number."""
    event = (1, 2, 3)
    ours, cov = gaussian(event)
    network, scheduler = exact(name, change.theirs(ours.mean), cov / change.scale**2)
    prior = interop.prior(network, scheduler, mean=ours.mean, range=change)
    x_t = torch.randn(N, *event, dtype=torch.float64)
    levels = torch.tensor([max(0.03, prior.sigma_min), 0.7, min(9.0, prior.sigma_max)], dtype=torch.float64)
    assert relative(prior(x_t, levels), denoised(ours.mean, cov, x_t, levels)) < 1e-8
    A = operators.Dense(torch.randn(N, 4, 6, dtype=torch.float64), event_shape=event)
    obs = Observations(torch.randn(N, 4, dtype=torch.float64), A, sigma=SIGMA_Y)
    posterior = prior.posterior(obs, iterations=100, tolerance=1e-12)
    for sigma in (0.05, 0.7, 9.0):
        got = posterior(x_t, sigma)
        assert relative(got, exact_posterior(ours.mean, cov, obs, x_t, sigma)) < 1e-7
        alone = prior.posterior(obs[1], iterations=100, tolerance=1e-12)(x_t[1:2], sigma)
        assert relative(alone, got[1:2]) < 1e-8


def test_a_schedule_that_ends_in_pure_noise_ends_one_step_earlier():
    scheduler = diffusers.DDPMScheduler(rescale_betas_zero_snr=True)
    prior = interop.prior(unet(), scheduler)
    last = scheduler.alphas_cumprod[scheduler.alphas_cumprod > 0][-1].double()
    assert prior.sigma_max == pytest.approx(float(((1 - last) / last).sqrt()))


def test_the_folder_of_a_pipeline_is_loaded(tmp_path):
    model, scheduler = unet(), diffusers.DDPMScheduler(prediction_type="v_prediction")
    model.save_pretrained(tmp_path / "unet")
    scheduler.save_pretrained(tmp_path / "scheduler")
    prior = interop.load(tmp_path)
    x_t = torch.randn(N, *EVENT)
    assert relative(prior(x_t, 0.5).double(), interop.prior(model, scheduler)(x_t.double(), 0.5)) < 1e-5
    with pytest.raises(InputError, match="pipeline"):
        interop.load(tmp_path / "unet")


class ConditionFreeScheduler:
    config = None


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: interop.prior(lambda x, t: x, diffusers.DDPMScheduler(), EVENT), "torch.nn.Module"),
        (lambda: interop.prior(nn.Identity(), diffusers.DDPMScheduler()), "event_shape"),
        (lambda: interop.prior(unet(), ConditionFreeScheduler()), "scheduler"),
        (
            lambda: interop.prior(unet(), diffusers.DDPMScheduler())(torch.zeros(1, *EVENT).double(), 1e4),
            "noise levels",
        ),
    ],
)
def test_bad_input_is_rejected(call, words):
    with pytest.raises(InputError, match=words):
        call()
