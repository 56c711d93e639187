"""Observations whose noise levels are unknown: groups, slices, files, and what is rejected."""

from __future__ import annotations

import pytest
import torch

from diffem import InputError, Observations, operators
from diffem.linalg import UnknownNoise
from diffem.observations.lazy import as_lazy
from diffem.observations.levels import level_count, with_levels

Y = torch.arange(24.0).reshape(6, 4)


def unknown(**options: object) -> Observations:
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) < 0.7
    return Observations(Y, operators.Mask(mask), sigma="learn", **options)


def variances(obs: Observations) -> torch.Tensor:
    return obs.cov.diagonal((4,)).expand(len(obs), 4)


def test_one_level_for_all():
    obs = unknown()
    assert level_count(obs) == 1
    assert (variances(with_levels(obs, torch.tensor([3.0]))) == 9).all()


def test_labels_name_the_group_of_every_observation():
    obs, sigma = unknown(groups=[5, 5, 7, 7, 7, 9]), torch.tensor([1.0, 2.0, 3.0])
    assert variances(with_levels(obs, sigma))[:, 0].tolist() == [1, 1, 4, 4, 4, 9]
    for part in (obs[4:], as_lazy(obs)[4:]):  # a part has all levels of the whole
        assert variances(with_levels(part, sigma))[:, 0].tolist() == [4, 9]


def test_labels_name_the_group_of_every_column():
    sigma = torch.tensor([1.0, 2.0])
    assert variances(with_levels(unknown(groups=[0, 1, 1, 0]), sigma))[0].tolist() == [1, 4, 4, 1]
    assert level_count(unknown(groups="columns")) == 4


@pytest.mark.parametrize("groups", [None, [0, 0, 1, 1, 2, 2], "columns"])
def test_a_file_keeps_the_levels_unknown(groups, tmp_path):
    obs = unknown(groups=groups)
    obs.save(tmp_path / "obs.safetensors")
    loaded = Observations.load(tmp_path / "obs.safetensors")
    assert level_count(loaded) == level_count(obs)
    assert torch.equal(loaded.cov.groups, obs.cov.groups)
    assert loaded.structure() == obs.structure()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": [0, 1]}, "one label per observation"),
        ({"groups": [0.5] * 6}, "whole numbers"),
        ({"groups": "rows"}, "labels or 'columns'"),
    ],
)
def test_labels_that_do_not_fit_are_rejected(options, words):
    with pytest.raises(InputError, match=words):
        unknown(**options)


def test_misuse_is_named():
    with pytest.raises(InputError, match="groups need sigma='learn'"):
        Observations(Y, sigma=1.0, groups=[0] * 6)
    with pytest.raises(InputError, match="noise level of these observations is unknown"):
        unknown().chi2(Y)
    with pytest.raises(InputError, match="the noise of these observations is known"):
        with_levels(Observations(Y, sigma=1.0), torch.ones(1))
    with pytest.raises(InputError, match="needed: 1 positive"):
        with_levels(unknown(), torch.tensor([-1.0]))
    for level, words in ((1e-20, "below the smallest"), (1e20, "above the largest")):  # variances 0 and ∞ in float32
        with pytest.raises(InputError, match=words):
            with_levels(unknown().to(torch.float32), torch.tensor([level], dtype=torch.float64))


def test_groups_of_untrusted_files_are_checked():
    for groups, count in ((torch.tensor([0.5]), 1.0), (torch.tensor([2.0]), 2.0), (torch.tensor([0.0]), 1e30)):
        with pytest.raises(InputError, match="whole numbers"):
            UnknownNoise.check_tensors({"groups": groups, "count": torch.tensor(count)})
    with pytest.raises(InputError, match=r"do not fit a measurement of shape \(4,\)"):
        Observations(Y, operators.Identity(), cov=UnknownNoise(torch.zeros(3, dtype=torch.int64), per_value=True))
