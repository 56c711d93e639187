"""Column masks and their noise: the paper's numbers, addresses, and the cache of measured columns."""

import itertools
import shutil

import numpy as np
import pytest
import torch

from diffem import Observations
from diffem.mri import kspace_cache
from diffem.mri.kspace import (
    Acquisition,
    central,
    centre_columns,
    column_masks,
    column_noise,
    column_probability,
    operator,
    put_columns,
    take_columns,
)
from diffem.mri.kspace_cache import Slices, cache_kspace, in_memory, on_disk
from diffem.observations.fingerprint import fingerprint


class TestMasks:
    def test_masks_have_the_papers_numbers_of_columns(self):
        assert centre_columns(320, 6) == 20
        assert column_probability(6) == pytest.approx(200 / 1800)
        for accel in (4, 6, 10, 12, 20, 30):  # if R divides 60, 320/R columns on average
            c = centre_columns(320, accel)
            assert c + (320 - c) * column_probability(accel) == pytest.approx(320 / accel)

    def test_the_number_of_columns_follows(self):
        index = torch.arange(4000)
        masks = column_masks(index, 320, 6, seed=0)
        # 300 columns with p = 1/9: a standard deviation of 5.4, of the mean of 4,000 masks 0.09
        assert float(masks.sum(1).double().mean()) == pytest.approx(320 / 6, abs=0.35)
        assert masks[:, central(320, 6)].all()
        assert central(320, 6).nonzero().flatten().tolist() == list(range(150, 170))
        rate = masks[:, ~central(320, 6)].double().mean(0)
        assert float((rate - 1 / 9).abs().max()) < 5 * (1 / 9 * 8 / 9 / 4000) ** 0.5

    def test_a_mask_is_a_function_of_seed_and_slice(self):
        index = torch.arange(64)
        masks = column_masks(index, 160, 6, seed=0)
        assert torch.equal(column_masks(index[17:20], 160, 6, seed=0), masks[17:20])
        assert len(masks.unique(dim=0)) == 64
        assert not torch.equal(masks, column_masks(index, 160, 6, seed=1))

    def test_masks_of_a_slice_are_nested(self):
        index = torch.arange(100)
        masks = [column_masks(index, 160, accel, seed=3) for accel in (1, 4, 6, 8, 16, 32)]
        assert masks[0].all()
        for more, fewer in itertools.pairwise(masks):
            assert (more | ~fewer).all()

    @pytest.mark.parametrize("accel", [0.5, 0, -2, float("nan"), "six"])
    def test_bad_accelerations_are_rejected(self, accel):
        with pytest.raises(ValueError, match="accel"):
            Acquisition(accel, 0.1, 0)

    def test_bad_noise_is_rejected(self):
        with pytest.raises(ValueError, match="sigma must be a positive number, got 0"):
            Acquisition(4, 0, 0)


def test_taking_columns_and_putting_them_back():
    masks = torch.rand(3, 8) < 0.5
    y = torch.randn(3, 2, 6, 8, 2)
    kept = torch.where(masks[:, None, None, :, None], y, 0)
    columns = take_columns(y, masks)
    assert columns.shape == (int(masks.sum()), 2, 6, 2)
    assert torch.equal(put_columns(columns, masks), kept)


def test_the_noise_of_a_column_does_not_depend_on_the_others():
    index = torch.tensor([5, 9])
    few, many = torch.rand(2, 16) < 0.3, torch.ones(2, 16, dtype=torch.bool)
    everything = put_columns(column_noise(index, many, (6, 2), seed=0), many)
    some = put_columns(column_noise(index, few, (6, 2), seed=0), few)
    assert torch.equal(some, torch.where(few[:, None, :, None], everything, 0))
    assert torch.equal(
        column_noise(index[1:], few[1:], (6, 2), seed=0), column_noise(index, few, (6, 2), 0)[few[0].sum() :]
    )


def measured(channels, n=7, coils=None, accel=3):
    x = torch.randn(n, channels, 12, 16)
    maps = None if coils is None else torch.randn(n, coils, 12, 16, 2)
    columns, masks = Acquisition(accel, 0.05, 0).measure(x, torch.arange(n), maps)
    return x, Slices(columns, masks, torch.full((n,), 0.05, dtype=torch.float64), maps, x)


def parts(slices, step=3):
    """The same slices in several batches."""
    ends = [0, *slices.masks.sum(1).cumsum(0).tolist()]
    for a in range(0, len(slices.masks), step):
        b = min(a + step, len(slices.masks))
        coils = None if slices.coils is None else slices.coils[a:b]
        yield Slices(
            slices.columns[ends[a] : ends[b]], slices.masks[a:b], slices.sigma[a:b], coils, slices.reference[a:b]
        )


CASES = pytest.mark.parametrize(("channels", "coils"), [(1, None), (2, None), (1, 3), (2, 3)])


class TestCache:
    @CASES
    def test_what_is_read_is_what_was_measured(self, channels, coils, tmp_path):
        x, slices = measured(channels, coils=coils)
        A = operator(slices.masks, slices.coils, channels == 2)
        whole = Observations(put_columns(slices.columns, slices.masks), A, sigma=0.05)
        # χ² of the truth: 7 slices of some hundred values each, standard deviation √(2/m)
        assert float(whole.chi2(x).mean()) == pytest.approx(1, abs=5 * (2 / int(whole.counts().sum())) ** 0.5)
        for cache in (
            in_memory(parts(slices), channels == 2),
            on_disk(parts(slices), channels == 2, tmp_path, {"made": "here"}),
        ):
            obs = cache.observations()
            assert len(obs) == 7
            assert obs.x_shape == (channels, 12, 16)
            for index in (slice(2, 5), [6, 0, 6], [3], -1):
                got, expected = obs[index], whole[index]
                some = x[-1:] if index == -1 else x[index]
                assert torch.equal(got.y, expected.y)
                assert torch.equal(got.A(some), expected.A(some))
                assert torch.equal(got.chi2(some), expected.chi2(some))
            assert torch.equal(cache.reference[[4, 1]], x[[4, 1]])

    def test_indexing_reads_nothing_and_composes(self, tmp_path):
        _, slices = measured(1)
        cache = on_disk(parts(slices), False, tmp_path, {})
        calls = []
        read = cache.read
        cache.read = lambda rows: (calls.append(rows.tolist()), read(rows))[1]
        part = cache.observations()[torch.tensor([6, 4, 2, 0])][1:3]
        assert (len(part), calls) == (2, [])
        part.to(torch.float64)
        assert calls == [[4, 2]]
        with pytest.raises(ValueError, match="the index selects no observations"):
            part[5:]

    def test_the_fingerprint_depends_on_data_and_rows(self, tmp_path):
        _, slices = measured(1)
        obs = on_disk(parts(slices), False, tmp_path / "a", {}).observations()
        same = on_disk(parts(slices, 2), False, tmp_path / "b", {"other": 1}).observations()
        slices.columns[0, 0, 0, 0] += 1e-3
        changed = on_disk(parts(slices), False, tmp_path / "c", {}).observations()
        assert fingerprint(obs.tensors()) == fingerprint(same.tensors())
        assert fingerprint(obs.tensors()) != fingerprint(changed.tensors())
        assert fingerprint(obs.tensors()) != fingerprint(obs[1:].tensors())

    def test_a_cache_is_built_once(self, tmp_path):
        _, slices = measured(1)

        def never():
            raise AssertionError("made again")
            yield

        on_disk(parts(slices), False, tmp_path, {"a": 1})
        assert len(on_disk(never(), False, tmp_path, {"a": 1})) == 7
        with pytest.raises(AssertionError, match="made again"):
            on_disk(never(), False, tmp_path, {"a": 2})
        assert [p.name[0] for p in tmp_path.iterdir()] == ["k"]  # no partial cache is left

    @pytest.mark.parametrize(("cache", "folder"), [(None, "environment"), ("recipe", "recipe")])
    def test_the_folder_is_that_of_the_recipe_or_of_the_environment(self, cache, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("DIFFEM_CACHE", str(tmp_path / "environment"))
        _, slices = measured(1)
        named = None if cache is None else str(tmp_path / cache)
        cache_kspace(parts(slices), False, kspace_cache.MEMORY + 1, named, {})
        assert [path.parent for path in tmp_path.glob("*/kspace-*")] == [tmp_path / folder]

    def test_a_cache_of_other_data_is_rejected(self, tmp_path):
        """A complete cache folder of the same shape, copied to the name of another cache."""
        _, slices = measured(1)
        for a in (1, 2):
            on_disk(parts(slices), False, tmp_path / f"{a}", {"a": a})
        (first,), (second,) = ((tmp_path / f"{a}").iterdir() for a in (1, 2))
        shutil.rmtree(first)
        shutil.copytree(second, first)
        with pytest.raises(ValueError, match="is a cache of other data; remove it"):
            on_disk(parts(slices), False, tmp_path / "1", {"a": 1})

    def test_a_damaged_cache_is_rejected(self, tmp_path):
        _, slices = measured(1)
        on_disk(parts(slices), False, tmp_path, {})
        (folder,) = tmp_path.iterdir()
        data = (folder / "columns.bin").read_bytes()
        (folder / "columns.bin").write_bytes(data[:-4])
        with pytest.raises(ValueError, match=r"columns.bin is damaged"):
            on_disk(parts(slices), False, tmp_path, {})
        (folder / "shelf.json").write_text("{}")
        with pytest.raises(ValueError, match="not a k-space cache"):
            on_disk(parts(slices), False, tmp_path, {})

    def test_noise_levels_that_differ(self):
        _, slices = measured(1)
        slices.sigma = torch.linspace(0.1, 0.7, 7)
        obs = in_memory(parts(slices), False).observations()
        assert np.allclose(obs.cov.diagonal((1,)).flatten().sqrt(), slices.sigma)
