"""Blocks of a covariance against the same blocks computed one by one."""

import pytest
import torch

from diffem.linalg.selected import SelectedBlocks, inverse_and_logdet

from ..exact import random_covariance


@pytest.mark.parametrize("size", [3, 64, 65, 150])
def test_inverse_and_determinant_agree_with_dense_algebra(size):
    K = torch.stack([random_covariance(size, seed) for seed in range(3)])
    inverse, logdet = inverse_and_logdet(K)
    assert torch.allclose(inverse, torch.linalg.inv(K), rtol=1e-8, atol=1e-10)
    assert torch.allclose(logdet, torch.logdet(K))


def test_blocks_of_different_sizes():
    size, n = 20, 6
    cov = random_covariance(size, 0)
    generator = torch.Generator().manual_seed(0)
    selected = torch.rand(n, size, generator=generator) < 0.5
    selected[0], selected[1] = False, True  # an empty block and the whole matrix
    variances = torch.rand(n, size, generator=generator, dtype=torch.float64)
    v = torch.randn(n, size, generator=generator, dtype=torch.float64)
    blocks = SelectedBlocks.gather(cov, variances, selected)
    inverse, logdet = blocks.inverse()
    solved = blocks.spread(blocks.solve(blocks.take(v)), size)
    total = torch.zeros(size, size, dtype=torch.float64)
    blocks.add_to(total, inverse)
    expected = torch.zeros_like(total)
    for i in range(n):
        s = selected[i].nonzero().flatten()
        K = cov[s][:, s] + torch.diag(variances[i, s])
        assert torch.allclose(logdet[i], torch.logdet(K))
        assert torch.allclose(solved[i, s], torch.linalg.solve(K, v[i, s]))
        assert (solved[i, ~selected[i]] == 0).all()
        expected[s[:, None], s] += torch.linalg.inv(K)
    assert torch.allclose(total, expected)


def low_rank(rows, rank, noise):
    """Blocks K = UUᵀ + noise²I, values v of that law, and UUᵀK⁻¹v by least squares, which does not square noise."""
    generator = torch.Generator().manual_seed(0)
    U = torch.randn(3, rows, rank, generator=generator, dtype=torch.float64)
    v = U @ torch.randn(3, rank, 1, generator=generator, dtype=torch.float64)
    v = v + noise * torch.randn(v.shape, generator=generator, dtype=torch.float64)
    eye = torch.eye(rank, dtype=torch.float64).expand(3, rank, rank)
    latent = torch.linalg.lstsq(torch.cat([U / noise, eye], 1), torch.cat([v / noise, 0 * v[:, :rank]], 1)).solution
    return U @ U.mT + noise**2 * torch.eye(rows, dtype=torch.float64), v, U @ latent


@pytest.mark.parametrize(("rows", "rank", "noise"), [(6, 3, 1e-6), (80, 10, 1e-5), (150, 20, 1e-5)])
def test_values_with_little_noise_are_solved_to_a_fraction_of_it(rows, rank, noise):
    # a Cholesky solve has errors of about eps·|K|/noise² noise levels, here up to 2e-3; the product with K⁻¹ had 700
    K, v, expected = low_rank(rows, rank, noise)
    blocks = SelectedBlocks(torch.arange(rows).expand(3, -1), torch.ones(3, rows, dtype=torch.bool), K)
    signal = K - noise**2 * torch.eye(rows, dtype=torch.float64)
    u = blocks.solve(v[..., 0]).unsqueeze(-1)
    assert (signal @ u - expected).abs().max() < 0.02 * noise


def test_logdet_of_several_sweeps_with_little_noise():
    # by the determinant of the latent variables; an indefinite remainder of the sweep raised an error here
    rows, rank, noise = 150, 20, 1e-5
    K, _, _ = low_rank(rows, rank, noise)
    values = torch.linalg.eigvalsh(K)[:, -rank:]
    expected = values.log().sum(1) + (rows - rank) * 2 * torch.tensor(noise, dtype=torch.float64).log()
    assert torch.allclose(inverse_and_logdet(K)[1], expected, rtol=0, atol=1e-2)


def test_blocks_that_are_singular_in_float64_are_refused():
    K, v, _ = low_rank(6, 3, 1e-7)
    blocks = SelectedBlocks(torch.arange(6).expand(3, -1), torch.ones(3, 6, dtype=torch.bool), K)
    with pytest.raises(torch.linalg.LinAlgError):
        blocks.solve(v[..., 0])
