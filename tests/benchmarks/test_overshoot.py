"""The linear theory of a shift along the data: its formula for training, and its predictions for laps."""

import itertools

import pytest
import torch

from benchmarks.overshoot import determined, line, shifts
from diffem.em.augment import Augment
from diffem.em.determined import determined as library_determined
from diffem.em.measured_loss import MeasuredLoss, mean_gain
from diffem.linalg import Isotropic
from diffem.operators import Dense
from diffem.samplers import get_sampler


def test_the_trained_offset_minimises_the_loss():
    """For draws whose mean depends on A, the affine denoiser of least loss has the offset E[W (I − C) e_A]."""
    data, share, sigma = line(64), 0.8, 0.05
    cov = torch.diag(torch.tensor([1.0, 0.05, 0.05, 0.05, 0.05], dtype=torch.float64).square())
    generator = torch.Generator().manual_seed(1)
    A, eye = data.A, torch.eye(5, dtype=torch.float64)
    e = 1e-3 * torch.randn(64, 5, dtype=torch.float64, generator=generator)
    C = cov @ torch.linalg.inv(cov + sigma**2 * eye)
    noise = Isotropic(torch.tensor(data.sigma_y**2, dtype=torch.float64))
    D = library_determined(Dense(A), noise, 64, (5,), float(data.cov.diagonal().mean().sqrt()))
    gain = mean_gain(D, 64, (5,), torch.zeros(1, 5, dtype=torch.float64), 0)
    loss = MeasuredLoss(D, torch.arange(64), share, Augment([], (5,)), gain)
    rows, u = torch.arange(64), torch.zeros(64, 1)
    offset = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    # the mean over x and z of the loss of d(x_t) = C x_t + c is that of its mean error plus a term independent of c
    (gradient,) = torch.autograd.grad(loss(e @ (C - eye).T + offset, rows, u), offset, create_graph=True)
    hessian = torch.stack([torch.autograd.grad(g, offset, retain_graph=True)[0] for g in gradient])
    least = -torch.linalg.solve(hessian, gradient.detach())
    W = (1 - share) * eye + share / gain * determined(data)
    formula = torch.linalg.solve(W.mean(0), (W @ (eye - C) @ e[:, :, None]).mean(0)[:, 0])
    assert torch.allclose(least, formula, rtol=1e-9, atol=0)


@pytest.mark.parametrize("corrections", [0, 1])
def test_em_removes_a_shift_at_once_and_the_loss_on_measured_values_reverses_it(corrections):
    data, sampler = line(256), get_sampler("pc", corrections=corrections)
    em, measured = (shifts(data, share, 1.0, sampler, 128) for share in (0.0, 0.8))
    assert abs(em[1]) < 0.02 * em[0]
    assert all(a * b < 0 for a, b in itertools.pairwise(measured[:4]))


def test_renewing_half_of_the_draws_averages_a_shift_and_its_opposite():
    """A lap is linear in its training draws.

    Half of the first lap's draws and half of the second's give the mean of the two results.
    """
    data, sampler = line(128), get_sampler("pc")
    all_of_them, half = (shifts(data, 0.8, fresh, sampler, 128) for fresh in (1.0, 0.5))
    assert half[:2] == pytest.approx(all_of_them[:2])  # only the draws of the first lap can be kept
    assert half[2] == pytest.approx((all_of_them[1] + all_of_them[2]) / 2)
    assert half[3] == pytest.approx(half[2] / 2 + (all_of_them[2] + all_of_them[3]) / 4)
