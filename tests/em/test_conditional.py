"""The conditional E-step: what the network is trained on and asked for, whole runs with it, and what a file of it
holds."""

from __future__ import annotations

import math
import random
import signal
import warnings

import pytest
import torch

import diffem
from diffem import InputError, Observations, operators, priors
from diffem.em.conditioning import Instruments
from diffem.em.maximization import maximization
from diffem.em.start import denoiser_to_train, shown_inputs
from diffem.metrics import coverage
from diffem.nn.networks import make_network
from diffem.observations.information import information_of
from diffem.observations.lazy import stored
from diffem.priors.diffusion import DiffusionPrior
from diffem.priors.family import Family
from diffem.priors.preconditioning import Preconditioning
from diffem.runs.recipe import Train, load_recipe

from ..operators.registry import REGISTRY
from .events import start
from .small import CONDITIONAL, observations
from .test_resume import contents, same

DOUBLE, CPU = torch.float64, torch.device("cpu")


def examples(name: str, n: int = 3) -> tuple[Preconditioning, torch.Tensor, torch.Tensor]:
    """The noise of n pivots at levels of their own, samples and white noise."""
    make, x_shape = REGISTRY[name]
    A, generator = make(n), torch.Generator().manual_seed(3)
    x, z = (torch.randn(n, *x_shape, generator=generator, dtype=DOUBLE) for _ in range(2))
    information = information_of(Observations(A(x), A, sigma=0.3))
    assert information is not None
    return Preconditioning(information, torch.tensor([0.01, 0.7, 40.0], dtype=DOUBLE)), x, z


@pytest.mark.parametrize("name", REGISTRY)
def test_the_target_is_what_makes_the_denoiser_right(name: str) -> None:
    """A network that returns the target denoises m = x + C^½ z to x, and errors are weighed by √λ (D − x)."""
    noise, x, z = examples(name)
    m, target = noise.corrupt(x, z), noise.target(x, z)
    torch.testing.assert_close(noise.output(m, target), x, rtol=1e-9, atol=1e-9)
    h = torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=DOUBLE)
    weight = (1 / noise.level**2 + 1).sqrt().reshape(-1, *(1,) * (x.ndim - 1))
    torch.testing.assert_close(noise.weigh(h - target), weight * (noise.output(m, h) - x), rtol=1e-7, atol=1e-7)


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
    instruments = Instruments(stored(obs), 0.7, CPU)
    settings = {"kind": "mlp", "hidden": [32, 32], "embedding": 16}
    settings["shown"] = shown_inputs(settings, instruments.family, obs.x_shape)
    torch.manual_seed(seed)
    network = make_network("mlp", obs.x_shape, {k: v for k, v in settings.items() if k != "kind"})
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return DiffusionPrior(
        network, event_shape=obs.x_shape, settings=settings, scale=0.7, family=instruments.family
    ).requires_grad_(False)


def test_without_measurements_it_is_the_ordinary_prior() -> None:
    obs = observations(6)
    prior, x_t = conditional_prior(obs), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    information = information_of(obs)
    nothing = information.with_tensors({"gains": torch.zeros(6, 4)})
    for sigma in (0.01, 1.0, 30.0):
        level = torch.tensor(sigma)
        torch.testing.assert_close(
            prior.denoise_pivot(x_t, level, nothing), prior(x_t, sigma), rtol=1e-5, atol=1e-5 * max(sigma, 1)
        )


def test_one_forward_and_no_vjp_per_evaluation() -> None:
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


def test_the_description_starts_without_effect_and_weights_of_a_prior_are_kept() -> None:
    obs = observations(40)
    settings = {"kind": "mlp", "hidden": [16], "embedding": 8}
    torch.manual_seed(1)
    network = make_network("mlp", (4,), {"hidden": [16], "embedding": 8})
    prior = DiffusionPrior(network, event_shape=(4,), settings=settings).eval()
    gaussian = priors.GaussianPrior(torch.zeros(4), torch.eye(4))
    family = Instruments(stored(obs), gaussian.scale, CPU).family
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
def test_a_trained_network_is_the_posterior_of_a_gaussian(
    draws: int, steps: int, width: int, drawn_each: int, error: float
) -> None:
    """Trained on exact draws of a Gaussian over 16 numbers, half of them measured: means and intervals of new
    observations."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    gaussian, x, obs = gaussian_problem(draws, generator)
    instruments = Instruments(stored(obs), gaussian.scale, CPU)
    settings = {"kind": "mlp", "hidden": [width] * 3, "embedding": 32}
    settings["shown"] = shown_inputs(settings, instruments.family, (16,))
    torch.manual_seed(0)
    network = make_network("mlp", (16,), {name: value for name, value in settings.items() if name != "kind"})
    scale = gaussian.scale
    prior = DiffusionPrior(
        network, mean=gaussian.mean, scale=scale, sigma_min=0.01 * scale, sigma_max=30 * scale, settings=settings,
        family=instruments.family,
    )  # fmt: skip
    noise = {"law": "lognormal", "mean": 0.0, "std": 1.6}
    options = Train(steps=steps, batch=256, lr=2e-3, ema=0.998, noise=noise, conditioned=0.7)
    maximization(prior, x, options, steps=steps, seed=0, lap=1, progress=False, instruments=instruments)
    _, truth, new = gaussian_problem(128, torch.Generator().manual_seed(9))
    posterior = prior.posterior(new)
    assert posterior.method == "conditional"
    drawn = posterior.sample(drawn_each, steps=48, progress=False)
    exact = gaussian.posterior_mean(new)
    # the mean of 256 draws has an error of its own, of 2 % here, that of 64 twice as much; what is left is how far the
    # training has come
    assert float((drawn.mean(0) - exact).norm() / exact.norm()) < error
    assert 0.87 <= float(coverage(drawn, truth)) <= 0.93


def test_examples_are_shown_with_operators_of_other_observations() -> None:
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


def test_shown_operators_are_the_observations_own() -> None:
    obs = observations(30)
    instruments = Instruments(stored(obs), 0.5, CPU)
    rows = torch.tensor([4, -1, 29])
    gains = instruments[rows].gains
    expected = information_of(obs).scaled(0.5).gains[[4, 0, 29]]
    expected[1] = 0
    assert torch.equal(gains, expected)


@pytest.mark.parametrize(
    "phases", [("002 M",), pytest.param(("001 M", "002 E", "002 M", "002 saving"), marks=pytest.mark.slow)]
)
def test_kills_at_random_instants_with_an_optimizer_that_lives_on(phases: tuple[str, ...], tmp_path) -> None:
    """SIGKILL in E, in M and while a lap is saved; resumed, the run ends with the same weights and draws."""
    reference = tmp_path / "undisturbed"
    code, events, errors = start(reference, recipe="CONDITIONAL").communicate()
    assert code == 0, errors
    lines, rng, out = events.splitlines(), random.Random(5), tmp_path / "killed"
    for where in phases:
        code, _, errors = start(
            out, "kill", where, rng.randint(1, lines.count(where)), recipe="CONDITIONAL"
        ).communicate()
        assert code == -signal.SIGKILL, (where, errors)
    code, _, errors = start(out, recipe="CONDITIONAL").communicate()
    assert code == 0, errors
    assert same(contents(out), contents(reference))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> diffem.Run:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "conditional"
    return diffem.fit(
        observations(), {**CONDITIONAL, "train": {**CONDITIONAL["train"], "steps": 40}}, out, progress=False
    )


def test_a_run_with_it_measures_itself(run: diffem.Run) -> None:
    for lap in run.laps[1:]:
        assert len(lap["predictive_each"]) == 16  # every held-out observation
        assert math.isfinite(lap["predictive_log_likelihood"])
        # draws explain what they were conditioned on: 16 observations of about 3 values, χ² within a factor of 3
        assert 1 / 3 < lap["heldout_chi2"] / lap["expected_chi2"] < 3


def test_the_last_stage_changes_only_its_laps(run: diffem.Run) -> None:
    assert [lap["steps"] for lap in run.laps[1:]] == [40, 48]
    # the last one is kept: more laps may follow
    assert [file.parent.name for file in run.path.glob("laps/*/optimizer.safetensors")] == ["002"]


def test_the_prior_chooses_the_method_by_what_it_was_trained_for(run: diffem.Run) -> None:
    prior = run.prior
    assert isinstance(prior, DiffusionPrior)
    assert prior.posterior(observations(8)).method == "conditional"
    assert prior.posterior(observations(8), iterations=2).method == "mmps"
    noisy = Observations(observations(8).y, observations(8).A, sigma=3.0)
    assert prior.posterior(noisy).method == "mmps"
    with pytest.warns(UserWarning, match="share of x is .* trained for"):
        prior.posterior(noisy, method="conditional")
    dense = Observations(torch.zeros(2, 3), operators.Dense(torch.randn(3, 4)), sigma=0.1)
    assert prior.posterior(dense).method == "mmps"
    with pytest.raises(InputError, match="trained for Mask"):
        prior.posterior(dense, method="conditional")
    whole = Observations(torch.zeros(2, 4), operators.Identity(), sigma=0.1)
    assert prior.posterior(whole).method == "exact"
    with pytest.raises(InputError, match="tds"):
        prior.posterior(observations(8)).sample(sampler="tds")


def test_a_prior_without_a_conditional_network_is_refused() -> None:
    network = make_network("mlp", (4,), {"hidden": [8]})
    with pytest.raises(InputError, match="needs a prior with a conditional network"):
        DiffusionPrior(network, event_shape=(4,)).posterior(observations(4), method="conditional")


def test_files_keep_the_family(run: diffem.Run, tmp_path) -> None:
    from diffem.em import exports as hub

    prior = run.prior
    assert isinstance(prior, DiffusionPrior)
    assert prior.family == Family.read(prior.family.note())
    hub.export_run(run.path, tmp_path / "export")
    loaded = hub.load(tmp_path / "export")
    assert "of its training: Mask" in (tmp_path / "export" / "README.md").read_text()
    assert loaded.family == prior.family
    obs = observations(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(loaded.posterior(obs).sample(steps=6), prior.posterior(obs).sample(steps=6))


def test_it_can_be_made_an_ordinary_prior(run: diffem.Run, tmp_path) -> None:
    from diffem.priors.files import load_prior, save_prior

    prior = run.prior
    assert isinstance(prior, DiffusionPrior)
    save_prior(prior.ordinary(), tmp_path / "prior.safetensors")
    ordinary = load_prior(tmp_path / "prior.safetensors")
    assert isinstance(ordinary, DiffusionPrior)
    assert ordinary.family is None
    assert "shown" not in dict(ordinary.network.named_parameters())
    x_t = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ordinary(x_t, 0.7), prior(x_t, 0.7))
    assert ordinary.ordinary() is ordinary


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"description": "eval"}, "damaged"),
        ({"share": [0.5, 0.1]}, "share"),
        ({"noise": "x"}, "damaged"),
        ({"unknown": 1}, "damaged"),
    ],
)
def test_a_damaged_family_is_refused(change: dict[str, object], words: str) -> None:
    note = Instruments(stored(observations(8)), 1.0, CPU).family.note()
    with pytest.raises(InputError, match=words):
        Family.read({**note, **change})


def test_channels_that_are_deleted_together_are_described_by_one_number_per_pixel() -> None:
    mask = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    obs = Observations(torch.zeros(6, 3, 4, 4), operators.Mask(mask), sigma=0.1)
    instruments = Instruments(stored(obs), 1.0, CPU)
    assert (instruments.family.description, instruments.family.shape) == ("pixels", (4, 4, 4))
    shown = instruments.family.describe(instruments[torch.arange(6)], torch.ones(6, 3, 4, 4), torch.full((6,), 1e3))
    torch.testing.assert_close(shown, mask.expand(6, 4, 4, 4).float(), rtol=0, atol=1e-6)
    apart = Observations(
        torch.zeros(6, 3, 4, 4),
        operators.Mask(mask.expand(6, 3, 4, 4) & (torch.arange(3) > 0)[:, None, None]),
        sigma=0.1,
    )
    assert instruments.family.impossible(information_of(apart)) is not None


def test_stages_are_checked_with_the_recipe() -> None:
    recipe = load_recipe({**CONDITIONAL, "stages": [{"lap": 2, "train": {"steps": 7, "noise": {"law": "lognormal"}}}]})
    assert (recipe.at(1).train.steps, recipe.at(2).train.steps, recipe.at(9).train.noise.law) == (272, 7, "lognormal")
    for stages, words in (
        ([{"lap": 2, "train": {"stepz": 7}}], "stepz"),
        ([{"lap": 2, "train": {"steps": 0}}], "steps"),
        ([{"lap": 3}, {"lap": 2}], "increase"),
        ([{"lap": 2, "e_step": {"shard": 7}}], "shard"),
    ):
        with pytest.raises(InputError, match=words):
            load_recipe({**CONDITIONAL, "stages": stages})


def test_a_run_with_operators_known_by_products(tmp_path) -> None:
    """Images too large for eigenvectors, halved in size: trained on simulated measurements, bit-identical each time."""
    generator = torch.Generator().manual_seed(0)
    A = operators.Downsample(2)
    y = A(torch.randn(12, 1, 18, 18, generator=generator))
    obs = Observations(y + 0.1 * torch.randn(y.shape, generator=generator), A, sigma=0.1)
    recipe = {
        **CONDITIONAL,
        "laps": 1,
        "stages": [],
        "network": {"kind": "mlp", "hidden": [16], "embedding": 8},
        "gaussian": {"rank": 4, "rounds": 2},
        "e_step": {**CONDITIONAL["e_step"], "steps": 4},
        "train": {**CONDITIONAL["train"], "steps": 6, "first_steps": 6, "batch": 4},
        "watch": {"held_out": 4, "samples": 2, "draws": 2},
    }
    runs = [diffem.fit(obs, recipe, tmp_path / name, progress=False) for name in ("once", "again")]
    prior = runs[0].prior
    assert isinstance(prior, DiffusionPrior)
    assert prior.family is not None
    assert (prior.family.basis, prior.family.description) == ("products with Downsample", "correction")
    posterior = prior.posterior(obs[:3])
    assert posterior.method == "conditional"
    draws, stats = posterior.sample(steps=6, return_stats=True)
    assert (stats.forwards == 7).all()
    assert (stats.vjps == 0).all()
    assert torch.isfinite(draws).all()
    again = runs[1].prior.posterior(obs[:3]).sample(steps=6)
    assert torch.equal(again, draws)


def test_a_run_on_blurred_images_predicts_values_that_were_hidden(tmp_path) -> None:
    """A blur of which some values are hidden is not diagonal in frequencies: they are predicted with mmps."""
    generator = torch.Generator().manual_seed(0)
    A = operators.Blur(torch.full((3, 3), 1 / 9), "circular")
    y = A(torch.randn(40, 5, 6, generator=generator))
    obs = Observations(y + 0.1 * torch.randn(y.shape, generator=generator), A, sigma=0.1)
    recipe = {**CONDITIONAL, "laps": 1, "stages": [], "watch": {"held_out": 8, "samples": 4, "draws": 2}}
    run = diffem.fit(obs, recipe, tmp_path / "run", progress=False)
    assert math.isfinite(run.laps[1]["predictive_log_likelihood"])
    assert run.prior.posterior(obs[:2]).method == "conditional"


@pytest.mark.parametrize("event", [(6, 7), (2, 8, 8), (3, 5, 6)])
def test_unets_of_any_size_are_told_what_was_measured(event: tuple[int, ...]) -> None:
    """Images with and without channels, framed and not: the description reaches the first convolution."""
    mask = torch.rand(5, *event, generator=torch.Generator().manual_seed(0)) < 0.5
    obs = Observations(
        torch.randn(5, *event, generator=torch.Generator().manual_seed(1)), operators.Mask(mask), sigma=0.1
    )
    gaussian = priors.GaussianPrior(torch.zeros(event), torch.eye(mask[0].numel()))
    family = Instruments(stored(obs), gaussian.scale, CPU).family
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
