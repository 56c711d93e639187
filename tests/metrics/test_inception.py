"""Features: the enlargement against its formula, batches, colours, and invalid extractors."""

import sys
import types

import pytest
import torch

from diffem import metrics
from diffem.metrics import inception

from ..assets import asset
from .extractors import Features, FeaturesAndLogits, write_extractor


def pixels(n, channels=3, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def extractor(tmp_path_factory):
    return metrics.load_extractor(write_extractor(tmp_path_factory.mktemp("extractor") / "small.pt"))


@pytest.mark.parametrize("shape", [(32, 32), (8, 8), (20, 31), (320, 320)])
def test_enlargement_against_its_formula(shape):
    """Pixel (i, j) of the result lies at (i·h/299, j·w/299) of the source and interpolates its four neighbours."""
    h, w = shape
    x = torch.randn(2, 3, h, w, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    large = inception.enlarge(x)
    assert large.shape == (2, 3, 299, 299)
    for i, j in [(0, 0), (298, 298), (1, 297), (150, 7), (77, 211)]:
        u, v = i * h / 299, j * w / 299
        top, left = int(u), int(v)
        bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
        u, v = u - top, v - left
        expected = (1 - u) * ((1 - v) * x[..., top, left] + v * x[..., top, right]) + u * (
            (1 - v) * x[..., bottom, left] + v * x[..., bottom, right]
        )
        assert torch.allclose(large[..., i, j], expected, atol=1e-12)


def test_enlargement_keeps_lines_straight_and_clamps_at_the_edge():
    ramp = torch.arange(32.0).expand(1, 1, 32, 32)
    row = inception.enlarge(ramp)[0, 0, 100]
    assert torch.allclose(row, (torch.arange(299) * (32 / 299)).clamp(max=31), atol=1e-5)
    assert torch.equal(inception.enlarge(ramp.double(), 32), ramp.double())


def test_the_network_sees_pixels_minus_128_over_128(extractor):
    x = pixels(3)
    expected = Features()((inception.enlarge(x.float()) - 128) / 128)
    assert torch.allclose(metrics.features(x, extractor), expected.detach(), atol=1e-6)


def test_features_do_not_depend_on_the_batch_size(extractor):
    x = pixels(7)
    whole = metrics.features(x, extractor, batch_size=7)
    for size in (1, 3, None):
        # the same convolutions with another order of summation: float32 rounding
        assert torch.allclose(metrics.features(x, extractor, batch_size=size), whole, atol=1e-6)


def test_grey_images_are_repeated(extractor):
    grey = pixels(3, channels=1)
    expected = metrics.features(grey.repeat(1, 3, 1, 1), extractor)
    assert torch.allclose(metrics.features(grey, extractor), expected, atol=1e-6)
    assert torch.allclose(metrics.features(grey[:, 0], extractor), expected, atol=1e-6)


def test_samples_become_rounded_pixels():
    x = torch.tensor([-3.0, -2.0, 0.0, 1.984375, 2.5]).reshape(1, 1, 5)
    assert metrics.to_uint8(x, (-2, 1.984375)).flatten().tolist() == [0, 0, 128, 255, 255]
    assert metrics.to_uint8(x, (-2, 1.984375)).shape == (1, 1, 1, 5)
    assert metrics.to_uint8(torch.tensor([[[[0.0, 0.5, 1.0]]]]), (0, 1)).flatten().tolist() == [0, 128, 255]
    with pytest.raises(ValueError, match="low then high; got 1, 0"):
        metrics.to_uint8(x, (1, 0))
    with pytest.raises(ValueError, match="1 of 2 samples contain NaN"):
        metrics.to_uint8(torch.tensor([[[0.0]], [[torch.nan]]]), (0, 1))


class TestExtractors:
    def test_the_environment_names_one_too(self, tmp_path, monkeypatch):
        monkeypatch.delenv("DIFFEM_INCEPTION", raising=False)
        with pytest.raises(ValueError, match="set DIFFEM_INCEPTION"):
            metrics.load_extractor()
        path = write_extractor(tmp_path / "small.pt")
        monkeypatch.setenv("DIFFEM_INCEPTION", str(path))
        assert metrics.load_extractor().key == metrics.load_extractor(path).key

    def test_another_file_has_another_key(self, extractor, tmp_path):
        assert metrics.load_extractor(write_extractor(tmp_path / "other.pt", Features(9))).key != extractor.key

    def test_missing_and_invalid_extractor_files(self, tmp_path):
        with pytest.raises(ValueError, match="no feature extractor at"):
            metrics.load_extractor(tmp_path / "missing.pt")
        (tmp_path / "text.pt").write_text("not a network")
        with pytest.raises(ValueError, match=r"text\.pt cannot be loaded as a TorchScript"):
            metrics.load_extractor(tmp_path / "text.pt")

    def test_networks_that_give_no_features(self, tmp_path):
        class Images(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        class NotANumber(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.mean((2, 3)) / 0 * 0

        for network, words in ((Images(), r"\(2, 3, 299, 299\) for 2 images"), (NotANumber(), "not finite")):
            bad = metrics.load_extractor(write_extractor(tmp_path / "bad.pt", network))
            with pytest.raises(ValueError, match=words):
                metrics.features(pixels(2), bad)

    def test_arrays_that_are_not_images(self, extractor):
        for bad, words in (
            (torch.zeros(2, 3, 8, 8), "uint8.*float32"),
            ([1, 2], "uint8.*list"),
            (pixels(2, channels=2), r"\(2, 2, 8, 8\)"),
            (pixels(2)[:0], r"\(0, 3, 8, 8\)"),
        ):
            with pytest.raises(ValueError, match=words):
                metrics.features(bad, extractor)

    def test_logits_are_optional(self, tmp_path, extractor):
        both = metrics.load_extractor(write_extractor(tmp_path / "both.pt", FeaturesAndLogits()))
        features, logits = inception.outputs(pixels(5), both, batch_size=2)
        assert torch.allclose(logits, 4 * features[:, :5])
        assert inception.outputs(pixels(5), extractor)[1] is None

    def test_the_network_of_torchmetrics(self, tmp_path, monkeypatch):
        """Its options, tested on a stand-in: local weights, tensors only, and no antialiasing."""
        import torchmetrics.image.fid as module

        monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
        with pytest.raises(ValueError, match="its weights are not at"):
            metrics.load_extractor("torch-fidelity")
        (tmp_path / "checkpoints").mkdir()
        weights = tmp_path / "checkpoints" / inception.OWN_WEIGHTS
        torch.save({"weight": torch.ones(1)}, weights)
        if "torch_fidelity" not in sys.modules:
            with pytest.raises(ValueError, match="needs the packages torchmetrics and torch-fidelity"):
                metrics.load_extractor("torch-fidelity")

        class StandIn(torch.nn.Module):
            def __init__(self, name, features_list, path, antialias):
                super().__init__()
                assert (features_list, path, antialias) == (["2048", "logits_unbiased"], str(weights), False)

            def _torch_fidelity_forward(self, x):
                assert x.dtype == torch.uint8
                return x.float().mean((2, 3)), x.float().amax((2, 3))

        monkeypatch.setattr(module, "NoTrainInceptionV3", StandIn)
        values, logits = inception.outputs(pixels(4), metrics.load_extractor("torch-fidelity"))
        assert torch.equal(values, pixels(4).float().mean((2, 3)))
        assert logits.shape == (4, 3)
        torch.save(types.SimpleNamespace(code=1), weights)  # a pickle that contains something other than tensors
        with pytest.raises(ValueError, match="more than tensors"):
            metrics.load_extractor("torch-fidelity")


def test_the_published_network_is_loaded():
    from diffem.datasets import cifar10

    extractor = metrics.load_extractor(asset("fid/inception-2015-12-05.pt"))
    assert extractor.key.startswith("7ff4a85c3a6378f0")
    x = cifar10.images(asset("cifar10"), "test")[:4]
    values = metrics.features(x, extractor)
    assert values.shape == (4, 2048)
    assert float(values.min()) >= 0  # averages of rectified activations are not negative
    assert torch.allclose(metrics.features(x, extractor, batch_size=3), values, atol=1e-4)
