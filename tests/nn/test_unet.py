"""The U-Net: the paper's parameter counts, independence of samples, blocks that are initially the identity."""

import pytest
import torch

from diffem.nn import UNet
from diffem.nn.networks import make_network
from diffem.nn.unet import Convolutions, ModulatedBlock


def small(**options):
    torch.manual_seed(0)
    settings = {"hidden": (8, 16), "blocks": 1, "heads": (0, 2), "embedding": 16} | options
    return UNet((2, 16, 8), **settings).double()


def test_parameter_counts_of_the_paper():
    with torch.device("meta"):
        cifar = UNet((3, 32, 32), (128, 256, 384), 5, (0, 4, 0), 256, dropout=0.1)
        mri = UNet((1, 320, 320), (128, 256, 384, 512), 3, (0, 0, 0, 4), 256, space_to_depth=4)
    assert sum(p.numel() for p in cifar.parameters()) == 57_560_451
    assert sum(p.numel() for p in mri.parameters()) == 77_648_912  # 77.65 M


@pytest.mark.parametrize("options", [{}, {"space_to_depth": 2}, {"blocks": (2, 1), "heads": (4, 0)}])
def test_a_sample_does_not_depend_on_its_batch(options):
    network = small(**options)
    x, log_sigma = torch.randn(3, 2, 16, 8, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    together = network(x, log_sigma)
    assert together.shape == x.shape
    alone = torch.cat([network(x[i : i + 1], log_sigma[i : i + 1]) for i in range(3)])
    assert torch.allclose(together, alone, atol=1e-12)


def test_the_noise_level_matters_and_reaches_every_sample():
    network = small()
    x = torch.randn(1, 2, 16, 8, dtype=torch.float64).expand(2, -1, -1, -1)
    out = network(x, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert (out[0] - out[1]).abs().max() > 1e-3


def test_a_block_keeps_the_size_of_its_features():
    """(x + c·y)/√(1 + c²) has unit variance for any c if x and y are independent with unit variance; x for c = 0."""
    block = ModulatedBlock(8, 4, torch.nn.Identity()).double()
    last = block.modulation[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    x, embedding = torch.randn(2, 8, 3, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    assert torch.equal(block(x, embedding), x)
    last.bias.data[16:] = 2.0  # c = 2, a = b = 0: y is the normalised x
    y = block.norm(x)
    assert torch.allclose(block(x, embedding), (x + 2 * y) / 5**0.5)
    assert torch.allclose(y.mean(1), torch.zeros(2, 3, 3, dtype=torch.float64), atol=1e-12)


def test_dropout_only_in_training():
    network = small(dropout=0.5)
    x, log_sigma = torch.randn(1, 2, 16, 8, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    network.eval()
    assert torch.equal(network(x, log_sigma), network(x, log_sigma))
    network.train()
    assert not torch.equal(network(x, log_sigma), network(x, log_sigma))
    assert any(isinstance(m, Convolutions) for m in network.modules())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": [8, 16], "heads": [0, 3]}, "must divide the channels, got 16 channels and 3 heads"),
        ({"hidden": [8, 16], "blocks": [1]}, "one number per level"),
        ({"width": 3}, "width"),
    ],
)
def test_bad_settings_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        make_network("unet", (2, 6, 8), options)
    with pytest.raises(ValueError, match=r"images \(channels, height, width\)"):
        make_network("unet", (5,), {})
    with pytest.raises(
        ValueError, match=r"divisible by 4, got \(6, 8\)"
    ):  # networks by name pad such images (nn/padded.py)
        UNet((2, 6, 8), (8, 16, 32), 1, (0, 0, 0))
