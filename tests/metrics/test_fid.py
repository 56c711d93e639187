"""FID, KID and the Inception Score against closed forms; the cached reference."""

import math
import warnings

import numpy as np
import pytest
import torch

from diffem import metrics
from diffem.core.errors import RunWarning
from diffem.metrics import fid
from diffem.metrics.fid import Reference
from diffem.metrics.inception import Extractor

from ..assets import asset
from .extractors import FeaturesAndLogits, write_extractor
from .test_inception import pixels


def with_moments(n, mean, cov, seed=0):
    """n points whose sample mean and covariance are exactly the given ones, in float64."""
    z = torch.randn(n, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z = z - z.mean(0)
    z = z @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(z.T))).T
    return z @ torch.linalg.cholesky(cov).T + mean


def corner(d=3):
    """The identity as an extractor: the features are the pixels of the first row."""
    return Extractor("identity", "identity", torch.device("cpu"), lambda x: (x[:, 0, 0, :d].float(), None))


@pytest.fixture(scope="module")
def extractor(tmp_path_factory):
    return metrics.load_extractor(write_extractor(tmp_path_factory.mktemp("extractor") / "small.pt"))


class TestFrechet:
    def test_the_distance_is_exact_for_commuting_covariances(self):
        """Diagonal covariances: |μ₁ − μ₂|² + Σ(s₁ − s₂)², to rounding, because the moments of the sets are exact."""
        a, b = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([3.0, 2.0, 0.1]).double()
        shift = torch.tensor([1.0, 0, -2.0]).double()
        x, y = with_moments(50, 0 * shift, torch.diag(a**2)), with_moments(80, shift, torch.diag(b**2), seed=1)
        expected = float(shift.square().sum() + (a - b).square().sum())
        assert metrics.frechet_distance(x, Reference.of_features(y)) == pytest.approx(expected, rel=1e-9)
        assert metrics.frechet_distance(x, Reference.of_features(x)) == pytest.approx(0, abs=1e-6)

    def test_gaussians_in_two_dimensions(self):
        """For 2×2 matrices tr (Σ₁Σ₂)^½ = √(tr Σ₁Σ₂ + 2√(det Σ₁Σ₂))."""
        one = torch.tensor([[2.0, 0.7], [0.7, 1.0]]).double()
        two = torch.tensor([[1.0, -0.5], [-0.5, 3.0]]).double()
        zero = torch.zeros(2).double()
        x, y = with_moments(50, zero, one), with_moments(60, zero, two, seed=1)
        product = one @ two
        root = math.sqrt(float(product.trace()) + 2 * math.sqrt(float(torch.linalg.det(product))))
        expected = float(one.trace() + two.trace()) - 2 * root
        assert metrics.frechet_distance(x, Reference.of_features(y)) == pytest.approx(expected, rel=1e-9)

    def test_of_images_through_the_identity(self):
        """With pixels as features, it is the Fréchet distance of the pixels, also with blocks smaller than the set."""
        x, y = pixels(300), pixels(200, seed=1) // 2
        rows = [s[:, 0, 0, :3].double() for s in (x, y)]
        quality = metrics.image_quality(x, metrics.make_reference(y, corner(), cache=False), corner())
        assert quality["fid"] == pytest.approx(metrics.frechet(*rows), rel=1e-9)

    def test_the_distance_does_not_depend_on_the_block_size(self, monkeypatch):
        x, y = torch.randn(100, 5), torch.randn(100, 5) + 1
        whole = metrics.frechet_distance(x, Reference.of_features(y))
        monkeypatch.setattr(fid, "BLOCK", 7)
        assert metrics.frechet_distance(x, Reference.of_features(y)) == pytest.approx(whole, rel=1e-10)

    def test_torchmetrics_gives_the_same_distance(self):
        """It computes the eigenvalues of Σ₁Σ₂, which is not symmetric."""
        from torchmetrics.image.fid import FrechetInceptionDistance

        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(200, 7, generator=generator, dtype=torch.float64) * k + k for k in (1.0, 2.0))
        metric = FrechetInceptionDistance(fid._PassThrough(7))
        metric.update(x, real=False)
        metric.update(y, real=True)
        assert metrics.frechet_distance(x, Reference.of_features(y)) == pytest.approx(float(metric.compute()), rel=1e-9)

    def test_fewer_samples_than_dimensions(self):
        """`metrics.frechet` uses a cheaper formula then; the distance is that of the same covariances."""
        x, y = torch.randn(20, 30).double(), 2 * torch.randn(40, 30).double()
        covs = torch.cov(x.T), torch.cov(y.T)
        values = torch.linalg.eigvals(covs[0] @ covs[1]).real.clamp(min=0).sqrt().sum()
        expected = (x.mean(0) - y.mean(0)).square().sum() + covs[0].trace() + covs[1].trace() - 2 * values
        # zero eigenvalues are computed as rounding errors of 1e-15 of the largest, and their square roots add up
        assert metrics.frechet(x, y) == pytest.approx(float(expected), rel=1e-5)
        assert metrics.frechet(y, x) == pytest.approx(metrics.frechet(x, y), rel=1e-6)

    @pytest.mark.parametrize("case", ["many", "few", "constant", "far from zero"])
    def test_against_the_centred_cross_products(self, case):
        """tr (Σ₁Σ₂)^½ is the sum of the singular values of X₁X₂ᵀ, X being centred features: no square root of a matrix.

        NumPy in float64, for more and for fewer samples than features, and for features that do not vary.
        """
        generator = torch.Generator().manual_seed(0)
        n, m, d = (90, 70, 24) if case == "many" else (20, 30, 24)
        x, y = (torch.randn(k, d, generator=generator).clamp(min=0) + 0.1 for k in (n, m))
        if case == "constant":
            x, y[:, ::2] = torch.full_like(x, 0.1), 0.3
        if case == "far from zero":
            x, y = x + 1e3, y + 1e3
        a, b = (z.double().numpy() for z in (x, y))
        centred = [(z - z.mean(0)) / math.sqrt(len(z) - 1) for z in (a, b)]
        shift, cross = a.mean(0) - b.mean(0), np.linalg.svd(centred[0] @ centred[1].T, compute_uv=False)
        expected = shift @ shift + sum((z**2).sum() for z in centred) - 2 * cross.sum()
        reference = Reference.of_features(y)
        # moments far from zero lose eight of sixteen digits; square roots of zero eigenvalues lose half of the rest
        assert metrics.frechet_distance(x, reference) == pytest.approx(expected, rel=1e-5)
        assert fid.distance_of_moments(Reference.of_features(x), reference) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize(("n", "m"), [(8, 40), (40, 8), (9, 40)])
    def test_fewer_images_than_features_lead_to_a_warning(self, n, m):
        x, reference = pixels(n), metrics.make_reference(pixels(m, seed=1), corner(8), cache=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metrics.image_quality(x, reference, corner(8))
        found = [str(w.message) for w in caught if issubclass(w.category, RunWarning)]
        assert [text.partition(" is far")[0] for text in found] == ["FID from 8 images and 8 features per image"] * (
            min(n, m) <= 8
        )


class TestKernel:
    def test_the_kernel_distance_agrees_with_its_formula(self):
        """One subset of all samples: mean of k(x, x′) over pairs, plus that of y, minus twice the mean of k(x, y)."""
        x, y = torch.randn(40, 3), torch.randn(40, 3) + 0.5
        mean, std = metrics.kernel_distance(x, Reference.of_features(y))
        a, b = x.double(), y.double()
        within = [
            (((s @ s.T / 3 + 1) ** 3).sum() - ((s.square().sum(1) / 3 + 1) ** 3).sum()) / (40 * 39) for s in (a, b)
        ]
        expected = within[0] + within[1] - 2 * ((a @ b.T / 3 + 1) ** 3).mean()
        assert mean == pytest.approx(float(expected), rel=1e-6)
        assert std == 0

    def test_unbiased_for_sets_of_one_distribution(self):
        """Fifty pairs of sets from one distribution: the mean is 0 within its standard error, and some are negative."""
        generator = torch.Generator().manual_seed(0)
        values = torch.tensor(
            [
                metrics.kernel_distance(
                    torch.randn(60, 4, generator=generator),
                    Reference.of_features(torch.randn(60, 4, generator=generator)),
                )[0]
                for _ in range(50)
            ]
        )
        assert abs(float(values.mean())) < 3.5 * float(values.std()) / math.sqrt(50)
        assert float(values.min()) < 0 < float(values.max())

    def test_subsets_are_addressed_by_the_seed(self):
        x, reference = torch.randn(100, 3), Reference.of_features(torch.randn(120, 3))
        state = torch.get_rng_state()
        a, b, c = (metrics.kernel_distance(x, reference, subset_size=30, seed=seed) for seed in (0, 0, 1))
        assert a == b != c
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_reference_keeps_some_features_evenly(self, monkeypatch):
        monkeypatch.setattr(fid, "KEPT", 5)
        y = torch.arange(20.0)[:, None].repeat(1, 2)
        reference = Reference.of_features(y)
        assert reference.kept[:, 0].tolist() == [0, 4, 8, 12, 16]
        assert reference.count == 20


class TestInceptionScore:
    def test_of_certain_and_of_uninformed_guesses(self):
        """exp of the mean information: the number of classes for certain guesses, 1 for uninformative ones."""

        def classify(x):
            return x[:, :, 0, 0].float(), 1e4 * torch.eye(4)[x[:, 0, 0, 0].long() % 4]

        certain = Extractor("c", "c", torch.device("cpu"), classify)
        x = torch.arange(200, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8)
        mean, _ = metrics.inception_score(x, certain)
        assert mean == pytest.approx(4, rel=0.15)  # twenty images per split, so their frequencies fluctuate
        unsure = Extractor("u", "u", torch.device("cpu"), lambda x: (x[:, :, 0, 0].float(), torch.zeros(len(x), 4)))
        assert metrics.inception_score(x, unsure)[0] == pytest.approx(1, abs=1e-6)

    def test_it_needs_an_extractor_with_logits(self, extractor, tmp_path):
        with pytest.raises(ValueError, match=r"needs class logits.*gives features only"):
            metrics.inception_score(pixels(4), extractor)
        both = metrics.load_extractor(write_extractor(tmp_path / "both.pt", FeaturesAndLogits()))
        reference = metrics.make_reference(pixels(20), both, cache=False)
        quality = metrics.image_quality(pixels(20, seed=1), reference, both)
        assert quality["inception_score"] >= 1
        assert "inception_score" not in metrics.image_quality(pixels(20), pixels(20), extractor)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFEM_CACHE", str(tmp_path / "cache"))


class TestCache:
    def test_a_reference_is_computed_once(self, extractor, tmp_path, monkeypatch):
        x, y = pixels(30), pixels(40, seed=1)
        first = metrics.image_quality(x, y, extractor)
        files = list((tmp_path / "cache").iterdir())
        assert len(files) == 1
        reference = metrics.make_reference(y, extractor)
        assert torch.equal(reference.outer, Reference.load(files[0]).outer)
        assert metrics.image_quality(x, reference, extractor) == first
        monkeypatch.setattr(fid, "outputs", None)  # nothing is computed
        assert metrics.make_reference(y, extractor).key == reference.key

    def test_other_images_and_other_extractors_have_their_own_reference(self, extractor, tmp_path):
        other = metrics.load_extractor(write_extractor(tmp_path / "other.pt", FeaturesAndLogits()))
        y = pixels(10)
        changed = y.clone()
        changed[3, 0, 0, 0] ^= 1
        keys = {
            metrics.make_reference(images, network).key
            for images, network in ((y, extractor), (changed, extractor), (y[:9], extractor), (y, other))
        }
        assert len(keys) == 4

    def test_a_damaged_file_is_recomputed(self, extractor, tmp_path):
        reference = metrics.make_reference(pixels(10), extractor)
        (file,) = (tmp_path / "cache").iterdir()
        whole = file.read_bytes()
        for damage in (whole[:-10], b"", whole.replace(reference.key.encode(), b"0" * 32)):
            file.write_bytes(damage)
            assert torch.equal(metrics.make_reference(pixels(10), extractor).outer, reference.outer)
            assert file.read_bytes() == whole

    def test_nothing_is_cached_by_default(self, extractor, tmp_path):
        metrics.make_reference(pixels(10), extractor, cache=False)
        assert not (tmp_path / "cache").exists()
        metrics.make_reference(pixels(10), extractor, cache=tmp_path / "here")
        assert len(list((tmp_path / "here").iterdir())) == 1


def test_bad_input_is_rejected():
    reference = Reference.of_features(torch.randn(10, 4))
    for features in (torch.randn(5, 3), torch.randn(1, 4), torch.randn(4)):
        with pytest.raises(ValueError, match=r"features \(n, 4\) of at least two"):
            metrics.frechet_distance(features, reference)
        with pytest.raises(ValueError, match=r"features \(n, 4\) of at least two"):
            metrics.kernel_distance(features, reference)
    with pytest.raises(ValueError, match="at least two images"):
        Reference.of_features(torch.randn(1, 4))


def test_a_missing_torchmetrics_is_named(extractor, monkeypatch):
    monkeypatch.setattr(fid, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'diffem\[metrics\]'"):
        metrics.make_reference(pixels(4), extractor)


def test_real_images_with_the_real_network():
    """Real images are close to other real images and far from noise.

    With 16 images FID is mostly bias, so only its order is tested.
    """
    from diffem.datasets import cifar10

    extractor = metrics.load_extractor(asset("fid/inception-2015-12-05.pt"))
    x = cifar10.images(asset("cifar10"))[:32]
    reference = metrics.make_reference(x[:16], extractor)
    real = metrics.image_quality(x[16:], reference, extractor)
    noise = metrics.image_quality(pixels(16, size=32), reference, extractor)
    # the set compared with itself
    assert metrics.image_quality(x[:16], reference, extractor)["fid"] == pytest.approx(0, abs=1e-2)
    assert noise["fid"] > real["fid"] + 100
    assert abs(real["kid"]) < 0.05
    assert noise["kid"] > 0.2
