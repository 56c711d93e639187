"""Covariances against dense algebra, shared and per sample, whole and restricted to what is measured."""

import pytest
import torch

from diffem.linalg import Dense, Diagonal, Isotropic, LowRank

from ..exact import random_covariance

N, EVENT, SIZE = 4, (2, 3), 6


def _positive(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.3


def _factor(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


REGISTRY = {
    "isotropic": lambda: Isotropic(0.7),
    "isotropic each": lambda: Isotropic(_positive(N)),
    "diagonal": lambda: Diagonal(_positive(*EVENT)),
    "diagonal each": lambda: Diagonal(_positive(N, *EVENT)),
    "low rank": lambda: LowRank(_factor(2, *EVENT), _positive(*EVENT)),
    "low rank, scalar": lambda: LowRank(_factor(2, *EVENT), 0.4),
    "low rank, diagonal each": lambda: LowRank(_factor(2, *EVENT), _positive(N, *EVENT)),
    "low rank each": lambda: LowRank(_factor(N, 3, *EVENT), _positive(N, *EVENT)),
    "dense": lambda: Dense(random_covariance(SIZE)),
    "dense each": lambda: Dense(torch.stack([random_covariance(SIZE, seed) for seed in range(N)])),
}
EACH = pytest.mark.parametrize("name", REGISTRY)


def dense(cov):
    """The matrices, `(N, SIZE, SIZE)`, by applying the covariance to unit vectors."""
    eye = torch.eye(SIZE, dtype=torch.float64)
    return torch.stack([cov.matvec(e.reshape(1, *EVENT).expand(N, *EVENT)).flatten(1) for e in eye], -1)


def apply(matrix, v):
    return (matrix @ v.flatten(1).unsqueeze(-1)).reshape(v.shape)


@EACH
def test_matches_dense_algebra(name):
    cov = REGISTRY[name]()
    matrix = dense(cov)
    v = torch.randn(N, *EVENT, dtype=torch.float64)
    assert torch.allclose(matrix, matrix.mT)
    assert torch.allclose(cov.matvec(cov.solve(v)), v, atol=1e-12)
    assert torch.allclose(cov.solve(v), apply(torch.linalg.inv(matrix), v), atol=1e-11)
    assert torch.allclose(cov.logdet(EVENT).expand(N), torch.linalg.slogdet(matrix).logabsdet)
    assert torch.allclose(cov.diagonal(EVENT).expand(N, *EVENT).flatten(1), matrix.diagonal(dim1=1, dim2=2))
    root = torch.stack(
        [cov.sqrt(e.reshape(1, *EVENT).expand(N, *EVENT)).flatten(1) for e in torch.eye(SIZE, dtype=torch.float64)], -1
    )
    assert torch.allclose(root @ root.mT, matrix, atol=1e-12)
    normal = torch.distributions.MultivariateNormal(torch.zeros(SIZE, dtype=torch.float64), matrix)
    assert torch.allclose(cov.log_prob(v), normal.log_prob(v.flatten(1)))


@EACH
@pytest.mark.parametrize("variance", [0.3, torch.tensor(0.3), torch.linspace(0.1, 2.0, N, dtype=torch.float64)])
def test_plus(name, variance):
    cov = REGISTRY[name]().bind(len(EVENT))
    added = torch.as_tensor(variance, dtype=torch.float64).expand(N).reshape(-1, 1, 1) * torch.eye(SIZE)
    assert torch.allclose(dense(cov.plus(variance)), dense(cov) + added)


@EACH
def test_restrict_is_the_block_of_measured_entries(name):
    cov = REGISTRY[name]()
    measured = torch.rand(N, *EVENT, generator=torch.Generator().manual_seed(5)) < 0.6
    if "dense" in name:
        with pytest.raises(ValueError, match="dense"):
            cov.restrict(measured)
        return
    block = cov.restrict(measured)
    matrix, v = dense(cov), torch.randn(N, *EVENT, dtype=torch.float64) * measured
    for i in range(N):
        keep = measured[i].flatten()
        sub = matrix[i][keep][:, keep]
        part = v[i].flatten()[keep]
        assert torch.allclose(block.matvec(v)[i].flatten()[keep], sub @ part)
        assert torch.allclose(block.solve(v)[i].flatten()[keep], torch.linalg.solve(sub, part))
        assert torch.allclose(block.logdet(EVENT)[i], torch.logdet(sub))
        normal = torch.distributions.MultivariateNormal(torch.zeros(len(part), dtype=torch.float64), sub)
        assert torch.allclose(block.log_prob(v)[i], normal.log_prob(part))
    assert (block.matvec(v)[~measured] == 0).all()
    assert (block.solve(v)[~measured] == 0).all()


@EACH
def test_slicing(name):
    cov = REGISTRY[name]().bind(len(EVENT))
    v = torch.randn(N, *EVENT, dtype=torch.float64)
    for index in (slice(1, 3), [2, 0]):
        assert torch.allclose(cov[index].solve(v[index]), cov.solve(v)[index], atol=1e-12)
        assert torch.allclose(REGISTRY[name]()[index].solve(v[index]), cov.solve(v)[index], atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Isotropic(0.0), "positive"),
        (lambda: Isotropic(torch.tensor([1.0, -1.0])), r"-1\.0"),
        (lambda: Diagonal(torch.tensor([1.0, float("nan")])), "finite"),
        (lambda: LowRank(torch.ones(3), 1.0), r"\(r, \*event\)"),
        (lambda: Dense(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
        (lambda: Dense(-torch.eye(2)), "eigenvalue"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(ValueError, match=words):
        make()
