"""CIFAR-10: files, scale and corruption, on synthetic batches, and on the real images if they are available."""

import hashlib

import numpy as np
import pytest
import torch

from diffem.core.randomness import Stream
from diffem.datasets import cifar10
from diffem.runs.sources import make_problem

from ..assets import asset


def pixels(n, seed=0):
    return torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def write_batch(path, x):
    """One byte with the label, then the red, green and blue planes, row by row."""
    records = np.concatenate([np.arange(len(x), dtype=np.uint8)[:, None] % 10, x.flatten(1).numpy()], 1)
    path.write_bytes(records.tobytes())


@pytest.fixture
def folder(tmp_path):
    """Five training batches of 6 and a test batch of 4."""
    for k, part in enumerate(pixels(30).split(6), 1):
        write_batch(tmp_path / f"data_batch_{k}.bin", part)
    write_batch(tmp_path / "test_batch.bin", pixels(4, seed=1))
    return tmp_path


class TestFiles:
    def test_binary_batches_are_read(self, folder):
        assert torch.equal(cifar10.images(folder), pixels(30))
        assert torch.equal(cifar10.images(folder, "test"), pixels(4, seed=1))

    def test_the_folder_of_the_official_archive(self, folder, tmp_path_factory):
        outer = tmp_path_factory.mktemp("outer")
        folder.rename(outer / "cifar-10-batches-bin")
        assert torch.equal(cifar10.images(outer), pixels(30))

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)], ids=["channels first", "channels last"])
    def test_npz_files_are_read(self, tmp_path, order):
        np.savez(tmp_path / "train.npz", images=pixels(5).numpy().transpose(order))
        read = cifar10.images(tmp_path)
        assert torch.equal(read, pixels(5))
        assert read.is_contiguous()

    def test_bad_files_are_rejected(self, folder):
        def refused(words, split="train", where=folder):
            with pytest.raises(ValueError, match=f"(?s){words}"):
                cifar10.images(where, split)

        refused("folder .*nowhere.* does not exist.*binary version.*cs.toronto.edu", where=folder / "nowhere")
        refused("unknown split 'valid'.*train, test", "valid")
        batch = folder / "data_batch_3.bin"
        whole = batch.read_bytes()
        batch.write_bytes(whole[:-1])
        refused("data_batch_3.bin is truncated.*multiple of 3073 bytes.*got 18437")
        batch.write_bytes(b"")
        refused("data_batch_3.bin is truncated.*got 0")
        batch.write_bytes(whole[:-3073])  # truncated between two images
        refused("same number of images.*data_batch_2.bin 6, data_batch_3.bin 5")
        batch.write_bytes(b"\x63" + whole[1:])
        refused("data_batch_3.bin is not a batch of CIFAR-10: labels must be 0 … 9, got 99")
        batch.unlink()
        refused("lacks data_batch_3.bin of CIFAR-10's 5 training batches")

    def test_folders_without_data_are_rejected(self, tmp_path):
        with pytest.raises(ValueError, match=r"neither data_batch_1.bin … data_batch_5.bin nor train.npz; get"):
            cifar10.images(tmp_path)
        with pytest.raises(ValueError, match=r"neither test_batch.bin nor test.npz; get"):
            cifar10.images(tmp_path, "test")
        (tmp_path / "data_batch_1").write_bytes(b"a pickle")
        with pytest.raises(ValueError, match="Python version in that folder consists of pickles"):
            cifar10.images(tmp_path)

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"x": np.zeros(3)}, "holds x; needed: an array 'images'"),
            ({"images": np.zeros((2, 3, 32, 32))}, r"uint8 of shape.*float64 \(2, 3, 32, 32\)"),
            ({"images": np.zeros((2, 1, 28, 28), np.uint8)}, r"\(3, 32, 32\), got \(1, 28, 28\)"),
            ({"images": np.zeros((0, 3, 32, 32), np.uint8)}, r"uint8 \(0, 3, 32, 32\)"),
            ({"images": np.array([None, {}], dtype=object)}, "cannot be read"),
        ],
    )
    def test_bad_npz_files_are_rejected(self, arrays, words, tmp_path):
        np.savez(tmp_path / "train.npz", **arrays)
        with pytest.raises(ValueError, match=words):
            cifar10.images(tmp_path)
        (tmp_path / "train.npz").write_bytes(b"PK\x03\x04 and no more")
        with pytest.raises(ValueError, match="cannot be read"):
            cifar10.images(tmp_path)


def test_the_scale_and_back():
    every = torch.arange(256, dtype=torch.uint8)
    x = cifar10.from_uint8(every)
    assert torch.equal(x, torch.arange(256) / 64 - 2)  # a power of two: exact
    assert (float(x[0]), float(x[-1])) == cifar10.RANGE
    assert torch.equal(cifar10.to_uint8(x), every)
    assert cifar10.to_uint8(torch.tensor([-9.0, -2 + 0.4 / 64, -2 + 0.6 / 64, 9.0])).tolist() == [0, 0, 1, 255]


class TestSource:
    def test_pixels_are_missing_in_all_channels_together(self, folder):
        problem = make_problem("cifar10", 0, {"folder": str(folder)})
        obs, x = problem.obs, problem.reference
        assert torch.equal(x, cifar10.from_uint8(pixels(30)))
        assert problem.range == cifar10.RANGE
        assert obs.measured.shape == (30, 1, 32, 32)
        # 30,720 pixels, each measured with probability 1/4: std of the fraction 0.0025
        assert float(obs.measured.double().mean()) == pytest.approx(0.25, abs=0.01)
        # 23,000 squared normals: std of their mean 0.009
        assert float(obs.chi2(x).mean()) == pytest.approx(1.0, abs=0.04)
        assert len(obs.measured.flatten(1).unique(dim=0)) == 30

    def test_every_observation_is_addressed_by_seed_split_and_index(self, folder, monkeypatch):
        settings = {"folder": str(folder), "missing": 0.5, "sigma": 0.1}
        whole = make_problem("cifar10", 3, settings)
        monkeypatch.setattr(cifar10, "CHUNK", 4)
        first = make_problem("cifar10", 3, {**settings, "n": 7})
        assert torch.equal(first.obs.y, whole.obs.y[:7])
        assert torch.equal(first.obs.measured, whole.obs.measured[:7])
        mask = Stream(3, "cifar10 train mask").uniform(torch.tensor([5]), (1, 32, 32)) >= 0.5
        noise = Stream(3, "cifar10 train noise").normal(torch.tensor([5]), (3, 32, 32))
        expected = torch.where(mask, whole.reference[5:6] + 0.1 * noise, 0)
        assert torch.allclose(whole.obs.y[5:6], expected, atol=1e-6)
        test = make_problem("cifar10", 3, {**settings, "split": "test"})
        assert not torch.equal(test.obs.measured, whole.obs.measured[:4])

    def test_images_can_be_complete_and_without_noise(self, folder):
        obs = make_problem("cifar10", 0, {"folder": str(folder), "missing": 0, "sigma": 0, "n": 7}).obs
        assert torch.equal(cifar10.to_uint8(obs.y), pixels(30)[:7])
        assert obs.measured is None

    def test_bad_settings_are_rejected(self, folder):
        for settings, words in (
            ({"missing": 1.0}, r"\[0, 1\), got 1.0"),
            ({"n": 31}, "from 1 to 30.*got 31"),
            ({"n": 0}, "from 1 to 30.*got 0"),
            ({"sigma": 0.0}, "positive"),
            ({"colour": "grey"}, "does not accept these settings"),
        ):
            with pytest.raises(ValueError, match=words):
                make_problem("cifar10", 0, {"folder": str(folder), **settings})


def test_the_real_images_are_complete():
    folder = asset("cifar10")
    train, test = cifar10.images(folder), cifar10.images(folder, "test")
    assert train.shape == (50_000, 3, 32, 32)
    assert test.shape == (10_000, 3, 32, 32)
    # the channels' mean pixel values, as published with every CIFAR-10 pipeline: 0.4914, 0.4822, 0.4465
    means = train.float().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert len({hashlib.sha256(x.numpy().tobytes()).digest() for x in train[:1000]}) == 1000
    problem = make_problem("cifar10", 0, {"folder": str(folder), "n": 64})
    assert torch.equal(cifar10.to_uint8(problem.reference), train[:64])
