"""fastMRI files: scale, masks and noise as specified, acquired k-space, and error messages for invalid files."""

import os

import h5py
import numpy as np
import pytest
import torch

from diffem.mri.coils import corner_samples, estimate_maps, noise_covariance, whitening
from diffem.runs.sources import make_problem

from .volumes import coil_maps, fft2c, phantom, write_volume


def source(path, **options):
    options = {"path": str(path), "slices": [1, 5], **options}
    return make_problem("fastmri", 0, options)


class TestSimulated:
    def test_scale_slices_and_order(self, tmp_path):
        made = [write_volume(tmp_path / f"{name}.h5", seed=i) for i, name in enumerate("bca")]
        problem = source(tmp_path, accel=2)
        expected = [4 * np.abs(made[i]["u"][1:5]) / made[i]["max"] - 2 for i in (2, 0, 1)]  # a, b, c
        assert np.allclose(problem.reference[:, 0], np.concatenate(expected), atol=1e-5)
        assert float(problem.reference.min()) >= -2
        assert problem.obs.y.shape == (12, 1, 16, 16, 2)
        assert "12 slices of 3 volumes" in problem.about
        assert "noise level 0.01" in problem.about

    def test_every_value_of_k_space_has_the_given_noise(self, tmp_path):
        for i in range(8):
            write_volume(tmp_path / f"{i}.h5", seed=i)
        problem = source(tmp_path, accel=2, sigma=0.3, slices=[0, None])
        residual = problem.obs.residual(problem.reference)
        measured = problem.obs.measured.expand_as(residual)
        for part in (0, 1):  # real and imaginary: about 6,000 values each, so 0.9 % of error
            assert float(residual[..., part][measured[..., part]].std()) == pytest.approx(0.3, rel=0.04)
        assert float(problem.obs.chi2(problem.reference).mean()) == pytest.approx(1, abs=0.06)

    def test_complex_images_are_those_of_the_k_space(self, tmp_path):
        made = write_volume(tmp_path / "v.h5")
        problem = source(tmp_path, complex=True, accel=1)
        u = torch.view_as_complex(problem.reference.movedim(1, -1).contiguous()).numpy()
        assert np.allclose(u, 2 * made["u"][1:5] / made["max"], atol=2e-5)
        assert problem.obs.x_shape == (2, 16, 16)

    def test_complex_images_of_several_coils_keep_the_magnitude(self, tmp_path):
        made = write_volume(tmp_path / "v.h5", coils=4, kspace=(64, 48), size=(48, 48))
        problem = source(tmp_path, complex=True, accel=1)
        u = torch.hypot(problem.reference[:, 0], problem.reference[:, 1]).numpy()
        # the maps are estimated at low resolution, so the error of the combined magnitude is a few per cent of the
        # maximum
        assert np.abs(u - 2 * np.abs(made["u"][1:5]) / made["max"]).max() < 0.1

    def test_windows_and_ranges_select_slices_of_volumes(self, tmp_path):
        made = [write_volume(tmp_path / f"{i}.h5", seed=i) for i in range(3)]
        problem = source(tmp_path, size=[8, 12], files=[1, 2], slices=[2, None])
        expected = 4 * np.abs(made[1]["u"][2:, 4:12, 2:14]) / made[1]["max"] - 2
        assert np.allclose(problem.reference[:, 0], expected, atol=1e-5)

    def test_images_are_measured_with_coil_maps(self, tmp_path):
        write_volume(tmp_path / "v.h5")
        np.save(tmp_path / "maps.npy", coil_maps(3, 16, 16))
        problem = source(tmp_path, coils=str(tmp_path / "maps.npy"))
        assert problem.obs.y.shape == (4, 1, 3, 16, 16, 2)
        assert float(problem.obs.chi2(problem.reference).mean()) == pytest.approx(1, abs=0.2)

    def test_observations_in_memory_and_on_disk_are_bit_identical(self, tmp_path):
        write_volume(tmp_path / "v.h5")
        memory, disk = source(tmp_path), source(tmp_path, cache=str(tmp_path / "cache"))
        assert torch.equal(memory.obs.y, disk.obs.y)
        assert torch.equal(memory.reference, disk.reference)
        assert len(list((tmp_path / "cache").iterdir())) == 1
        source(tmp_path, cache=str(tmp_path / "cache"), accel=4)
        assert len(list((tmp_path / "cache").iterdir())) == 2

    def test_changed_maps_are_measured_again(self, tmp_path):
        """The cache key depends on the state of the file of maps, not only on its name."""
        write_volume(tmp_path / "v.h5")
        maps, options = tmp_path / "maps.npy", {"coils": str(tmp_path / "maps.npy"), "cache": str(tmp_path / "cache")}
        np.save(maps, coil_maps(3, 16, 16))
        before = source(tmp_path, **options).obs.y
        np.save(maps, 1j * coil_maps(3, 16, 16))
        os.utime(maps, ns=(0, 0))  # a modification time that differs on any file system
        assert torch.equal(source(tmp_path, **options).obs.y, source(tmp_path, coils=str(maps)).obs.y)
        assert not torch.equal(source(tmp_path, **options).obs.y, before)


class TestAcquired:
    @pytest.mark.parametrize("coils", [None, 4])
    def test_the_observation_is_the_acquired_k_space(self, tmp_path, coils):
        """With the true maps, the true image explains the data to within the noise level estimated from the corners."""
        made = write_volume(tmp_path / "v.h5", coils=coils, kspace=(64, 32), size=(32, 32), sigma=0.02)
        extra = {}
        if coils:
            np.save(tmp_path / "maps.npy", made["maps"])
            extra["coils"] = str(tmp_path / "maps.npy")
        problem = source(tmp_path, mode="acquired", complex=True, accel=2, slices=[0, 6], **extra)
        x = torch.from_numpy(2 * made["u"] / made["max"])
        x = torch.view_as_real(x).movedim(-1, 1).float()
        sigma = float(problem.obs.cov.diagonal((1,)).flatten()[0].sqrt())
        # corners: 6 slices × 8 rows × 4 columns (× 4 coils), 192 complex samples give σ to 3.6 %; the tolerance is four
        # times that
        assert sigma == pytest.approx(2 * 0.02 * 3e-4 / made["max"], rel=0.15)
        assert float(problem.obs.chi2(x).mean()) == pytest.approx(1, abs=0.3)
        assert "estimated from the corners of k-space" in problem.about
        assert f"{sigma:.3g}"[:4] in problem.about

    def test_estimated_maps_explain_the_data(self, tmp_path):
        made = write_volume(tmp_path / "v.h5", coils=4, kspace=(64, 64), size=(64, 64), sigma=0.003)
        problem = source(tmp_path, mode="acquired", complex=True, accel=1, coils="estimate")
        # the least-squares image under the estimated maps (Σ|C|² = 1, so it is the adjoint) has the true magnitude
        # inside the object
        u = problem.obs.A.adjoint(problem.obs.y)
        u = torch.hypot(u[:, 0], u[:, 1]).numpy()
        truth = 2 * np.abs(made["u"][1:5]) / made["max"]
        inside = truth > 0.2
        assert np.abs(u - truth)[inside].mean() < 0.03

    @pytest.mark.parametrize("coils", [None, 3])
    def test_the_offset_of_magnitude_images_is_subtracted_from_k_space(self, tmp_path, coils):
        """x = 4u/max − 2 explains y ← 4y/max − 2A(1) as well as u explains the file; the maps contain the phase."""
        made = write_volume(tmp_path / "v.h5", coils=coils, kspace=(64, 64), size=(64, 64), sigma=0.02)
        phase = np.exp(1j * np.angle(made["u"][0]))  # the same for every slice of the phantom
        maps = phase[None] if coils is None else made["maps"] * phase
        np.save(tmp_path / "maps.npy", maps)
        problem = source(tmp_path, mode="acquired", accel=2, slices=[0, 6], coils=str(tmp_path / "maps.npy"))
        x = torch.from_numpy(4 * np.abs(made["u"]) / made["max"] - 2).float().unsqueeze(1)
        assert problem.obs.x_shape == (1, 64, 64)
        # the 384 complex samples of the corners give the variance to 5 %; the tolerance is four times that
        assert float(problem.obs.chi2(x).mean()) == pytest.approx(1, abs=0.2)

    def test_columns_that_were_not_measured_stay_unmeasured(self, tmp_path):
        mask = np.zeros(32, dtype=bool)
        mask[12:20] = mask[::3] = True
        made = write_volume(tmp_path / "v.h5", kspace=(64, 32), size=(32, 32), sigma=0.02, mask=mask)
        problem = source(tmp_path, mode="acquired", complex=True, accel=1)
        assert problem.obs.measured[:, 0, :, 0].expand(4, 32).numpy().tolist() == [mask.tolist()] * 4
        x = torch.view_as_real(torch.from_numpy(2 * made["u"][1:5] / made["max"])).movedim(-1, 1).float()
        assert float(problem.obs.chi2(x).mean()) == pytest.approx(1, abs=0.3)
        with pytest.raises(ValueError, match=r"measured \d+ of 32 columns.*\[32, 32\]"):
            source(tmp_path, mode="acquired", complex=True, accel=1, size=[32, 16])

    def test_maps_from_a_dataset_of_the_file(self, tmp_path):
        made = write_volume(tmp_path / "v.h5", coils=3)
        with h5py.File(tmp_path / "v.h5", "a") as file:
            file["sens"] = np.broadcast_to(made["maps"], (6, *made["maps"].shape)).astype(np.complex64)
        np.save(tmp_path / "maps.npy", made["maps"])
        options = {"mode": "acquired", "complex": True, "sigma": 0.01}
        a = source(tmp_path, coils="dataset sens", **options)
        b = source(tmp_path, coils=str(tmp_path / "maps.npy"), **options)
        assert torch.equal(a.obs.A._tensors["coils"], b.obs.A._tensors["coils"])


def test_whitening_makes_correlated_coils_independent():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    psi = torch.from_numpy(root @ root.conj().T)
    matrix, s = whitening(psi)
    assert torch.allclose(matrix @ psi @ matrix.mH, s**2 * torch.eye(3, dtype=psi.dtype), atol=1e-12)
    noise = torch.from_numpy(root @ (rng.normal(size=(3, 40000)) + 1j * rng.normal(size=(3, 40000))))
    assert torch.allclose(
        noise_covariance(noise, "x"), psi, atol=0.05 * float(psi.abs().max())
    )  # ten times the error of 0.5 %


def test_corners_are_those_of_the_measured_columns():
    kspace = torch.zeros(1, 1, 32, 32, dtype=torch.complex64)
    kspace[:, :, [0, 1, 30, 31]] = 1
    columns = torch.zeros(32, dtype=torch.bool)
    columns[4:28] = True
    assert (corner_samples(kspace, columns) == 1).all()
    assert corner_samples(kspace, columns).shape == (1, 4 * 2)


def test_estimated_maps_are_the_true_ones_up_to_the_images_phase():
    maps, u = coil_maps(4, 64, 64), phantom(1, 64, 64, 0)
    got = estimate_maps(torch.from_numpy(fft2c(maps * u[:, None])), torch.ones(64, dtype=torch.bool), 24, "x")[
        0
    ].numpy()
    inside = np.abs(u[0]) > 0.2
    relative = got / got[:1] * np.abs(got[:1]) - maps / maps[:1] * np.abs(maps[:1])
    assert np.abs(relative[:, inside]).max() < 0.05  # a resolution of 24 of 64 columns suffices for slowly varying maps


class TestWrongFiles:
    def refused(self, words, path, **options):
        with pytest.raises(ValueError, match=words):
            source(path, **options)

    def test_a_missing_path_is_refused(self, tmp_path):
        self.refused("no folder or file at", tmp_path / "none")
        self.refused(r"no \*.h5 files", tmp_path)

    def test_a_setting_of_the_other_mode_is_refused(self, tmp_path):
        write_volume(tmp_path / "v.h5")
        self.refused("'estimate' needs data.mode: acquired", tmp_path, coils="estimate")
        self.refused("has no reconstruction_rss.*data.image", tmp_path, image="reconstruction_rss")

    def test_other_files_are_refused(self, tmp_path):
        (tmp_path / "v.h5").write_text("once upon a time")
        self.refused("v.h5 cannot be read: it is not an HDF5 file", tmp_path)

    def test_truncated_files_are_refused(self, tmp_path):
        write_volume(tmp_path / "v.h5")
        data = (tmp_path / "v.h5").read_bytes()
        (tmp_path / "v.h5").write_bytes(data[: len(data) // 2])
        self.refused("v.h5 cannot be read: it is truncated", tmp_path)

    def test_an_hdf5_file_with_other_contents(self, tmp_path):
        with h5py.File(tmp_path / "v.h5", "w") as file:
            file["weather"] = np.zeros(3)
        self.refused("not a fastMRI file: .* it contains weather", tmp_path)

    @pytest.mark.parametrize(
        ("change", "words", "options"),
        [
            (lambda f: f.__delitem__("kspace"), "has no kspace", {"mode": "acquired", "complex": True}),
            (lambda f: f.__delitem__("reconstruction_esc"), "has no reconstruction", {}),
            (lambda f: f.attrs.__setitem__("max", 0.0), "max must be positive", {}),
            (lambda f: f.attrs.__setitem__("max", 1e-9), "must not exceed the attribute max", {}),
            (lambda f: f["reconstruction_esc"].__setitem__((2, 3, 3), np.nan), "not finite, in slices 1 to 4", {}),
            (lambda f: f["reconstruction_esc"].__setitem__((2, 3, 3), -1.0), "negative", {}),
            (
                lambda f: (f.__delitem__("kspace"), f.__setitem__("kspace", np.zeros((6, 8, 8)))),
                "kspace must be complex",
                {},
            ),
            (
                lambda f: (f.__delitem__("kspace"), f.__setitem__("kspace", np.zeros((5, 8, 8), np.complex64))),
                "differ in their number of slices",
                {},
            ),
            (
                lambda f: f.__setitem__("mask", np.ones(3)),
                "mask must have 16 columns like kspace, got 3",
                {"mode": "acquired", "complex": True},
            ),
            (
                lambda f: f["kspace"].__setitem__(..., 0),
                "zero everywhere",
                {"mode": "acquired", "complex": True},
            ),
        ],
    )
    def test_unsuitable_contents_are_refused(self, tmp_path, change, words, options):
        write_volume(tmp_path / "v.h5", sigma=0.01)
        with h5py.File(tmp_path / "v.h5", "a") as file:
            change(file)
        self.refused(words, tmp_path, **options)

    def test_sizes_that_differ_are_refused(self, tmp_path):
        write_volume(tmp_path / "a.h5")
        write_volume(tmp_path / "b.h5", kspace=(32, 20), size=(16, 20))
        self.refused(r"b.h5 has k-space 16×20, .*a.h5 has 16×16; all files of a run need the same size", tmp_path)
        assert source(tmp_path, size=16).obs.x_shape == (1, 16, 16)

    def test_bad_settings_are_refused(self, tmp_path):
        write_volume(tmp_path / "v.h5", sigma=0.01)
        write_volume(tmp_path / "m.h5", coils=2, sigma=0.01)
        self.refused("does not fit images of 16×16", tmp_path, size=64)
        self.refused("no volume in", tmp_path, slices=[10, 40])
        self.refused(r"data.slices must be a range .* got 7", tmp_path, slices=7)
        self.refused("data.mode must be", tmp_path, mode="magic")
        self.refused("data.image must be", tmp_path, image="reconstruction")
        self.refused("multi-coil: set data.coils", tmp_path / "m.h5", mode="acquired", complex=True)
        self.refused("complex = true, or data.coils = estimate", tmp_path / "v.h5", mode="acquired")
        self.refused("maps.npy cannot be read", tmp_path / "m.h5", mode="acquired", coils=str(tmp_path / "maps.npy"))
        np.save(tmp_path / "maps.npy", np.ones((2, 5, 5), np.complex64))
        self.refused("5×5 fit neither", tmp_path / "m.h5", mode="acquired", coils=str(tmp_path / "maps.npy"))
        np.save(tmp_path / "maps.npy", np.ones((3, 16, 16), np.complex64))
        self.refused(
            "maps of 3 coils for k-space of 2", tmp_path / "m.h5", mode="acquired", coils=str(tmp_path / "maps.npy")
        )
        self.refused("has no dataset 'sens'", tmp_path / "m.h5", mode="acquired", coils="dataset sens")

    def test_no_noise_in_the_corners(self, tmp_path):
        write_volume(tmp_path / "v.h5")
        with h5py.File(tmp_path / "v.h5", "a") as file:
            k = file["kspace"][...]
            k[:, [0, 1, -2, -1]] = 0
            file["kspace"][...] = k
        self.refused("cannot be estimated.*set data.sigma", tmp_path, mode="acquired", complex=True)
        assert source(tmp_path, mode="acquired", complex=True, sigma=0.01).obs.x_shape == (2, 16, 16)
