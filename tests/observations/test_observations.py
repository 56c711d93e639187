"""Observations: validation, slices, files."""

import json

import pytest
import torch
from safetensors.torch import save_file

from diffem import Observations, operators
from diffem.files import memory
from diffem.linalg import DenseCovariance, Diagonal, Isotropic, LowRank

from ..exact import random_covariance


def masked(n=4):
    mask = torch.rand(n, 3, 4, generator=torch.Generator().manual_seed(0)) < 0.6
    return Observations(torch.randn(n, 3, 4), operators.Mask(mask), sigma=0.1)


def test_residual_and_chi2_count_only_measured_values():
    obs, x = masked(), torch.randn(4, 3, 4)
    mask = obs.measured
    residual = torch.where(mask, obs.y - x, 0)
    assert torch.equal(obs.residual(x), residual)
    expected = residual.double().square().flatten(1).sum(1) / 0.1**2 / mask.flatten(1).sum(1)
    assert torch.allclose(obs.chi2(x), expected, rtol=1e-5)


def test_chi2_of_an_array_is_that_of_the_tensor():
    obs, x = masked(), torch.randn(4, 3, 4)
    assert torch.equal(obs.chi2(x.numpy()), obs.chi2(x))
    assert torch.equal(obs.residual(x.numpy()), obs.residual(x))


@pytest.mark.parametrize("shared", [True, False])
def test_chi2_under_a_full_noise_covariance(shared):
    """(y − Ax)ᵀ Σ⁻¹ (y − Ax) with the block of Σ on the measured values, divided by their number."""
    matrices = torch.stack([random_covariance(12, seed) for seed in range(4)])
    y, x = torch.randn(2, 4, 3, 4, dtype=torch.float64)
    mask = masked().measured
    obs = Observations(y, operators.Mask(mask), cov=DenseCovariance(matrices[0] if shared else matrices))
    for i in range(4):
        keep = mask[i].flatten()
        residual, block = (y - x)[i].flatten()[keep], matrices[0 if shared else i][keep][:, keep]
        expected = residual @ torch.linalg.solve(block, residual) / keep.sum()
        assert float(obs.chi2(x)[i]) == pytest.approx(float(expected), rel=1e-10)


def test_the_noise_level_of_unmeasured_values_is_ignored():
    """Maps of the noise often have NaN or 0 where nothing was measured."""
    obs, x = masked(), torch.randn(4, 3, 4)
    sigma = torch.rand(4, 3, 4) + 0.1
    whole = Observations(obs.y, obs.A, sigma=sigma)
    for unused in (torch.nan, 0.0, torch.inf, 1e30, 1e-30):
        found = Observations(obs.y, obs.A, sigma=torch.where(obs.measured, sigma, unused))
        assert torch.equal(found.chi2(x), whole.chi2(x))
        assert float(found.cov.diagonal((3, 4)).max()) == pytest.approx(float(sigma[obs.measured].max()) ** 2)
    sigma[obs.measured] = torch.nan
    with pytest.raises(ValueError, match="sigma must be positive and finite"):
        Observations(obs.y, obs.A, sigma=sigma)


def test_a_full_noise_covariance_takes_the_dtype_of_y():
    matrix, y = random_covariance(3), torch.randn(2, 3)
    found = Observations(y, operators.Identity(), cov=DenseCovariance(matrix)).chi2(torch.zeros(2, 3))
    assert torch.allclose(found, (y.double() * torch.linalg.solve(matrix, y.double().T).T).sum(1) / 3, rtol=1e-5)


def test_a_large_y_is_checked_in_parts_and_not_copied(monkeypatch):
    from diffem.observations import arrays

    monkeypatch.setattr(arrays, "CHUNK_BYTES", 100)  # two observations of 3 × 4 at a time
    mask = torch.rand(7, 3, 4) < 0.5
    mask[:, 0, 0], mask[:, 0, 1] = True, False
    y = torch.where(mask, torch.randn(7, 3, 4), 0)
    assert Observations(y, operators.Mask(mask), sigma=1.0).y.data_ptr() == y.data_ptr()
    noisy = y.clone()
    noisy[5, 0, 1] = torch.nan  # unmeasured entries are set to 0 in a copy
    assert torch.equal(Observations(noisy, operators.Mask(mask), sigma=1.0).y, y)
    assert noisy.isnan().any()
    noisy[[3, 6], 0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"first in observation 3 \(2 in all\)"):
        Observations(noisy, operators.Mask(mask), sigma=1.0)


def test_slices_keep_y_operator_and_noise_together():
    obs = Observations(torch.randn(6, 2), operators.Dense(torch.randn(6, 2, 3)), sigma=torch.linspace(0.1, 1, 6))
    x = torch.randn(6, 3)
    for index in (2, -1, slice(1, 4), [5, 0], torch.tensor([3, 3])):
        part = obs[index]
        rows = [index] if isinstance(index, int) else index
        assert torch.allclose(part.chi2(x[rows]), obs.chi2(x)[rows])
    assert len(obs[-1]) == 1


def test_complex_measurements_are_stored_as_a_real_view():
    y = torch.randn(2, 4, 4, dtype=torch.complex64)
    obs = Observations(y, operators.Fourier(), sigma=1.0)
    assert torch.equal(obs.y, torch.view_as_real(y))


def numbers(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1


@pytest.mark.parametrize(
    "cov",
    [
        Isotropic(numbers(4)),
        Diagonal(numbers(3, 4)),
        Diagonal(numbers(4, 3, 4)),
        LowRank(numbers(2, 3, 4), numbers(4, 3, 4)),
        LowRank(numbers(2, 3, 4), 0.5),
        DenseCovariance(random_covariance(12).float()),
        DenseCovariance(torch.stack([random_covariance(12, seed) for seed in range(4)]).float()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("budget", [memory.RESIDENT_BYTES, 0], ids=["in memory", "on disk"])
def test_every_noise_survives_saving(cov, budget, tmp_path, monkeypatch):
    obs = Observations(torch.randn(4, 3, 4), operators.Identity(), cov=cov)
    obs.save(tmp_path / "o.safetensors")
    monkeypatch.setattr(memory, "RESIDENT_BYTES", budget)
    again = Observations.load(tmp_path / "o.safetensors")
    v = torch.randn(4, 3, 4)
    assert torch.equal(again.cov.matvec(v), obs.cov.matvec(v))
    assert torch.equal(again[1:3].cov.solve(v[1:3]), obs[1:3].cov.solve(v[1:3]))


@pytest.mark.parametrize("y", [torch.ones(()).expand(1, 1), torch.arange(12.0).reshape(4, 3)[1:2, ::3]])
def test_a_single_number_of_any_stride_is_saved(y, tmp_path):
    obs = Observations(y, operators.Identity(), cov=LowRank(torch.ones(1, 1), 0.5))
    obs.save(tmp_path / "o.safetensors")
    assert torch.equal(Observations.load(tmp_path / "o.safetensors").chi2(0 * y), obs.chi2(0 * y))


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "o.safetensors"
    masked().save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="cannot be saved"):
        Observations(torch.randn(2, 3), operators.Function(lambda x: x, (3,)), sigma=1.0).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["o.safetensors"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Observations([1.0], operators.Identity(), sigma=1.0), r"at least two axes, .*, got shape \(1,\)"),
        (lambda: Observations(torch.ones(2, 3), torch.eye(3), sigma=1.0), "operator, got Tensor"),
        (lambda: Observations(torch.ones(0, 3), operators.Identity(), sigma=1.0), r"at least one.*\(0, 3\)"),
        (lambda: Observations(torch.ones(2, 3, dtype=torch.int64), operators.Identity(), sigma=1.0), "int64"),
        (
            lambda: Observations(torch.ones(2, 3).cfloat(), operators.Identity(), sigma=1.0),
            "complex.*Identity measures real",
        ),
        (lambda: Observations(torch.ones(2, 3), operators.Dense(torch.ones(3, 3, 5)), sigma=1.0), "2 observations.*3"),
        (lambda: Observations(torch.ones(2, 4), operators.Dense(torch.ones(3, 5)), sigma=1.0), r"\(2, 4\).*\(3,\)"),
        (
            lambda: Observations(torch.ones(2, 3).double(), operators.Dense(torch.ones(3, 5)), sigma=1.0),
            "float64.*float32",
        ),
        (
            lambda: Observations(torch.tensor([[1.0, torch.nan]]), operators.Identity(), sigma=1.0),
            "non-finite.*observation 0",
        ),
        (lambda: Observations(torch.ones(2, 3), operators.Identity(), sigma=0.0), "positive.*0.0"),
        (lambda: Observations(torch.ones(2, 3), operators.Identity(), sigma=-1.0), "positive.*-1.0"),
        (
            lambda: Observations(torch.ones(2, 3), operators.Identity(), sigma=torch.ones(4)),
            r"2 of them, got shape \(4,\)",
        ),
        (lambda: Observations(torch.ones(2, 3), operators.Identity()), "sigma=... or as cov=..."),
        (lambda: Observations(torch.ones(2, 3), operators.Identity(), 1.0, cov=Isotropic(1.0)), "got both"),
        (lambda: Observations(torch.ones(2, 3), operators.Identity(), cov=Diagonal(torch.ones(4))), "does not fit y"),
        (lambda: Observations(torch.ones(2, 3), operators.Identity(), cov=torch.eye(3)), "covariance, got Tensor"),
        (
            lambda: Observations(torch.ones(2, 3), operators.Identity(), cov=DenseCovariance(torch.ones(3, 3))),
            "positive definite",
        ),
        (
            lambda: Observations(torch.ones(2, 3), operators.Identity(), cov=Isotropic(torch.ones(5))),
            "2 observations.*5",
        ),
        (
            lambda: Observations(torch.ones(2, 3), operators.Identity(), sigma=1e20),
            "variance of 1.0e\\+40, above.*float32",
        ),
        (lambda: Observations(torch.ones(2, 3), operators.Mask(torch.ones(1, 3) > 0), sigma=1.0), "2 observations.*1"),
        (lambda: masked()[4:], "the index selects no observations"),
    ],
)
def test_bad_input_is_rejected(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        (None, "not an observations file"),
        ({"format": "else"}, "format 'else'"),
        ({"format": "diffem-observations-1"}, "not an observations file"),
        (
            {"A": {"kind": "os.system", "children": [], "tensors": [], "complex": [], "config": {}}},
            "unknown operator 'os.system'",
        ),
        ({"cov": {"kind": "eval", "axes": {}}}, "unknown covariance"),
    ],
)
@pytest.mark.parametrize("budget", [memory.RESIDENT_BYTES, 0], ids=["in memory", "on disk"])
def test_files_with_other_contents_are_rejected(structure, words, budget, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "RESIDENT_BYTES", budget)
    path = tmp_path / "o.safetensors"
    identity = {"kind": "Identity", "children": [], "tensors": [], "complex": [], "config": {}}
    whole = {"format": "diffem-observations-1", "A": identity, "cov": {"kind": "isotropic", "axes": {"variance": 0}}}
    if structure is not None and "format" not in structure:
        structure = {**whole, **structure}
    metadata = None if structure is None else {"diffem": json.dumps(structure)}
    save_file({"y": torch.ones(2, 3), "cov.variance": torch.tensor(1.0)}, path, metadata)
    with pytest.raises(ValueError, match=words):
        Observations.load(path)


def test_a_file_larger_than_the_budget_is_checked_like_others(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "RESIDENT_BYTES", 0)
    monkeypatch.setattr("diffem.observations.batches.SCANNED_BYTES", 1)  # one observation at a time
    path = tmp_path / "o.safetensors"
    masked().save(path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match="do not match its checksum"):
        Observations.load(path)
    path.write_bytes(data[:-1])
    with pytest.raises(ValueError, match="cannot be read"):
        Observations.load(path)
    tensors, y = {"cov.variance": torch.tensor(1.0)}, torch.ones(3, 2)
    y[2, 1] = torch.nan
    identity = {"kind": "Identity", "children": [], "tensors": [], "complex": [], "config": {}}
    whole = {"format": "diffem-observations-1", "A": identity, "cov": {"kind": "isotropic", "axes": {"variance": 0}}}
    save_file({"y": y, **tensors}, path, {"diffem": json.dumps(whole)})
    with pytest.raises(ValueError, match=r"y holds non-finite measured values.*observations from 2 on"):
        Observations.load(path)
    save_file({"y": torch.ones(3, 2), **tensors}, path, {"diffem": json.dumps(whole)})
    obs = Observations.load(path)
    save_file({"y": torch.zeros(3, 2), **tensors}, path, {"diffem": json.dumps(whole)})
    with pytest.raises(ValueError, match="has changed since it was opened"):
        obs[:1].read()


def test_a_shared_parameter_with_a_row_for_every_observation(tmp_path, monkeypatch):
    """A shared matrix with as many rows as observations has no row per observation: the file is read as a whole."""
    A = operators.Dense(torch.arange(6.0).reshape(3, 2))
    obs = Observations(A(torch.ones(3, 2)), A, sigma=0.1)
    obs.save(tmp_path / "o.safetensors")
    monkeypatch.setattr(memory, "RESIDENT_BYTES", 0)
    again = Observations.load(tmp_path / "o.safetensors")
    assert torch.equal(again.A(torch.ones(3, 2)), obs.y)


def test_missing_and_invalid_files(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        Observations.load(tmp_path / "missing.safetensors")
    (tmp_path / "text").write_text("not a tensor file")
    with pytest.raises(ValueError, match="cannot be read"):
        Observations.load(tmp_path / "text")
