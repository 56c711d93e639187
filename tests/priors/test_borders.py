"""Arguments of priors and draws that would give plausible numbers: seeds, batches, networks, densities."""

import numpy as np
import pytest
import torch
from torch import nn

from diffem import Observations, operators, priors, samplers
from diffem.core.errors import InputError

GAUSSIAN = priors.GaussianPrior(torch.zeros(3), torch.eye(3))
MIXTURE = priors.MixturePrior(torch.ones(2), torch.eye(3)[:2], torch.ones(2))
OBS = Observations(torch.zeros(2, 3), operators.Identity(), sigma=0.1)


@pytest.mark.parametrize("prior", [GAUSSIAN, MIXTURE])
@pytest.mark.parametrize("seed", [None, 1.0, "1", True, torch.tensor(1)])
def test_a_seed_is_an_integer(prior, seed):
    """None would not be random, and 1.0 would be another address than 1."""
    with pytest.raises(InputError, match="seed must be an integer"):
        prior.sample(2, steps=2, seed=seed)
    with pytest.raises(InputError, match="seed must be an integer"):
        prior.posterior(OBS).sample(steps=2, seed=seed)
    assert torch.equal(prior.sample(2, steps=2, seed=np.int64(3)), prior.sample(2, steps=2, seed=3))


@pytest.mark.parametrize("prior", [GAUSSIAN, MIXTURE])
@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_counts_are_positive_integers(prior, count):
    for call in (
        lambda: prior.sample(count, steps=2),
        lambda: prior.sample(2, steps=2, batch_size=count),
        lambda: prior.posterior(OBS).sample(count, steps=2),
        lambda: prior.posterior(OBS).sample(steps=2, batch_size=count),
    ):
        with pytest.raises(InputError, match="must be a positive integer"):
            call()


@pytest.mark.parametrize(
    "index", [[0, 1, 2], torch.tensor([0.0, 1.0]), torch.tensor([0, -1]), torch.tensor([0, 1 << 32])]
)
def test_addresses_of_observations_are_checked(index):
    with pytest.raises(InputError, match="index must be 2 addresses"):
        MIXTURE.posterior(OBS).sample(steps=2, index=index)


@pytest.mark.parametrize("prior", [GAUSSIAN, MIXTURE])
@pytest.mark.parametrize("first", [-1, 1.5])
def test_numbers_of_draws(prior, first):
    with pytest.raises(InputError, match="first_draw must be an integer"):
        prior.posterior(OBS).sample(steps=2, first_draw=first)


def test_options_beside_a_sampler_object_and_things_that_are_no_sampler():
    with pytest.raises(InputError, match="cannot be combined with a sampler object"):
        MIXTURE.sample(2, steps=2, sampler=samplers.DDIM(), eta=1.0)
    with pytest.raises(InputError, match="unknown sampler 3"):
        MIXTURE.sample(2, steps=2, sampler=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "option"), [("dps", "zeta"), ("diffpir", "lam")])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), "1"])
def test_strengths_are_positive(method, option, value):
    with pytest.raises(InputError, match=f"{option} must be positive"):
        MIXTURE.posterior(OBS, method=method, **{option: value})


@pytest.mark.parametrize("prior", [GAUSSIAN, MIXTURE])
@pytest.mark.parametrize("x", [torch.zeros(2, 1), torch.zeros(3), torch.zeros(2, 3).double()])
def test_densities_are_those_of_samples(prior, x):
    with pytest.raises(InputError):
        prior.log_prob(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    """Exact samples would be NaN in float16 and have three digits in bfloat16."""
    for prior in (
        priors.GaussianPrior(torch.zeros(3), torch.eye(3)),
        priors.MixturePrior(torch.ones(2), torch.eye(3)[:2], torch.ones(2)),
    ):
        with pytest.raises(InputError, match="must be float32 or float64"):
            prior.to(dtype).sample(2, steps=2)


def test_a_singular_gaussian_has_samples_and_no_density():
    prior = priors.GaussianPrior(torch.ones(2), torch.zeros(2, 2))
    assert torch.equal(prior.sample(3), torch.ones(3, 2))
    with pytest.raises(InputError, match="singular"):
        prior.log_prob(torch.zeros(3, 2))


@pytest.mark.parametrize("output", [lambda x: x.sum(), lambda x: x[:, :1], lambda x: x[:1], lambda x: (x, x)])
def test_a_network_returns_the_shape_of_its_input(output):
    class Network(nn.Module):
        def forward(self, x, log_sigma):
            return output(x)

    with pytest.raises(InputError, match=r"of the shape of its input, \(2, 3\)"):
        priors.DiffusionPrior(Network(), (3,))(torch.zeros(2, 3), 1.0)


def test_arguments_that_are_no_tensors():
    with pytest.raises(InputError, match=r"mean must be a floating-point torch\.Tensor, got ndarray"):
        priors.GaussianPrior(np.zeros(2), np.eye(2))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"weights must be a floating-point torch\.Tensor, got list"):
        priors.MixturePrior([0.5, 0.5], torch.zeros(2, 1), torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a number, or a tensor with one per sample; got 'a'"):
        GAUSSIAN(torch.zeros(2, 3), "a")  # type: ignore[arg-type]
