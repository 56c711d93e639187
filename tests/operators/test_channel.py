"""Channels: unusable functions are refused by name, parameters follow their observations, and functions that need
y = A x + e raise an error that states it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from diffem import InputError, Observations, metrics, operators, priors
from diffem.core.randomness import Stream
from diffem.em.input_checks import require_features, require_linear
from diffem.nn.networks import make_network
from diffem.posterior import METHODS

SHAPE = (1, 4, 4)


def truth(n: int = 6) -> Tensor:
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(0))


def counts(x: Tensor, rng: Any) -> Tensor:
    return rng.poisson(8 * x.clamp(min=0))


def observed(n: int = 6) -> Observations:
    A = operators.Channel(counts, lambda y: y / 8)
    return Observations(A.simulate(truth(n), Stream(0, "y"), torch.arange(n)), A)


def unlike(x: Tensor) -> Tensor:
    return x - x.mean(0)  # depends on the other samples


BAD: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "another shape": (lambda x, rng: counts(x, rng)[..., :2], {}, r"simulate returns \(1, 4, 2\).*y has \(1, 4, 4\)"),
    "fewer samples": (lambda x, rng: counts(x, rng)[:1], {}, "simulate must return a real tensor with 64 samples"),
    "no tensor": (lambda x, rng: None, {}, "simulate must return a real tensor.*NoneType"),
    "not finite": (lambda x, rng: counts(x, rng) / 0, {}, "simulate must return finite numbers"),
    "not random": (lambda x, rng: 8 * x.clamp(min=0), {}, "same y for different random numbers.*random=False"),
    "random elsewhere": (lambda x, rng: torch.poisson(8 * x.clamp(min=0)), {}, "random numbers that do not come from"),
    "random though not stated": (lambda x: torch.poisson(8 * x.clamp(min=0)), {"random": False}, "random=False"),
    "other samples": (lambda x, rng: counts(unlike(x), rng) + unlike(x), {}, "depends on the other samples"),
    "without x": (lambda x, rng: rng.poisson(torch.full_like(x, 8.0)), {}, "must depend on x"),
    "negative x": (lambda x, rng: rng.poisson(8 * x), {}, "clamp"),
    "an error": (lambda x, rng: x.nonsense, {}, "simulate fails: AttributeError"),
    "features not image-like": (counts, {"features": lambda y: y.flatten(1)}, r"features must be image-like"),
    "features not finite": (counts, {"features": lambda y: y.log() * 0}, "features must return finite numbers"),
    "x in place": (lambda x, rng: rng.poisson(8 * x.clamp_(min=0)), {}, "simulate changes its argument in place"),
    "y in place": (counts, {"features": lambda y: y.div_(8)}, "features changes its argument in place"),
    "estimate of another shape": (counts, {"estimate": lambda y: y[..., :3]}, r"estimate returns \(1, 4, 3\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_channel_that_cannot_be_used_is_refused(name: str) -> None:
    simulate, options, message = BAD[name]
    y = observed().y.clone()
    y[0, 0, 0, 0] = 0  # a count whose logarithm is not finite
    options = {"features": lambda y: y / 8, **options}
    with pytest.raises(InputError, match=message):
        Observations(y, operators.Channel(simulate, x_shape=SHAPE, **options))


def test_single_bits_with_little_noise_are_random() -> None:
    """Two bits per observation hardly ever differ between a few repetitions; a thousand do."""
    x, threshold = torch.rand(2, 8, 2, generator=torch.Generator().manual_seed(0))
    A = operators.Channel(
        lambda x, rng, threshold: (x + 0.02 * rng.normal(2) > threshold).to(x.dtype),
        lambda y, threshold: torch.cat([y, threshold], 1),
        (2,),
        estimate=lambda y, threshold: y,
        threshold=threshold,
    )
    assert Observations((x > threshold).float(), A).x_shape == (2,)


def test_features_of_vectors_are_vectors() -> None:
    A = operators.Channel(lambda x, rng: x + rng.normal(2), lambda y: y[:, None].expand(-1, 3, 2), (2,))
    with pytest.raises(InputError, match=r"features of vectors must be \(numbers,\)"):
        Observations(torch.zeros(5, 2), A)


@pytest.mark.parametrize("function", ["features", "estimate"])
def test_observations_whose_features_are_not_finite_are_refused_before_a_run(function: str) -> None:
    y = observed().y.clone() + 1
    functions = {"features": lambda y: y / 8, "estimate": lambda y: y / 8, function: torch.log}
    good = Observations(y, operators.Channel(counts, x_shape=SHAPE, **functions))
    require_features(good)
    y[5, 0, 2, 1] = 0  # beyond the few that are tried first
    with pytest.raises(InputError, match=f"{function} must return finite numbers, got -inf for sample 5 of 6"):
        require_features(Observations(y, operators.Channel(counts, x_shape=SHAPE, **functions)))


def test_a_channel_is_no_part_of_another_operator() -> None:
    A = operators.Channel(counts, lambda y: y / 8)
    for combine in (lambda: operators.Identity() @ A, lambda: operators.Stack(A, A)):
        with pytest.raises(InputError, match="apply the other operators in simulate"):
            combine()


def test_a_deterministic_channel_is_called_without_random_numbers() -> None:
    A = operators.Channel(lambda x: (4 * x).round() / 4, lambda y: y, random=False)
    obs = Observations((4 * truth()).round() / 4, A)
    assert torch.equal(A.simulate(truth(), Stream(0, "y"), torch.arange(6)), obs.y)


def test_parameters_follow_their_observations() -> None:
    thresholds = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1))

    def simulate(x: Tensor, rng: Any, threshold: Tensor, noise: float) -> Tensor:
        return (x + noise * rng.normal(*SHAPE) > threshold).to(x.dtype)

    A = operators.Channel(
        simulate,
        lambda y, threshold, noise: torch.cat([y, threshold], 1),
        SHAPE,
        estimate=lambda y, threshold, noise: y,
        threshold=thresholds,
        noise=0.1,
    )
    index = torch.arange(6)
    obs = Observations(A.simulate(truth(), Stream(0, "y"), index), A)
    some = torch.tensor([4, 1])
    part = obs[some]
    assert isinstance(part.A, operators.Channel)
    assert torch.equal(part.A.features(part.y)[:, 1:], thresholds[some])
    assert torch.equal(part.A.simulate(truth()[some], Stream(0, "y"), index[some]), obs.y[some])
    assert obs.to(torch.float64).A.features(obs.y.double()).dtype == torch.float64  # type: ignore[attr-defined]
    assert torch.equal(part.backprojected(), part.y)


def gaussian() -> priors.GaussianPrior:
    return priors.GaussianPrior(torch.zeros(SHAPE), torch.eye(16))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda obs: gaussian().posterior(obs), "method 'exact' needs observations y = A x"),
        (lambda obs: gaussian().posterior(obs, method="mmps"), "method 'mmps' needs.*method 'conditional'"),
        (lambda obs: priors.fit_gaussian(obs), "fit_channel_gaussian"),
        (lambda obs: obs.chi2(truth()), "can only be simulated"),
        (lambda obs: obs.residual(truth()), "can only be simulated"),
        (lambda obs: obs.scaled(2.0), "no noise covariance"),
        (lambda obs: obs.noise.solve(obs.y), "no noise covariance"),
        (lambda obs: metrics.hide(obs, 0.1), "simulation_score"),
        (lambda obs: Observations.concatenate([obs, obs]), "start=prior"),
        (lambda obs: obs.A.adjoint(obs.y), "can only be simulated"),
        (lambda obs: Observations(obs.y, obs.A, sigma=0.1), "leave out sigma"),
        (lambda obs: obs.save("/nowhere/at/all"), "contains code and cannot be saved"),
    ],
)
def test_what_needs_gaussian_noise_refuses_a_channel(call: Callable[[Observations], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(observed())


@pytest.mark.parametrize("method", [name for name in METHODS if name != "conditional"])
def test_posterior_methods_refuse_a_channel_and_name_the_one_that_works(method: str) -> None:
    prior = priors.MixturePrior(torch.ones(2) / 2, torch.zeros(2, *SHAPE), torch.ones(2))
    with pytest.raises(InputError, match=f"method '{method}' needs.*'conditional'"):
        prior.posterior(observed(), method=method)


def test_the_error_for_a_prior_without_a_conditional_network_explains_how_to_get_one() -> None:
    network = make_network("mlp", SHAPE, {"hidden": [8]})
    with pytest.raises(InputError, match="learn a prior from observations of this Channel"):
        priors.DiffusionPrior(network, SHAPE).posterior(observed())


def test_a_channel_passes_the_check_of_a_run() -> None:
    require_linear(observed())
