"""The residual perceptron is initially a linear map, and ignores conditioning inputs that are not given."""

import pytest
import torch

from diffem.core.errors import InputError
from diffem.nn.networks import make_network
from diffem.nn.residual import ResidualMLP


def test_its_blocks_begin_as_the_identity():
    network = ResidualMLP((5,), (16, 16))
    features, embedding = torch.randn(3, 16), torch.randn(3, 64)
    for block in network.blocks:
        assert torch.equal(block(features, embedding), features)


def test_conditioning_inputs_have_no_effect_at_first_and_none_if_not_given():
    network = ResidualMLP((2, 3), (16,), shown=12)
    x, level, shown = torch.randn(4, 2, 3), torch.randn(4), torch.randn(4, 2, 6)
    assert network(x, level).shape == x.shape
    assert torch.equal(network(x, level, shown), network(x, level))
    with torch.no_grad():
        network.shown.normal_()
    assert not torch.equal(network(x, level, shown), network(x, level))
    assert torch.equal(network(x, level, torch.zeros_like(shown)), network(x, level))


def test_blocks_of_different_widths_are_refused():
    with pytest.raises(InputError, match="all entries of hidden must be equal"):
        make_network("residual", (5,), {"hidden": [16, 32]})
