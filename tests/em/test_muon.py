"""Muon, against its definition."""

import pytest
import torch
from torch import nn

from diffem.em import maximization as m_step
from diffem.em.muon import ADAM_SIZE, Muon, orthogonalised
from diffem.em.trainer import Trainer
from diffem.em.training_blocks import TrainingRecord, copy_state
from diffem.files.tensors import read_tensors
from diffem.nn.networks import make_network
from diffem.priors import DiffusionPrior
from diffem.runs.recipe import Train

from .test_optimizer import fit


def matrix(m, n, seed=0):
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 8), (5, 40), (40, 5)], ids=str)
def test_singular_vectors_stay_and_singular_values_become_about_one(shape):
    M = matrix(*shape)
    U, _, V = torch.linalg.svd(M, full_matrices=False)
    S = U.T @ orthogonalised(M[None])[0] @ V.T
    assert S.diagonal().min() > 0.6
    assert S.diagonal().max() < 1.3
    # the iteration is a polynomial of the singular values: the rest is rounding
    assert (S - S.diagonal().diag()).abs().max() < 1e-4


def test_matrices_together_are_matrices_one_by_one_at_any_scale():
    Ms = torch.stack([matrix(6, 9, seed) * 10.0**seed for seed in range(-3, 4)])
    one_by_one = torch.cat([orthogonalised(M[None]) for M in Ms])
    assert torch.allclose(orthogonalised(Ms), one_by_one, atol=1e-5)
    assert torch.equal(orthogonalised(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_two_steps_follow_the_definition():
    p, first, second = (nn.Parameter(matrix(4, 12, seed).reshape(4, 3, 2, 2)) for seed in (0, 1, 2))
    start, rate, decay = p.detach().clone(), 0.1, 0.3
    optimizer = Muon([p], rate, momentum=0.9, weight_decay=decay)
    expected, mean = start.flatten(1), torch.zeros(4, 12)
    for gradient in (first.detach(), second.detach()):
        p.grad = gradient
        optimizer.step()
        mean = 0.9 * mean + 0.1 * gradient.flatten(1)
        step = orthogonalised((0.9 * mean + 0.1 * gradient.flatten(1))[None])[0]
        expected = (1 - rate * decay) * expected - rate * ADAM_SIZE * 12**0.5 * step
    assert torch.allclose(p.flatten(1), expected, atol=1e-6)


def test_a_step_is_about_as_large_as_one_of_adam():
    p = nn.Parameter(torch.zeros(64, 32, 3, 3))
    p.grad = matrix(64, 288).reshape(p.shape)
    Muon([p], 1e-3).step()
    # singular values of 0.7 to 1.2 instead of 1
    assert float(p.detach().square().mean().sqrt()) == pytest.approx(ADAM_SIZE * 1e-3, rel=0.2)


def small_prior() -> DiffusionPrior:
    torch.manual_seed(0)
    return DiffusionPrior(make_network("mlp", (3,), {"hidden": [8], "embedding": 8}), (3,))


def test_biases_and_other_vectors_are_trained_by_adam():
    trainer = Trainer(small_prior(), Train(steps=1, optimizer="muon"), steps=1)
    dimensions = {
        name: {p.ndim for group in optimizer.param_groups for p in group["params"]}
        for name, optimizer in trainer.optimizers.items()
    }
    assert dimensions == {"muon": {2}, "adam": {1}}


def test_an_interrupted_training_resumes_bit_by_bit(monkeypatch):
    monkeypatch.setattr(m_step, "_block_steps", lambda *_: 2)
    options = Train(steps=6, batch=4, optimizer="muon", checkpoint_seconds=1e-9)  # a checkpoint after every block
    saved = []

    def checkpoint(done, state, record):
        saved.append((done, copy_state(state), TrainingRecord(done)))

    whole, rest = small_prior(), small_prior()
    m_step.maximization(whole, matrix(10, 3), options, steps=6, seed=0, lap=1, checkpoint=checkpoint, progress=False)
    done, state, record = saved[0]
    assert done == 2
    assert {name.split(".")[0] for name in state} == {"weight", "muon", "adam"}
    m_step.maximization(
        rest, matrix(10, 3), options, steps=6, seed=0, lap=1, resume=(done, state, record), progress=False
    )
    for p, q in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_stage_may_change_the_optimizer(tmp_path):
    stages = [{"lap": 2, "train": {"optimizer": "muon"}}, {"lap": 3, "train": {"optimizer": "adam"}}]
    run = fit(tmp_path / "run", stages)
    tensors, _ = read_tensors(run.path / "laps/003/optimizer.safetensors")
    steps = {p.ndim: float(tensors[f"adam.{k}.step"]) for k, p in enumerate(run.prior.network.parameters())}
    assert steps == {1: 15, 2: 5}  # Adam trained the biases in all three laps, and the matrices in the last
    assert not any(name.startswith("muon") for name in tensors)
