"""The conditional network: its preconditioning, inputs and training."""

from __future__ import annotations

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.conditioning import TrainingOperators
from diffem.em.maximization import maximization
from diffem.em.start import denoiser_to_train, shown_inputs
from diffem.metrics import coverage
from diffem.nn.networks import make_network
from diffem.observations.information import information_of
from diffem.observations.lazy import as_lazy
from diffem.priors.diffusion import DiffusionPrior
from diffem.priors.preconditioning import Preconditioning
from diffem.runs.recipe import Train, load_recipe

from ..operators.registry import REGISTRY
from .small import CONDITIONAL, observations

DOUBLE, CPU = torch.float64, torch.device("cpu")


def examples(name: str, n: int = 3) -> tuple[Preconditioning, torch.Tensor, torch.Tensor]:
    """The noise of n pivots with different noise levels, samples, and white noise."""
    make, x_shape = REGISTRY[name]
    A, generator = make(n), torch.Generator().manual_seed(3)
    x, z = (torch.randn(n, *x_shape, generator=generator, dtype=DOUBLE) for _ in range(2))
    information = information_of(Observations(A(x), A, sigma=0.3))
    assert information is not None
    return Preconditioning(information, torch.tensor([0.01, 0.7, 40.0], dtype=DOUBLE)), x, z


@pytest.mark.parametrize("name", REGISTRY)
def test_a_network_that_returns_the_target_denoises_exactly(name: str) -> None:
    """A network that returns the target denoises m = x + C^½ z to x, and errors are weighed by √λ (D − x)."""
    noise, x, z = examples(name)
    m, target = noise.corrupt(x, z), noise.target(x, z)
    torch.testing.assert_close(noise.output(m, target), x, rtol=1e-9, atol=1e-9)
    h = torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=DOUBLE)
    weight = (1 / noise.level**2 + 1).sqrt().reshape(-1, *(1,) * (x.ndim - 1))
    torch.testing.assert_close(noise.weighted(h - target), weight * (noise.output(m, h) - x), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["mask each", "fourier each, two channels", "dense each"])
def test_inputs_and_targets_have_unit_size(name: str) -> None:
    """For x of unit variance both are white, whatever was measured."""
    noise, x, z = examples(name)
    generator = torch.Generator().manual_seed(5)
    squares = torch.zeros(2, *x.shape, dtype=DOUBLE)
    for _ in range(2000):
        x, z = (torch.randn(x.shape, generator=generator, dtype=DOUBLE) for _ in range(2))
        squares += torch.stack([noise.input(noise.corrupt(x, z)), noise.target(x, z)]).square() / 2000
    # 2,000 squares have a mean within 5 standard errors of √(2/2000)
    torch.testing.assert_close(squares, torch.ones_like(squares), rtol=0, atol=5 * (2 / 2000) ** 0.5)


def conditional_prior(obs: Observations, seed: int = 0) -> DiffusionPrior:
    """An untrained conditional network whose weights are all random, those of the description too."""
    conditioning = TrainingOperators(as_lazy(obs), 0.7, CPU)
    settings = {"kind": "mlp", "hidden": [32, 32], "embedding": 16}
    settings["shown"] = shown_inputs(settings, conditioning.family, obs.x_shape)
    torch.manual_seed(seed)
    network = make_network("mlp", obs.x_shape, {k: v for k, v in settings.items() if k != "kind"})
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return DiffusionPrior(
        network, event_shape=obs.x_shape, settings=settings, scale=0.7, family=conditioning.family
    ).requires_grad_(False)


@pytest.mark.parametrize("together", [1, 2, 6])
def test_every_example_has_the_operator_of_its_observation(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations of several megabytes are read one by one; each has its own mask all the same."""
    monkeypatch.setattr("diffem.observations.batches.scanned_together", lambda obs: together)
    obs = observations(6)
    conditioning = TrainingOperators(as_lazy(obs), 0.7, CPU)
    assert conditioning.resident
    others = torch.tensor([4, 0, -1, 5])
    gains = conditioning[others].tensors()["gains"]
    expected = information_of(obs).scaled(0.7).tensors()["gains"][others] * (others >= 0).unsqueeze(1)
    torch.testing.assert_close(gains, expected, rtol=0, atol=0)  # taken, not computed again


def test_without_measurements_the_conditional_network_is_the_ordinary_prior() -> None:
    obs = observations(6)
    prior, x_t = conditional_prior(obs), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    information = information_of(obs)
    nothing = information.with_tensors({"gains": torch.zeros(6, 4)})
    for sigma in (0.01, 1.0, 30.0):
        level = torch.tensor(sigma)
        torch.testing.assert_close(
            prior.denoise_pivot(x_t, level, nothing), prior(x_t, sigma), rtol=1e-5, atol=1e-5 * max(sigma, 1)
        )


def test_an_evaluation_takes_one_forward_pass_and_no_vjp() -> None:
    obs = observations(6)
    prior = conditional_prior(obs)
    calls = []
    prior.network.register_forward_hook(lambda module, inputs, output: calls.append(output.requires_grad))
    for sampler, evaluations in (("ddpm2", 9), ("heun", 17)):
        calls.clear()
        _, stats = prior.posterior(obs, method="conditional").sample(
            steps=8, sampler=sampler, seed=1, return_stats=True
        )
        assert calls == [False] * evaluations
        assert (stats.forwards == evaluations).all()
        assert (stats.vjps == 0).all()


def test_new_inputs_start_without_effect_and_keep_the_weights_of_the_prior() -> None:
    obs = observations(40)
    settings = {"kind": "mlp", "hidden": [16], "embedding": 8}
    torch.manual_seed(1)
    network = make_network("mlp", (4,), {"hidden": [16], "embedding": 8})
    prior = DiffusionPrior(network, event_shape=(4,), settings=settings).eval()
    gaussian = priors.GaussianPrior(torch.zeros(4), torch.eye(4))
    family = TrainingOperators(as_lazy(obs), gaussian.scale, CPU).family
    extended = denoiser_to_train(prior, gaussian, load_recipe(CONDITIONAL), family).eval()
    assert extended.settings["shown"] == 8
    x, log_sigma = torch.randn(3, 4), torch.zeros(3)
    expected = network(x, log_sigma)
    assert torch.equal(extended.network(x, log_sigma), expected)
    assert torch.equal(extended.network(x, log_sigma, torch.randn(3, 8)), expected)


def gaussian_problem(n: int, generator: torch.Generator) -> tuple[priors.GaussianPrior, torch.Tensor, Observations]:
    place = torch.arange(16.0)
    cov = torch.exp(-((place[:, None] - place[None]) ** 2) / 8) + 0.05 * torch.eye(16)
    prior = priors.GaussianPrior(torch.linspace(-1, 1, 16), cov)
    x = prior.exact_sample(torch.randn(n, 16, generator=generator))
    mask = torch.rand(n, 16, generator=generator) < 0.5
    mask[:, 0] = True
    y = torch.where(mask, x + 0.2 * torch.randn(n, 16, generator=generator), torch.nan)
    return prior, x, Observations(y, operators.Mask(mask), sigma=0.2)


@pytest.mark.parametrize(
    ("draws", "steps", "width", "drawn_each", "error"),
    [(8192, 1500, 128, 64, 0.2), pytest.param(131072, 12000, 256, 256, 0.05, marks=pytest.mark.slow)],
)
def test_a_trained_network_draws_from_the_posterior_of_a_gaussian(
    draws: int, steps: int, width: int, drawn_each: int, error: float
) -> None:
    """Trained on exact draws of a Gaussian over 16 numbers, half of them measured: means and intervals of new
    observations."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    gaussian, x, obs = gaussian_problem(draws, generator)
    conditioning = TrainingOperators(as_lazy(obs), gaussian.scale, CPU)
    settings = {"kind": "mlp", "hidden": [width] * 3, "embedding": 32}
    settings["shown"] = shown_inputs(settings, conditioning.family, (16,))
    torch.manual_seed(0)
    network = make_network("mlp", (16,), {name: value for name, value in settings.items() if name != "kind"})
    scale = gaussian.scale
    prior = DiffusionPrior(
        network, mean=gaussian.mean, scale=scale, sigma_min=0.01 * scale, sigma_max=30 * scale, settings=settings,
        family=conditioning.family,
    )  # fmt: skip
    noise = {"law": "lognormal", "mean": 0.0, "std": 1.6}
    options = Train(steps=steps, batch=256, lr=2e-3, ema=0.998, noise=noise, conditioned=0.7)
    maximization(prior, x, options, steps=steps, seed=0, lap=1, progress=False, conditioning=conditioning)
    _, truth, new = gaussian_problem(128, torch.Generator().manual_seed(9))
    posterior = prior.posterior(new)
    assert posterior.method == "conditional"
    drawn = posterior.sample(drawn_each, steps=48, progress=False)
    exact = gaussian.posterior_mean(new)
    # the mean of 256 draws has an error of its own, of 2 % here, that of 64 twice as much; what is left is how far the
    # training has come
    assert float((drawn.mean(0) - exact).norm() / exact.norm()) < error
    assert 0.87 <= float(coverage(drawn, truth)) <= 0.93


def test_examples_use_operators_of_other_observations() -> None:
    """Every observation's operator comes up, in the share of the examples that the recipe names; the others are shown
    nothing."""
    from diffem.core.randomness import Stream
    from diffem.em.augment import Augment
    from diffem.em.examples import Examples
    from diffem.em.noise_law import noise_law
    from diffem.runs.recipe import Noise

    law, stream = noise_law(Noise(), 0.01, 10.0), Stream(0, "training", 1)
    made = Examples(torch.zeros(50, 4), 40, law, Augment([], (4,)), stream, conditioned=0.3, observations=20)
    others = made.block(0, 100)[4].flatten()
    # 4,000 examples: the share has a standard error of .007
    assert abs(float((others >= 0).double().mean()) - 0.3) < 0.03
    assert others[others >= 0].unique().tolist() == list(range(20))
    assert torch.equal(made.block(7, 1)[4][0], made.block(0, 100)[4][7])


def test_operators_are_those_of_the_selected_observations() -> None:
    obs = observations(30)
    conditioning = TrainingOperators(as_lazy(obs), 0.5, CPU)
    rows = torch.tensor([4, -1, 29])
    gains = conditioning[rows].gains
    expected = information_of(obs).scaled(0.5).gains[[4, 0, 29]]
    expected[1] = 0
    assert torch.equal(gains, expected)


@pytest.mark.parametrize("event", [(6, 7), (2, 8, 8), (3, 5, 6)])
def test_the_description_reaches_unets_of_any_size(event: tuple[int, ...]) -> None:
    """Images with and without channels, padded and not: the description reaches the first convolution."""
    mask = torch.rand(5, *event, generator=torch.Generator().manual_seed(0)) < 0.5
    obs = Observations(
        torch.randn(5, *event, generator=torch.Generator().manual_seed(1)), operators.Mask(mask), sigma=0.1
    )
    gaussian = priors.GaussianPrior(torch.zeros(event), torch.eye(mask[0].numel()))
    family = TrainingOperators(as_lazy(obs), gaussian.scale, CPU).family
    network = {"kind": "unet", "hidden": [4, 8], "blocks": 1, "embedding": 8}
    prior = denoiser_to_train(gaussian, gaussian, load_recipe({**CONDITIONAL, "network": network}), family).eval()
    before = prior.posterior(obs, method="conditional")(torch.zeros(5, *event), 1.0)
    with torch.no_grad():
        for name, weight in prior.network.named_parameters():
            if name.endswith("shown"):
                weight.add_(1.0)
    after = prior.posterior(obs, method="conditional")(torch.zeros(5, *event), 1.0)
    assert before.shape == after.shape == (5, *event)
    assert not torch.allclose(before, after)
