"""The family of a conditional network: in files, and checked against observations."""

from __future__ import annotations

import warnings

import pytest
import torch

import diffem
from diffem import InputError, Observations, operators
from diffem.em.conditioning import TrainingOperators
from diffem.nn.networks import make_network
from diffem.observations.information import information_of
from diffem.observations.lazy import as_lazy
from diffem.priors.diffusion import DiffusionPrior
from diffem.priors.family import Family

from .small import observations

CPU = torch.device("cpu")


def test_a_prior_without_a_conditional_network_is_rejected() -> None:
    network = make_network("mlp", (4,), {"hidden": [8]})
    with pytest.raises(InputError, match="needs a prior with a conditional network"):
        DiffusionPrior(network, event_shape=(4,)).posterior(observations(4), method="conditional")


def test_an_exported_prior_keeps_its_family(conditional_run: diffem.Run, tmp_path) -> None:
    from diffem.em import exports as hub

    prior = conditional_run.prior
    assert isinstance(prior, DiffusionPrior)
    assert prior.family == Family.read(prior.family.note())
    hub.export_run(conditional_run.path, tmp_path / "export")
    loaded = hub.load(tmp_path / "export")
    assert "of its training: Mask" in (tmp_path / "export" / "README.md").read_text()
    assert loaded.family == prior.family
    obs = observations(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(loaded.posterior(obs).sample(steps=6), prior.posterior(obs).sample(steps=6))


def test_a_conditional_prior_converts_to_an_ordinary_prior(conditional_run: diffem.Run, tmp_path) -> None:
    from diffem.priors.files import load_prior, save_prior

    prior = conditional_run.prior
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
def test_a_damaged_family_is_rejected(change: dict[str, object], words: str) -> None:
    note = TrainingOperators(as_lazy(observations(8)), 1.0, CPU).family.note()
    with pytest.raises(InputError, match=words):
        Family.read({**note, **change})


def test_a_mask_shared_by_channels_is_described_by_one_number_per_pixel() -> None:
    mask = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    obs = Observations(torch.zeros(6, 3, 4, 4), operators.Mask(mask), sigma=0.1)
    conditioning = TrainingOperators(as_lazy(obs), 1.0, CPU)
    assert (conditioning.family.description, conditioning.family.shape) == ("pixels", (4, 4, 4))
    shown = conditioning.family.describe(conditioning[torch.arange(6)], torch.ones(6, 3, 4, 4), torch.full((6,), 1e3))
    torch.testing.assert_close(shown, mask.expand(6, 4, 4, 4).float(), rtol=0, atol=1e-6)
    apart = Observations(
        torch.zeros(6, 3, 4, 4),
        operators.Mask(mask.expand(6, 3, 4, 4) & (torch.arange(3) > 0)[:, None, None]),
        sigma=0.1,
    )
    assert conditioning.family.impossible(information_of(apart)) is not None
