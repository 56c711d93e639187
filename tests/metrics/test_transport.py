"""Entropic transport against exact optimal transport; the GPU kernel of the soft minimum against the plain one."""

import math

import numpy as np
import pytest
import torch

from diffem import metrics
from diffem.metrics import transport
from diffem.metrics.transport import entropic_cost


@pytest.mark.parametrize("n", [200])
def test_sinkhorn_tends_to_optimal_transport(n):
    import ot

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 2, generator=generator), torch.randn(n, 2, generator=generator) + 1
    weights = np.ones(n) / n
    cost = ot.dist(x.double().numpy(), y.double().numpy())
    exact = ot.emd2(weights, weights, cost)
    assert metrics.sinkhorn(x, y, reg=1e-3) == pytest.approx(exact, rel=0.02)
    plan = ot.sinkhorn(weights, weights, cost, 0.1, method="sinkhorn_log", numItermax=5000, stopThr=1e-10)
    entropic = (plan * cost).sum() + 0.1 * (plan * np.log(plan * n**2)).sum()
    assert metrics.sinkhorn(x, y, reg=0.1, debias=False) == pytest.approx(entropic, rel=1e-3)
    assert metrics.sinkhorn(x, x.clone(), reg=0.1) == pytest.approx(0.0, abs=1e-3)


def test_sinkhorn_converges_where_mass_travels_along_a_curve():
    """Points on a curve, denser at one end: plain iterations at this regularisation stop 15 % too low."""
    import ot

    z = torch.linspace(0, 1, 300, dtype=torch.float64)
    curve = torch.stack([8 * z, torch.sin(9 * z)], 1)
    other = torch.stack([8 * z**1.2, torch.sin(9 * z**1.2)], 1)
    weights = np.ones(300) / 300
    exact = ot.emd2(weights, weights, ot.dist(curve.numpy(), other.numpy()))
    assert metrics.sinkhorn(curve, other) == pytest.approx(exact, rel=0.01)
    assert metrics.sinkhorn(curve.float(), other.float()) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["as given", "in double precision"])
@pytest.mark.parametrize("n", [1, 2, 4, 16])
def test_few_points_far_apart(n, small, monkeypatch):
    """Here the potentials grow by equal steps, from which nothing can be extrapolated."""
    import ot

    monkeypatch.setattr(transport, "SMALL", small)
    weights = np.ones(n) / n
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x, y = (10 * torch.randn(n, 3, generator=generator) for _ in range(2))
        exact = ot.emd2(weights, weights, ot.dist(x.double().numpy(), y.double().numpy()))
        # the entropy of a plan that is a permutation, and the rounding of costs of a few hundred
        assert entropic_cost(x, y, 1e-3) == pytest.approx(exact + 1e-3 * math.log(n), rel=1e-6)


@pytest.mark.parametrize("reg", [1e-3, 0.1, 10.0])
def test_the_cost_of_a_set_with_itself_equals_that_with_a_copy(reg):
    """The symmetric problem is solved separately, in fewer iterations; a dense curve, a cloud and a distant cluster."""
    generator = torch.Generator().manual_seed(0)
    z = torch.linspace(0, 8, 200, dtype=torch.float64)
    cloud = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    x = torch.cat([torch.stack([z, z.sin()], 1), cloud, 0.01 * cloud[:20] + 50])
    assert entropic_cost(x, None, reg) == pytest.approx(entropic_cost(x, x.clone(), reg), rel=1e-4)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (100, 7, 2), (1000, 4099, 3), (4096, 1000, 5), (3000, 3000, 8)])
def test_soft_minimum_of_the_kernel(n, m, d, epsilon, device):
    if device.type != "cuda":
        pytest.skip("a kernel for GPUs")
    from diffem.metrics.soft_minimum import soft_minimum

    generator = torch.Generator().manual_seed(0)
    x, y, g = (torch.randn(*shape, generator=generator).to(device) for shape in ((n, d), (m, d), (m,)))
    exact = transport._soft_minimum(x.double(), y.double(), None, g.double(), epsilon)
    found = soft_minimum(x.T.contiguous(), y.T.contiguous(), g, epsilon)
    # float32: costs of up to a hundred, whose minimum is about 1
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_stored_and_recomputed_distances_agree():
    generator = torch.Generator().manual_seed(0)
    x, y, g = (torch.randn(*shape, generator=generator).double() for shape in ((30, 4), (20, 4), (20,)))
    f = torch.randn(30, generator=generator).double()
    kept, remade = transport._soft_minima(x, y), transport._soft_minima(x, y, keep=False)
    direct = -0.1 * torch.logsumexp((g - torch.cdist(x, y).square()) / 0.1 - math.log(20), 1)
    torch.testing.assert_close(kept[0](g, 0.1), direct)
    for one, other, potential in zip(kept, remade, (g, f), strict=True):
        torch.testing.assert_close(one(potential, 0.1), other(potential, 0.1))
