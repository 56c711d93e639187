"""Real images from files: order, scale, and a division into training and held-out slices without leakage."""

import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from diffem.mri.image_files import ImageSet, read_images
from diffem.mri.images import divide, fingerprints, prepare, to_samples
from diffem.runs.sources import make_problem


def picture(seed, size=24):
    return np.random.default_rng(seed).integers(0, 256, (size, size), dtype=np.uint8)


def folder_of_images(path, groups=("a", "b"), count=40):
    for g, name in enumerate(groups):
        (path / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(picture(1000 * g + i)).save(path / name / f"{i:03d}.png")
    return path


class TestReading:
    def test_a_folder_its_tar_and_its_npz_are_the_same(self, tmp_path):
        folder = folder_of_images(tmp_path / "images", count=5)
        with tarfile.open(tmp_path / "images.tar", "w") as archive:
            archive.add(folder, ".")
        words = prepare(str(tmp_path / "images.tar"), tmp_path / "images.npz")
        assert words == "10 images of 24×24 in 2 groups"
        sets = [read_images(str(tmp_path / name)) for name in ("images", "images.tar", "images.npz")]
        for got in sets:
            assert np.array_equal(got.pixels, np.stack([picture(1000 * g + i) for g in range(2) for i in range(5)]))
            assert got.groups.tolist() == [0] * 5 + [1] * 5

    def test_jpeg_files_are_read(self, tmp_path):
        Image.fromarray(np.full((16, 16), 77, np.uint8)).convert("RGB").save(tmp_path / "x.jpg")
        assert (read_images(str(tmp_path)).pixels == 77).all()

    def test_fitted_into_a_square(self, tmp_path):
        Image.fromarray(np.full((20, 40), 200, np.uint8)).save(tmp_path / "x.png")
        pixels = read_images(str(tmp_path), size=20).pixels[0]
        assert (pixels[5:15] == 200).all()
        assert (pixels[:5] == 0).all()

    def test_pixels_are_scaled_to_minus_2_to_2(self):
        assert to_samples(np.array([[[0, 255]]], np.uint8), 255.0, None).tolist() == [[[[-2.0, 2.0]]]]
        z = np.array([[[[4095]], [[-4095]]]], np.int16)
        assert ImageSet(z, np.zeros(1)).unit(None) == 4095
        assert to_samples(z, 4095.0, None).flatten().tolist() == [2.0, -2.0]
        assert (
            to_samples(np.full((1, 32, 32), 255, np.uint8), 255.0, 16).tolist()
            == torch.full((1, 1, 16, 16), 2.0).tolist()
        )

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda p: None, "no folder, tar archive or .npz"),
            (lambda p: p.mkdir(), "no .jpg, .jpeg, .png images"),
            (lambda p: p.write_text("no"), "not a folder, a tar archive or"),
            (lambda p: (p.mkdir(), (p / "x.jpg").write_bytes(b"no")), "x.jpg cannot be read as an image"),
            (
                lambda p: (p.mkdir(), [Image.new("L", (8, k)).save(p / f"{k}.png") for k in (8, 9)]),
                "images must have the same size.*diffem prepare",
            ),
        ],
    )
    def test_wrong_files_are_rejected(self, make, words, tmp_path):
        make(tmp_path / "images")
        with pytest.raises(ValueError, match=words):
            read_images(str(tmp_path / "images"))

    def test_wrong_arrays_are_rejected(self, tmp_path):
        path = tmp_path / "x.npz"
        for arrays, words in (
            ({"other": np.zeros(3)}, "holds other; needed: an array 'images' or 'image'"),
            ({"images": np.zeros((2, 3, 4, 5))}, r"\(n, 2, H, W\), got float64 \(2, 3, 4, 5\)"),
            ({"images": np.zeros((2, 4, 4)), "groups": np.zeros(3)}, "one entry per image"),
            ({"images": np.full((2, 4, 4), np.nan)}, "be finite"),
        ):
            np.savez(path, **arrays)
            with pytest.raises(ValueError, match=words):
                read_images(str(path))
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(ValueError, match="cannot be read"):
            read_images(str(path))


class TestDivision:
    def images(self, n=120):
        return ImageSet(np.stack([picture(i) for i in range(n)]), np.repeat([0, 1], n // 2))

    def test_blocks_at_the_end_of_every_group_and_a_gap_before_them(self):
        division = divide(self.images(), 0.1, 5, 1.0)
        assert division.heldout.tolist() == [*range(54, 60), *range(114, 120)]
        assert division.train.tolist() == [*range(49), *range(60, 109)]
        assert (division.copies, division.between, division.alike) == (0, 10, 0)

    def test_nothing_held_out_needs_no_gap(self):
        assert len(divide(self.images(), 0.0, 5, 0.6).train) == 120

    def test_copies_count_once(self):
        images = self.images()
        images.pixels[7] = images.pixels[3]
        images.pixels[59] = images.pixels[2]  # a copy at the end of a group, which would be held out
        division = divide(images, 0.1, 5, 1.0)
        assert division.copies == 2
        assert not {7, 59} & set(division.part("all").tolist())

    def test_a_training_image_that_resembles_a_held_out_one_is_left_out(self):
        images = self.images()
        noisy = images.pixels[118].astype(float) * 0.9 + 10 + np.random.default_rng(0).normal(size=(24, 24))
        images.pixels[20] = noisy.clip(0, 255).astype(np.uint8)
        division = divide(images, 0.1, 5, 0.6)
        assert division.alike == 1
        assert 20 not in division.train.tolist()
        assert 118 in division.heldout.tolist()
        f = fingerprints(images)
        assert float(f[20] @ f[118]) > 0.95

    def test_bad_settings_are_rejected(self):
        with pytest.raises(ValueError, match=r"got 1\.5, 5, 0\.6"):
            divide(self.images(), 1.5, 5, 0.6)
        with pytest.raises(ValueError, match="'train', 'heldout' or 'all'"):
            divide(self.images(), 0.1, 5, 0.6).part("test")


class TestSource:
    def test_parts_are_disjoint_and_keep_their_addresses(self, tmp_path):
        path = str(folder_of_images(tmp_path / "images"))
        options = {"path": path, "heldout": 0.2, "gap": 2, "accel": 2, "resemblance": 0.9}
        train, held, every = (
            make_problem("mri_images", 0, {**options, "part": p}) for p in ("train", "heldout", "all")
        )
        assert (len(train.obs), len(held.obs), len(every.obs)) == (60, 16, 76)
        assert torch.equal(train.obs.y, every.obs.y[[*range(30), *range(38, 68)]])
        assert torch.equal(held.reference, every.reference[[*range(30, 38), *range(68, 76)]])
        assert "left out: 0 exact copies, 4 in the gaps, 0 that resemble" in train.about
        assert float(every.obs.chi2(every.reference).mean()) == pytest.approx(1, abs=0.03)  # 44,000 values: 0.7 %
        assert len(make_problem("mri_images", 0, {**options, "part": "heldout", "n": 4}).obs) == 4
        with pytest.raises(ValueError, match=r"data\.n must be from 1 to 16"):
            make_problem("mri_images", 0, {**options, "part": "heldout", "n": 17})

    def test_complex_images_are_recognised(self, tmp_path):
        z = np.random.default_rng(0).integers(-2000, 2000, (30, 2, 16, 16)).astype(np.int16)
        np.savez(tmp_path / "x.npz", image=z)
        problem = make_problem("mri_images", 0, {"path": str(tmp_path / "x.npz"), "accel": 4, "resemblance": 0.9})
        assert problem.obs.x_shape == (2, 16, 16)
        assert problem.obs.A.complex
        assert np.allclose(problem.reference[0], 2 * z[0] / 4095)
        assert "complex" in problem.about

    def test_magnitudes_that_would_be_clipped_are_refused_or_counted(self, tmp_path):
        pixels = np.random.default_rng(0).integers(0, 4000, (30, 16, 16)).astype(np.int16)
        pixels[3, :4, :8] = 6000
        options = {"path": str(tmp_path / "x.npz"), "accel": 4, "resemblance": 1.0}
        np.savez(options["path"], images=pixels)
        with pytest.raises(ValueError, match=r"between 0 and data\.scale, here 4095; got 0 to 6000"):
            make_problem("mri_images", 0, options)
        assert (
            "0.42% of the pixels are above data.scale" in make_problem("mri_images", 0, {**options, "scale": 5e3}).about
        )
        assert "above data.scale" not in make_problem("mri_images", 0, {**options, "scale": 6000}).about
        with pytest.raises(ValueError, match=r"data\.scale must be a positive number, got inf"):
            make_problem("mri_images", 0, {**options, "scale": float("inf")})
        np.savez(tmp_path / "standardised.npz", images=pixels / 2000 - 1)
        with pytest.raises(ValueError, match="got -1 to 2"):
            make_problem("mri_images", 0, {**options, "path": str(tmp_path / "standardised.npz")})

    def test_images_are_resized(self, tmp_path):
        path = str(folder_of_images(tmp_path / "images", count=20))
        problem = make_problem("mri_images", 0, {"path": path, "size": 12, "resemblance": 1.0})
        assert problem.obs.x_shape == (1, 12, 12)
        with pytest.raises(ValueError, match=r"data\.size must be a positive integer, got 'big'"):
            make_problem("mri_images", 0, {"path": path, "size": "big"})
