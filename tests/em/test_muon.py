"""Muon: orthogonalised updates of matrices, their size, and which weights they are for."""

import pytest
import torch

from diffem import priors
from diffem.em.muon import COEFFICIENTS, ITERATIONS, UPDATE_SIZE, Muon, is_hidden_matrix, orthogonalise
from diffem.em.trainer import Trainer
from diffem.nn.networks import make_network
from diffem.runs.recipe import Train


def matrices(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unet():
    torch.manual_seed(0)
    options = {"hidden": [32, 32], "blocks": 1, "heads": [0, 4], "embedding": 16}
    return make_network("unet", (3, 8, 8), options)


@pytest.mark.parametrize("shape", [(5, 40, 40), (3, 32, 90), (2, 90, 32)])
def test_only_the_singular_values_change(shape):
    """The iteration is an odd polynomial of the matrix, so it acts on each singular value by itself."""
    x = matrices(*shape)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    a, b, c = COEFFICIENTS
    s = s / x.norm(dim=(-2, -1))[:, None]
    for _ in range(ITERATIONS):
        s = a * s + b * s**3 + c * s**5
    assert torch.allclose(orthogonalise(x), u * s[:, None] @ v, atol=1e-6)  # 1e-7 is added to the norm


def test_singular_values_become_about_1():
    x = matrices(4, 48, 200)
    values = torch.linalg.svdvals(orthogonalise(x))
    assert float(values.min()) > 0.65
    assert float(values.max()) < 1.25


def stepped(weights, gradients, steps=2):
    parameters = [torch.nn.Parameter(w.clone(memory_format=torch.preserve_format)) for w in weights]
    optimizer = Muon(parameters, lr=1e-2)
    for _ in range(steps):
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g.clone(memory_format=torch.preserve_format)
        optimizer.step()
    return [p.detach() for p in parameters]


def test_weights_of_one_shape_do_not_affect_each_other():
    weights, gradients = list(matrices(3, 40, 64)), list(matrices(3, 40, 64, seed=1))
    together = stepped(weights, gradients)
    for w, g, expected in zip(weights, gradients, together, strict=True):
        assert torch.allclose(stepped([w], [g])[0], expected, atol=1e-12)


def test_the_first_update_has_the_size_of_one_of_adam():
    w, g = matrices(64, 64), matrices(64, 64, seed=1)
    change = (stepped([w], [g], steps=1)[0] - w).square().mean().sqrt()
    assert float(change) == pytest.approx(UPDATE_SIZE * 1e-2, rel=0.2)  # singular values between 0.7 and 1.2


def test_a_convolution_is_updated_as_its_matrix_in_every_memory_layout():
    w, g = matrices(32, 8, 3, 3), matrices(32, 8, 3, 3, seed=1)
    expected = stepped([w.flatten(1)], [g.flatten(1)])[0]
    assert torch.allclose(stepped([w], [g])[0].flatten(1), expected, atol=1e-12)
    last = [t.to(memory_format=torch.channels_last) for t in (w, g)]
    assert torch.allclose(stepped(last[:1], last[1:])[0].flatten(1), expected, atol=1e-12)


def test_muon_trains_hidden_matrices_and_adam_everything_else():
    network = unet()
    trainer = Trainer(priors.DiffusionPrior(network, (3, 8, 8)), Train(steps=1, batch=4, optimizer="muon"), 1)
    muon, adam = ({id(p) for p in trainer.optimizers[name].param_groups[0]["params"]} for name in ("muon", "adam"))
    assert not muon & adam
    assert len(muon | adam) == len(list(network.parameters()))
    by_adam = {name for name, p in network.named_parameters() if p.ndim > 1 and id(p) in adam}
    assert {"first.weight", "last.weight"} <= by_adam  # 3 · 9 columns, 3 rows
    assert all(id(p) in muon for p in network.parameters() if is_hidden_matrix(p))


def test_a_network_without_hidden_matrices_is_trained_by_adam_alone():
    prior = priors.DiffusionPrior(make_network("mlp", (4,), {"hidden": [8], "embedding": 8}))
    trainers = [Trainer(prior, Train(steps=1, batch=4, optimizer=name), 1) for name in ("muon", "adam")]
    assert all(list(trainer.optimizers) == ["adam"] for trainer in trainers)
