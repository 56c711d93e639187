"""Covariances against dense algebra, shared and per sample, whole and restricted to measured entries."""

import math

import pytest
import torch

from diffem.linalg import DenseCovariance, Diagonal, Isotropic, LowRank

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
    "low rank, one variance": lambda: LowRank(_factor(2, *EVENT), _positive(1, 1)),
    "low rank, variance per row": lambda: LowRank(_factor(2, *EVENT), _positive(N, 2, 1)),
    "low rank, diagonal each": lambda: LowRank(_factor(2, *EVENT), _positive(N, *EVENT)),
    "low rank each": lambda: LowRank(_factor(N, 3, *EVENT), _positive(N, *EVENT)),
    "dense": lambda: DenseCovariance(random_covariance(SIZE)),
    "dense each": lambda: DenseCovariance(torch.stack([random_covariance(SIZE, seed) for seed in range(N)])),
}
EACH = pytest.mark.parametrize("name", REGISTRY)


def dense(cov):
    """The matrices `(N, SIZE, SIZE)`, by applying the covariance to unit vectors."""
    eye = torch.eye(SIZE, dtype=torch.float64)
    return torch.stack([cov.matvec(e.reshape(1, *EVENT).expand(N, *EVENT)).flatten(1) for e in eye], -1)


def dense_root(cov):
    """The matrices L of `sqrt`, `(N, SIZE, SIZE)`."""
    eye = torch.eye(SIZE, dtype=torch.float64)
    return torch.stack([cov.sqrt(e.reshape(1, *EVENT).expand(N, *EVENT)).flatten(1) for e in eye], -1)


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
    root = dense_root(cov)
    assert torch.allclose(root @ root.mT, matrix, atol=1e-12)
    normal = torch.distributions.MultivariateNormal(torch.zeros(SIZE, dtype=torch.float64), matrix)
    assert torch.allclose(cov.log_prob(v), normal.log_prob(v.flatten(1)))


@EACH
@pytest.mark.parametrize("variance", [0.3, torch.tensor(0.3), torch.linspace(0.1, 2.0, N, dtype=torch.float64)])
def test_a_variance_is_added_to_the_diagonal(name, variance):
    cov = REGISTRY[name]().bind(len(EVENT))
    added = torch.as_tensor(variance, dtype=torch.float64).expand(N).reshape(-1, 1, 1) * torch.eye(SIZE)
    assert torch.allclose(dense(cov.plus(variance)), dense(cov) + added)


def _mask(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5)) < 0.6


def _extreme_rows():
    measured = _mask(N, *EVENT)
    measured[0], measured[1] = False, True
    return measured


MASKS = {
    "each": lambda: _mask(N, *EVENT),
    "shared": lambda: _mask(1, *EVENT),
    "broadcast": lambda: _mask(N, 1, EVENT[1]),
    "broadcast, shared": lambda: _mask(1, EVENT[0], 1),
    "none and all": _extreme_rows,
}


@EACH
@pytest.mark.parametrize("variance", [0.3, torch.tensor(0.3), torch.linspace(0.1, 2.0, N, dtype=torch.float64)])
def test_filtered_is_the_mean_of_x_given_x_plus_noise(name, variance):
    cov = REGISTRY[name]().bind(len(EVENT))
    v = torch.randn(N, *EVENT, dtype=torch.float64)
    expected = apply(dense(cov) @ torch.linalg.inv(dense(cov.plus(variance))), v)
    assert torch.allclose(cov.filtered(v, variance), expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["low rank", "dense"])
@pytest.mark.parametrize("sigma", [1e-3, 1e-2, 1.0, 1e2])
def test_filtered_is_exact_to_float32_for_variances_of_ten_orders_of_magnitude(kind, sigma):
    """Without the noise of x_t, the result is wrong by much less than σ, and by less than 1e-5 where σ is large."""
    factor = torch.randn(8, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide = LowRank(factor, 1e-8)
    if kind == "dense":
        wide = DenseCovariance(factor.T @ factor + 1e-8 * torch.eye(128, dtype=torch.float64))
    narrow = wide.to(torch.float32)
    z = torch.randn(2, 3, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    v = (wide.sqrt(z[0]) + sigma * z[1]).float()
    error = narrow.filtered(v, torch.tensor(sigma**2, dtype=torch.float32)).double() - wide.filtered(
        v.double(), torch.tensor(sigma**2, dtype=torch.float32).double()
    )
    assert float(error.abs().max()) < 0.05 * min(sigma, 1e-2)


@EACH
@pytest.mark.parametrize("mask", MASKS)
def test_restrict_is_the_marginal_covariance_of_the_measured_entries(name, mask):
    """Every method of every kind against dense algebra on the block, in float64 with condition numbers below 1e3."""
    cov, measured = REGISTRY[name]().bind(len(EVENT)), MASKS[mask]()
    block, matrix = cov.restrict(measured), dense(cov)
    inside = measured.expand(N, *EVENT)
    v = torch.randn(N, *EVENT, dtype=torch.float64, generator=torch.Generator().manual_seed(6)) * inside
    close = {"rtol": 1e-10, "atol": 1e-10}
    products, solutions, roots = block.matvec(v), block.solve(v), dense_root(block)
    for i in range(N):
        keep = inside[i].flatten()
        sub, part = matrix[i][keep][:, keep], v[i].flatten()[keep]
        assert torch.allclose(products[i].flatten()[keep], sub @ part, **close)
        assert torch.allclose(solutions[i].flatten()[keep], torch.linalg.solve(sub, part), **close)
        assert torch.allclose(block.mahalanobis(v)[i], part @ torch.linalg.solve(sub, part), **close)
        assert torch.allclose(block.logdet(EVENT).expand(N)[i], torch.logdet(sub), **close)
        assert torch.allclose(
            block.diagonal(EVENT).expand(N, *EVENT)[i].flatten(), torch.where(keep, matrix[i].diagonal(), 0), **close
        )
        covered = torch.zeros(SIZE, SIZE, dtype=torch.float64)
        covered[keep.outer(keep)] = sub.flatten()
        assert torch.allclose(roots[i] @ roots[i].T, covered, **close)
        density = -0.5 * (block.mahalanobis(v)[i] + torch.logdet(sub) + len(part) * math.log(2 * math.pi))
        assert torch.allclose(block.log_prob(v)[i], density, **close)
        floor = block.eigenvalue_floor().expand(N)[i]
        assert floor > 0
        assert len(part) == 0 or floor <= torch.linalg.eigvalsh(sub)[0] + 1e-12
    for out in (products, solutions, block.sqrt(torch.ones(N, *EVENT, dtype=torch.float64))):
        assert (out[~inside] == 0).all()


@EACH
@pytest.mark.parametrize("mask", MASKS)
def test_conditional_moments_of_hidden_entries(name, mask):
    cov, observed = REGISTRY[name]().bind(len(EVENT)), MASKS[mask]()
    matrix, inside = dense(cov), observed.expand(N, *EVENT)
    v = torch.randn(N, *EVENT, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    mean, variances = (
        cov.conditional_mean(observed, torch.where(inside, v, 0)),
        cov.conditional_variances(observed, EVENT),
    )
    for i in range(N):
        s, h = inside[i].flatten(), ~inside[i].flatten()
        gain = matrix[i][h][:, s] @ torch.linalg.inv(matrix[i][s][:, s])
        left = matrix[i][h][:, h] - gain @ matrix[i][s][:, h]
        assert torch.allclose(mean[i].flatten()[h], gain @ v[i].flatten()[s], atol=1e-10)
        assert torch.allclose(variances.expand(N, *EVENT)[i].flatten()[h], left.diagonal(), atol=1e-10)


def test_blocks_factored_a_few_at_a_time_are_the_same(monkeypatch):
    from diffem.linalg import dense as module

    cov, measured, v = REGISTRY["dense each"](), _mask(N, *EVENT), torch.randn(N, *EVENT, dtype=torch.float64)
    block = cov.restrict(measured)

    def results():
        return block.solve(v), block.logdet(EVENT), cov.conditional_variances(measured, EVENT)

    together = results()
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 3 * SIZE**2)  # three blocks, then one
    for a, b in zip(together, results(), strict=True):
        assert torch.equal(a, b)


def test_a_block_is_sliced_moved_and_restricted_again():
    cov, measured, v = REGISTRY["dense"](), _mask(N, *EVENT), torch.randn(N, *EVENT, dtype=torch.float64)
    block, other = cov.restrict(measured), _mask(N, 1, EVENT[1])
    assert torch.equal(block[1:3].solve(v[1:3]), block.solve(v)[1:3])
    assert torch.equal(block.restrict(other).solve(v), cov.restrict(measured & other).solve(v))
    assert torch.allclose(dense(block.plus(0.3)), dense(cov.plus(0.3).restrict(measured)))
    single = block.to(torch.float32)
    assert single.solve(v.float()).dtype == torch.float32
    assert torch.allclose(single.solve(v.float()).double(), block.solve(v), rtol=1e-3, atol=1e-4)


@EACH
def test_a_slice_solves_as_the_whole(name):
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
        (lambda: DenseCovariance(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
        (lambda: LowRank(torch.ones(1, 3), torch.ones(2)).bind(1), "do not fit"),
        (lambda: DenseCovariance(-torch.eye(2)), "eigenvalue"),
        (lambda: DenseCovariance(torch.stack([1e9 * torch.eye(2), torch.tensor([[1.0, 0.9], [0.1, 1.0]])])), "symm"),
        (lambda: DenseCovariance(torch.stack([1e9 * torch.eye(2), -torch.eye(2)])), "eigenvalue"),
    ],
)
def test_bad_input_is_rejected(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@EACH
def test_scaled_is_the_covariance_in_other_units(name):
    """Exact for a power of two; whole and restricted."""
    cov, measured = REGISTRY[name](), torch.tensor([True, False, True, True, False, True]).reshape(1, *EVENT)
    assert torch.equal(dense(cov.scaled(0.25)), dense(cov) / 16)
    assert torch.equal(dense(cov.restrict(measured).scaled(0.25)), dense(cov.restrict(measured)) / 16)
