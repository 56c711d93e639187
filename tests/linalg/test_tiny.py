"""Closed forms against PyTorch's routines."""

import pytest
import torch

from diffem.linalg.tiny import eigh, solve

N = 200


def matrices(size: int, seed: int) -> torch.Tensor:
    return torch.randn(N, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_eigenvalues_ascend_and_rebuild_the_matrix(size):
    symmetric = matrices(size, 0)
    symmetric = symmetric + symmetric.mT
    symmetric[0] = torch.eye(size, dtype=torch.float64)  # equal eigenvalues
    symmetric[1] = 0
    symmetric[2] = torch.diag(-torch.arange(1.0, size + 1, dtype=torch.float64))
    values, vectors = eigh(symmetric)
    assert torch.allclose(values, torch.linalg.eigvalsh(symmetric), rtol=1e-12, atol=1e-13)
    assert torch.allclose((vectors * values.unsqueeze(-2)) @ vectors.mT, symmetric, rtol=1e-12, atol=1e-13)
    one = torch.eye(size, dtype=torch.float64).expand_as(symmetric)
    assert torch.allclose(vectors.mT @ vectors, one, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_solutions_and_determinants_agree_with_dense_algebra(size):
    matrix, b = matrices(size, 1), torch.randn(N, size, dtype=torch.float64)
    matrix[0] = torch.eye(size, dtype=torch.float64).flip(0)  # zero in the place of the first pivot
    u, logdet, regular = solve(matrix, b)
    assert torch.allclose((matrix @ u.unsqueeze(-1)).squeeze(-1), b, rtol=1e-8, atol=1e-9)
    assert torch.allclose(logdet, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-9, atol=1e-10)
    assert regular.all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_singular_matrix_is_reported_and_does_not_affect_others(size):
    matrix, b = matrices(size, 2), torch.ones(N, size, dtype=torch.float64)
    expected = solve(matrix, b)[0]
    matrix[5] = 0
    u, _, regular = solve(matrix, b)
    others = [i for i in range(N) if i != 5]
    assert not regular[5]
    assert regular[others].all()
    assert torch.equal(u[others], expected[others])
