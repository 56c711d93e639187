"""The mean squared norm of the rows of an operator against its dense matrix."""

import pytest
import torch

from diffem.operators.gain import mean_gain

from ..exact import matrix_of
from .registry import REGISTRY


@pytest.mark.parametrize("name", REGISTRY)
def test_gain_of_every_operator(name):
    """Exact if AAᵀ is diagonal; otherwise within five standard deviations.

    The standard deviation of the relative error is √2 ‖off-diagonal part‖ / trace.
    """
    make, x_shape = REGISTRY[name]
    x = torch.randn(3, *x_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A = make(3).resolve_axes(x[:1])
    y = A(x)
    gram = matrix_of(A, x_shape, 3)
    gram = gram @ gram.mT
    rows = gram.diagonal(dim1=-2, dim2=-1)
    got = mean_gain(A, y).expand_as(y).flatten(1)
    assert (got > 0).all()
    measured = A.measured(y)
    inside = torch.ones_like(rows, dtype=torch.bool) if measured is None else measured.expand_as(y).flatten(1)
    if A.gram_diagonal(y) is not None:
        assert torch.allclose(got[inside & (rows > 0)], rows[inside & (rows > 0)], rtol=1e-6)
        return
    mean = (rows * inside).sum(1) / inside.sum(1)
    off = gram - torch.diag_embed(rows)
    spread = 2**0.5 * off.flatten(1).norm(dim=1) / inside.sum(1)
    assert ((got[:, 0] - mean).abs() <= 5 * spread + 1e-9 * mean).all()
