"""LPIPS: properties of a distance, the published network, and a reader that accepts only arrays as weights."""

import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from diffem.datasets import cifar10
from diffem.metrics import load_lpips

from ..assets import asset
from .weights import random_weights, write_lpips


@pytest.fixture(scope="module")
def lpips(tmp_path_factory):
    return load_lpips(write_lpips(tmp_path_factory.mktemp("lpips") / "alexnet.ckpt"))


def pictures(n, size=32, seed=0):
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_it_is_a_distance(lpips):
    x, y = pictures(3), pictures(3, seed=1)
    assert torch.equal(lpips(x, x), torch.zeros(3))
    assert (lpips(x, y) > 0).all()
    assert torch.equal(lpips(x, y), lpips(y, x))
    # the range of the values is an argument; float32 rounds the conversion
    assert torch.allclose(lpips(64 * (x + 1), 64 * (y + 1), range=(0, 128)), lpips(x, y), rtol=1e-5)
    assert torch.allclose(lpips(x, y)[1:2], lpips(x[1:2], y[1:2]), rtol=1e-5)


@pytest.mark.parametrize("size", [32, 67])
def test_the_network_is_alexnet(lpips, size):
    """The layers of torchvision's AlexNet, one module after the other, in float64."""
    tree = random_weights()
    modules = [
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(),
        nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(),
    ]  # fmt: skip
    x, y = (pictures(2, size, seed).double() for seed in (0, 1))
    shift, scale = (
        torch.tensor(v, dtype=torch.float64)[:, None, None] for v in ([-0.030, -0.088, -0.188], [0.458, 0.448, 0.450])
    )
    a, b, k, expected = (x - shift) / scale, (y - shift) / scale, 0, torch.zeros(2, dtype=torch.float64)
    for module in modules:
        if isinstance(module, nn.Conv2d):
            weights = tree["AlexNet_0"][f"Conv_{k}"]
            module.weight.data = torch.from_numpy(weights["kernel"]).permute(3, 2, 0, 1).double()
            module.bias.data = torch.from_numpy(weights["bias"]).double()
        a, b = module(a), module(b)
        if isinstance(module, nn.ReLU):
            unit_a, unit_b = (nn.functional.normalize(v, dim=1) for v in (a, b))
            head = torch.from_numpy(tree[f"NetLinLayer_{k}"]["Conv_0"]["kernel"]).double().reshape(1, -1, 1, 1)
            expected = expected + (head * (unit_a - unit_b) ** 2).sum(1).mean((1, 2))
            k += 1
    assert torch.allclose(lpips(x, y), expected, rtol=1e-8)


def test_published_weights_give_the_values_of_torchmetrics():
    """Values of torchmetrics 1.9 with the same backbone, for pairs of CIFAR-10 test images at 32×32 and 64×64."""
    lpips = load_lpips(asset("lpips/alexnet.ckpt"))
    x = cifar10.images(asset("cifar10"), "test").float()
    a, b = x[:3], x[16:19]
    expected = [0.13512713, 0.20713484, 0.10117083]
    assert lpips(a, b, (0, 255)).tolist() == pytest.approx(expected, abs=1e-6)
    a, b = (v.repeat_interleave(2, -1).repeat_interleave(2, -2) for v in (a, b))
    expected = [0.41886401, 0.56298459, 0.33788222]
    assert lpips(a, b, (0, 255)).tolist() == pytest.approx(expected, abs=1e-6)


def test_images_of_another_shape(lpips):
    for x, y in ((pictures(2), pictures(3)), (pictures(2, 30), pictures(2, 30)), (pictures(2)[:, :1],) * 2):
        with pytest.raises(ValueError, match=r"\(n, 3, H, W\) of at least 31×31"):
            lpips(x, y)


class Malice:
    def __reduce__(self):
        return (os.mkdir, ("harmed",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Malice(), "names posix.mkdir|names nt.mkdir"),
        ({"AlexNet_0": Malice()}, "names"),
        (np.zeros(3), "'f8'"),
        (np.zeros(3, ">f4"), "byte order '>'"),
        ({}, r"AlexNet_0.Conv_0.kernel must be a finite array \(11, 11, 3, 64\).*nothing"),
        ({"AlexNet_0": {"Conv_0": {"kernel": np.zeros((3, 3), np.float32)}}}, r"an array \(3, 3\)"),
        ([1, 2], "nothing of the kind"),
    ],
)
def test_other_pickles_are_rejected_and_not_executed(content, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.ckpt").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=words):
        load_lpips(tmp_path / "w.ckpt")
    assert not (tmp_path / "harmed").exists()


def test_damaged_weights_are_named(tmp_path):
    file = write_lpips(tmp_path / "w.ckpt")
    whole = file.read_bytes()
    for data in (b"", whole[: len(whole) // 2], b"not a pickle"):
        file.write_bytes(data)
        with pytest.raises(ValueError, match="cannot be read as the weights of LPIPS"):
            load_lpips(file)
    with pytest.raises(ValueError, match="cannot be read"):
        load_lpips(tmp_path / "missing.ckpt")
