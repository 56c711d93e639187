"""Small feature extractors as TorchScript files, which replace the real network in tests."""

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn


class Features(nn.Module):
    """A strided convolution, averaged over the picture: a few features that depend on colour and texture."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(d, 3, 5, 5, generator=generator) / 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(nn.functional.conv2d(x, self.weight, stride=4)).mean((2, 3))


class FeaturesAndLogits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = Features()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        return features, 4 * features[:, :5]


def write_extractor(path: Path, network: nn.Module | None = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the published networks are TorchScript files too
        torch.jit.save(torch.jit.script(network or Features()), str(path))
    return path
