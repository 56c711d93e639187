"""Blocks of a covariance against the same blocks computed one by one."""

import pytest
import torch

from diffem.linalg.selected import SelectedBlocks, inverse_and_logdet

from ..exact import random_covariance


@pytest.mark.parametrize("size", [3, 64, 65, 150])
def test_inverse_and_logdet(size):
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
