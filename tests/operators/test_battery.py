"""Identities every operator must satisfy, over the whole registry."""

import pytest
import torch

from diffem import Observations, operators
from diffem.files import memory
from diffem.observations.fingerprint import data_fingerprint
from diffem.observations.lazy import LazyObservations

from ..exact import matrix_of
from .registry import REGISTRY

N = 5
EACH = pytest.mark.parametrize("name", REGISTRY)


def build(name, device="cpu", dtype=torch.float64):
    make, x_shape = REGISTRY[name]
    A = make(N).to(device=device, dtype=dtype)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(N, *x_shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)
    y = A(x)
    v = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)
    return A, x, y, v


def relative(a, b):
    return float((a - b).norm() / b.norm().clamp(min=1e-300))


@EACH
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_adjoint_is_exact(name, dtype, tolerance, device):
    A, x, y, v = build(name, device, dtype)
    xt = A.adjoint(v)
    left = (y.double() * v.double()).flatten(1).sum(1)
    right = (x.double() * xt.double()).flatten(1).sum(1)
    scale = y.double().flatten(1).norm(dim=1) * v.double().flatten(1).norm(dim=1)
    assert xt.shape == x.shape
    assert xt.dtype == dtype
    assert float(((left - right).abs() / scale).max()) <= tolerance


@EACH
def test_adjoint_is_the_transposed_matrix(name):
    A, x, _y, v = build(name)
    matrix = matrix_of(A, tuple(x.shape[1:]), N)
    assert relative(A(x).flatten(1), (matrix @ x.flatten(1).unsqueeze(-1)).squeeze(-1)) < 1e-12
    assert relative(A.adjoint(v).flatten(1), (matrix.mT @ v.flatten(1).unsqueeze(-1)).squeeze(-1)) < 1e-12


@EACH
def test_gram_diagonal_is_that_of_the_matrix(name):
    A, x, y, _ = build(name)
    matrix = matrix_of(A, tuple(x.shape[1:]), N)
    gram = matrix @ matrix.mT
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    diagonal = A.gram_diagonal(y)
    if diagonal is not None:
        assert off.abs().max() < 1e-12
        assert torch.allclose(diagonal.expand_as(y).flatten(1), gram.diagonal(dim1=1, dim2=2))


@EACH
@pytest.mark.parametrize("sigma", [0.3, torch.linspace(0.1, 0.9, N)], ids=["shared noise", "each its noise"])
def test_reduced_observations_have_the_same_likelihood(name, sigma):
    """The likelihood of x depends only on AᵀΣ⁻¹A and AᵀΣ⁻¹y. The rows of the reduced operator are orthonormal."""
    A, x, y, v = build(name)
    obs = Observations(y + v, A, sigma=sigma)
    reduced = obs.reduced()
    if reduced is obs:
        return
    known = []
    for o in (obs, reduced):
        matrix, noise = matrix_of(o.A, tuple(x.shape[1:]), N), o.noise.diagonal(tuple(o.y.shape[1:])).flatten(1)
        precision = torch.where(noise > 0, 1 / noise, 0).expand(N, -1).unsqueeze(-1)
        known.append((matrix.mT @ (precision * matrix), matrix.mT @ (precision * o.y.flatten(1).unsqueeze(-1))))
    for one, other in zip(*known, strict=True):
        assert relative(other, one) < 1e-12
    gram = matrix @ matrix.mT
    assert torch.allclose(gram, torch.diag_embed(reduced.A.gram_diagonal(reduced.y).expand_as(y).flatten(1)))
    assert torch.equal(obs[1:3].reduced().y, reduced[1:3].y)


def test_k_space_of_real_images_is_reduced():
    for name, (make, _) in REGISTRY.items():
        A, _x, y, _v = build(name)
        real = isinstance(A, operators.Fourier) and not A.complex and "coils" not in make(N).tensors()
        assert (A.reduced(y) is not None) == real, name


@EACH
def test_operators_are_linear(name):
    A, x, y, _ = build(name)
    other = torch.randn_like(x)
    assert relative(A(2 * x - 3 * other), 2 * y - 3 * A(other)) < 1e-12


@EACH
def test_a_sample_alone_equals_the_sample_in_a_batch(name):
    A, x, y, v = build(name)
    xt = A.adjoint(v)
    for i in range(N):
        assert relative(A[i](x[i : i + 1]), y[i : i + 1]) < 1e-13
        assert relative(A[i].adjoint(v[i : i + 1]), xt[i : i + 1]) < 1e-13


@EACH
@pytest.mark.parametrize("index", [slice(1, 4), slice(None, None, 2), [3, 0, 3], torch.tensor([4, 1])])
def test_a_subset_measures_its_observations(name, index):
    A, x, y, _v = build(name)
    assert relative(A[index](x[index]), y[index]) < 1e-13
    rows = index if isinstance(index, slice) else [2, 1]
    assert relative(A[1:][rows](x[1:][rows]), y[1:][rows]) < 1e-13


@EACH
def test_check_reports_usable(name):
    make, x_shape = REGISTRY[name]
    verdict = operators.check(make(N), x_shape)
    assert verdict.ok
    assert "usable" in str(verdict)


@EACH
def test_calling_does_not_change_the_operator(name):
    A, x, y, v = build(name)
    before = {k: t.clone() for k, t in A._tensors.items()}
    A(x), A.adjoint(v), A[:2], A.to(torch.float32)
    assert all(torch.equal(before[k], t) for k, t in A._tensors.items())
    assert torch.equal(A(x), y)


@EACH
@pytest.mark.parametrize("resident", [True, False], ids=["in memory", "on disk"])
def test_operators_survive_saving(name, resident, tmp_path, monkeypatch):
    A, x, y, v = build(name)
    obs = Observations(y + 0.1, A, sigma=0.3)
    if name == "function each":
        with pytest.raises(ValueError, match="contains code"):
            obs.save(tmp_path / "obs.safetensors")
        return
    obs.save(tmp_path / "obs.safetensors")
    if not resident:
        monkeypatch.setattr(memory, "RESIDENT_BYTES", 0)
    again = Observations.load(tmp_path / "obs.safetensors")
    # a shared parameter with five rows, the number of observations, prevents a file from being read in parts
    on_disk = not resident and name not in ("dense", "blur zero")
    assert isinstance(again, LazyObservations) == on_disk
    assert data_fingerprint(again) == data_fingerprint(obs)
    if on_disk:
        rows = torch.tensor([2, 0])
        assert torch.equal(again.operators()[rows](x[rows]), y[rows])
        assert again._read is None
    assert torch.equal(again.y, obs.y)
    assert torch.equal(again.A(x), y)
    assert torch.equal(again.A.adjoint(v), A.adjoint(v))
    assert torch.equal(again[1:3].A(x[1:3]), obs[1:3].A(x[1:3]))
    assert torch.equal(again.cov.matvec(y), obs.cov.matvec(y))


@EACH
def test_unmeasured_entries_have_no_influence(name):
    A, x, y, v = build(name)
    measured = A.measured(y)
    if measured is None:
        pytest.skip("measures every entry")
    measured = measured.expand_as(y)
    assert not measured.all()
    assert (y[~measured] == 0).all()
    poisoned = torch.where(measured, v, torch.nan)
    assert torch.equal(A.adjoint(poisoned), A.adjoint(torch.where(measured, v, 0)))
    obs = Observations(torch.where(measured, y, torch.nan), A, sigma=0.1)
    assert torch.equal(obs.chi2(x), torch.zeros(N, dtype=torch.float64))
    assert torch.equal(obs.counts(), measured.flatten(1).sum(1))


def test_the_registry_has_many_configurations():
    assert len(REGISTRY) >= 12
    assert sum("each" in name for name in REGISTRY) >= 5
    assert sum("complex" in name for name in REGISTRY) >= 3


@EACH
def test_autocast_does_not_change_results(name):
    A, x, y, v = build(name, dtype=torch.float32)
    back = A.adjoint(v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(A(x), y)
        assert torch.equal(A.adjoint(v), back)
