"""The distribution of training noise levels: exact quantiles, an unchanged default, and settings that do not fit
are refused."""

import math

import pytest
import torch

from diffem.core.errors import InputError
from diffem.core.randomness import Stream
from diffem.em.augment import Augment
from diffem.em.examples import Examples
from diffem.em.noise_law import noise_law
from diffem.runs.recipe import Noise, load_recipe

BETA, LOGNORMAL = Noise(), Noise(law="lognormal", mean=-0.5, std=1.2)


def levels(options, sigma_min=1e-3, sigma_max=1e2, count=40_000):
    law = noise_law(options, sigma_min, sigma_max)
    u = Stream(0, "noise law").uniform(torch.arange(count), (law.uniforms,), dtype=torch.float64)
    return law.log_sigma(u)


def test_the_default_is_bit_for_bit_the_median_of_five_uniform_numbers():
    """The random numbers of all earlier runs, including those of the augmentations."""
    stream, augment = Stream(3, "training", 2), Augment(["hflip"], (3, 4, 4))
    examples = Examples(torch.zeros(10, 3, 4, 4), 8, noise_law(BETA, 0.02, 20.0), augment, stream)
    _, log_sigma, _, u, *_ = examples.block(4, 2)
    uniforms = stream.uniform(torch.arange(32, 48), (6,), step=1)
    low, high = math.log(0.02), math.log(20.0)
    assert torch.equal(log_sigma.flatten(), low + (high - low) * uniforms[:, :5].median(1).values)
    assert torch.equal(u.flatten(), uniforms[:, 5])


@pytest.mark.parametrize(("sigma_min", "sigma_max"), [(1e-3, 1e2), (0.1, 2.0)])
def test_lognormal_levels_have_the_quantiles_of_a_truncated_normal(sigma_min, sigma_max):
    log_sigma = levels(LOGNORMAL, sigma_min, sigma_max)
    low, high = math.log(sigma_min), math.log(sigma_max)
    assert low <= float(log_sigma.min())
    assert float(log_sigma.max()) <= high
    normal = torch.distributions.Normal(torch.tensor(-0.5).double(), torch.tensor(1.2).double())
    first, last = normal.cdf(torch.tensor([low, high]).double())
    # the distribution function of a law, applied to draws of it, is uniform; Kolmogorov–Smirnov at n = 40,000, p = 1e-3
    uniform = ((normal.cdf(log_sigma) - first) / (last - first)).sort().values
    place = (torch.arange(len(uniform)) + 0.5) / len(uniform)
    assert float((uniform - place).abs().max()) < 1.95 / math.sqrt(len(uniform))


def test_float32_resolves_the_tails():
    """The smallest and the largest uniform number of 24 bits, and the middle."""
    law = noise_law(LOGNORMAL, 1e-3, 1e2)
    ends = torch.tensor([[0.5 * 2**-24], [0.5], [1 - 0.5 * 2**-24]])
    exact = law.log_sigma(ends.double())
    # near 1 neighbours of float32 are 2⁻²⁴ apart, in a tail of that probability 0.2 standard deviations
    assert torch.allclose(law.log_sigma(ends).double(), exact, atol=0.3)
    assert torch.allclose(law.log_sigma(ends)[:2].double(), exact[:2], atol=1e-4)


def test_shares_below_small_noise():
    """The fractions stated on the page: 22 % and 2 % of the training is below σ = 0.05 under the two laws."""
    beta, lognormal = (float((levels(o) < math.log(0.05)).double().mean()) for o in (BETA, LOGNORMAL))
    t = math.log(0.05 / 1e-3) / math.log(1e5)
    exact = t**3 * (10 - 15 * t + 6 * t**2)
    # four standard errors of 40,000 draws
    assert beta == pytest.approx(exact, abs=4 * math.sqrt(exact / 4e4))
    assert exact == pytest.approx(0.22, abs=0.005)
    exact = 0.5 * math.erfc((math.log(0.05) + 0.5) / -1.2 / math.sqrt(2))
    assert lognormal == pytest.approx(exact, abs=4 * math.sqrt(exact / 4e4))
    assert exact == pytest.approx(0.02, abs=0.002)


def test_a_recipe_names_the_law():
    recipe = load_recipe("digits", {"train.noise.law": "lognormal", "train.noise.mean": -1.0})
    assert recipe.train.noise == Noise(law="lognormal", mean=-1.0, std=1.2)
    assert load_recipe("digits").train.noise.law == "beta"
    with pytest.raises(InputError, match=r"train\.noise\.law: .*beta.*lognormal"):
        load_recipe("digits", {"train.noise.law": "uniform"})


def test_a_law_outside_the_range_is_rejected():
    with pytest.raises(InputError, match=r"only 0% of a log-normal law with mean 9.*sigma_max"):
        noise_law(Noise(law="lognormal", mean=9), 1e-3, 1e2)
