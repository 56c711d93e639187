"""Observations of different kinds in one set."""

from __future__ import annotations

import pytest
import torch

from diffem import InputError, Observations, operators, priors
from diffem.linalg import DenseCovariance
from diffem.observations.lazy import as_lazy
from diffem.priors.marginal import choose, measured_values, observation_laws


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def sets(shape: tuple[int, ...] = (4, 4)) -> dict[str, Observations]:
    """Clean samples, masks, blurs with two kernels and low resolution, three observations each."""
    g = generator()
    x = torch.randn(12, *shape, generator=g)
    mask = torch.rand(3, *shape, generator=g) < 0.5
    kernels = torch.rand(3, 3, 3, generator=g)
    return {
        "clean": Observations(x[:3], operators.Identity(), sigma=0.01),
        "masked": Observations(x[3:6], operators.Mask(mask), sigma=0.1),
        "blurred": Observations(x[6:9], operators.Blur(kernels), sigma=torch.tensor([0.1, 0.2, 0.3])),
        "coarse": Observations(x[9:, ::2, ::2], operators.Downsample(2), sigma=0.2),
    }


def evidence(prior: priors.GaussianPrior, obs: Observations) -> torch.Tensor:
    laws = observation_laws(prior, obs, choose(measured_values(obs), 1024))
    return torch.cat([law.log_prob() for _, law in laws])


@pytest.mark.parametrize("names", ["clean masked", "masked blurred", "clean masked blurred coarse", "coarse clean"])
def test_every_observation_has_the_likelihood_and_the_posterior_of_its_own_set(names):
    parts = [sets()[name].to(torch.float64) for name in names.split()]
    joined = Observations.concatenate(parts)
    assert len(joined) == 3 * len(parts)
    assert joined.counts().tolist() == [n for part in parts for n in part.counts().tolist()]
    root = torch.randn(16, 16, generator=generator(), dtype=torch.float64)
    prior = priors.GaussianPrior(torch.zeros(4, 4, dtype=torch.float64), root @ root.T / 16 + 0.1 * torch.eye(16))
    apart = torch.cat([evidence(prior, part) for part in parts])
    assert evidence(prior, joined) == pytest.approx(apart, rel=1e-9)
    means = torch.cat([prior.posterior_mean(part) for part in parts])
    torch.testing.assert_close(prior.posterior_mean(joined), means, rtol=1e-5, atol=1e-6)  # iterated to 1e-8


def test_clean_samples_and_masks_are_masks():
    joined = Observations.concatenate([sets()["clean"], sets()["masked"]])
    assert isinstance(joined.A, operators.Mask)
    assert joined.selection() is not None


def test_kinds_may_take_turns():
    part = sets()
    joined = Observations.concatenate([part["masked"], part["blurred"], part["clean"], part["blurred"]])
    x = torch.randn(12, 4, 4, generator=generator())
    apart = [part[name].chi2(x[3 * k : 3 * k + 3]) for k, name in enumerate(["masked", "blurred", "clean", "blurred"])]
    torch.testing.assert_close(joined.chi2(x), torch.cat(apart))


def test_weights_follow_their_observations(tmp_path):
    joined = Observations.concatenate([sets()["clean"], sets()["masked"]], weights=[5, 1])
    assert joined[torch.tensor([5, 0])].repeats.tolist() == [1, 5]
    joined.save(tmp_path / "obs.safetensors")
    assert Observations.load(tmp_path / "obs.safetensors").repeats.tolist() == [5, 5, 5, 1, 1, 1]
    assert "repeats" in joined.tensors()


def test_weights_of_joined_sets_are_multiplied():
    joined = Observations.concatenate([sets()["clean"], sets()["masked"]], weights=[5, 1])
    again = Observations.concatenate([joined, sets()["masked"]])
    assert again.repeats.tolist() == [5, 5, 5, 1, 1, 1, 1, 1, 1]
    again = Observations.concatenate([joined, sets()["masked"]], weights=[2, 3])
    assert again.repeats.tolist() == [10, 10, 10, 2, 2, 2, 3, 3, 3]


def test_lazy_sets_are_joined_as_a_whole():
    parts = [sets()[name] for name in ("masked", "clean")]
    joined = Observations.concatenate([as_lazy(part)[:2] for part in parts])
    x = torch.randn(4, 4, 4, generator=generator())
    torch.testing.assert_close(joined.chi2(x), torch.cat([parts[0][:2].chi2(x[:2]), parts[1][:2].chi2(x[2:])]))


def test_what_cannot_be_joined_is_rejected():
    clean = sets()["clean"]
    function = Observations(clean.y, operators.Function(lambda x: 2 * x, (4, 4)), sigma=0.1)
    correlated = Observations(clean.y, operators.Identity(), cov=DenseCovariance(torch.eye(16)))
    unknown = Observations(clean.y, operators.Identity(), sigma="learn")
    smaller = Observations(torch.zeros(2, 3, 3), operators.Identity(), sigma=0.1)
    for other, words in (
        (function, "contain a Function"),
        (correlated, "independent noise of known level, got DenseCovariance"),
        (unknown, "independent noise of known level, got UnknownNoise"),
        (smaller, r"one shape, got \(4, 4\) and \(3, 3\)"),
        (clean.to(torch.float64), "one precision and device"),
    ):
        with pytest.raises(InputError, match=words):
            Observations.concatenate([clean, other])
    with pytest.raises(InputError, match="2 positive whole numbers"):
        Observations.concatenate([clean, clean], weights=[1, 0])
    with pytest.raises(InputError, match="a list of Observations"):
        Observations.concatenate([])
