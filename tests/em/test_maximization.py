"""The M-step: its loss, its examples, its averages, its checkpoints."""

import math

import pytest
import torch

from diffem import priors
from diffem.core.randomness import Stream
from diffem.em.augment import AUGMENTATIONS, Augment
from diffem.em.checkpoint import read_checkpoint, write_checkpoint
from diffem.em.examples import Examples
from diffem.em.maximization import maximization
from diffem.em.noise_law import noise_law
from diffem.em.trainer import Trainer, learning_rates
from diffem.nn import MLP
from diffem.nn.networks import make_network
from diffem.runs.recipe import Noise, Train

OPTIONS = Train(steps=10, batch=8, lr=1e-3)
LAW = noise_law(Noise(), 0.02, 20.0)


def prior(seed=0, hidden=(32, 32)):
    torch.manual_seed(seed)
    return priors.DiffusionPrior(MLP((4,), hidden, 16), sigma_min=0.02, sigma_max=20.0)


def test_the_loss_is_the_weighted_denoising_error():
    p = prior()
    trainer = Trainer(p, OPTIONS, 10)
    x, z, log_sigma = torch.randn(8, 4), torch.randn(8, 4), torch.linspace(-3, 2, 8)
    sigma = log_sigma.exp()[:, None]
    weight = 1 / sigma**2 + 1
    expected = (weight * (p(x + sigma * z, sigma[:, 0]).detach() - x).square()).mean()
    assert float(trainer.step(0, x, log_sigma, z)) == pytest.approx(float(expected), rel=1e-4)


def test_every_draw_is_used_once_per_epoch():
    draws = torch.randn(53, 4)
    examples = Examples(draws, 8, LAW, Augment([], (4,)), Stream(0, "training", 1))
    rows = torch.cat([examples.block(k, 1)[0].flatten() for k in range(53 * 3 // 8 + 1)])[: 53 * 3]
    for epoch in rows.reshape(3, 53):
        assert torch.equal(epoch.sort().values, torch.arange(53))
    assert not torch.equal(rows[:53], rows[53:106])


@pytest.mark.parametrize("law", [Noise(), Noise(law="lognormal")])
def test_the_examples_of_a_step_do_not_depend_on_blocks(law):
    law = noise_law(law, 0.02, 20.0)
    examples = Examples(torch.randn(53, 4), 8, law, Augment([], (4,)), Stream(0, "training", 1))
    whole, parts = examples.block(3, 6), [examples.block(3, 2), examples.block(5, 4)]
    for k in range(4):
        assert torch.equal(whole[k], torch.cat([part[k] for part in parts]))


def test_times_follow_beta_3_3():
    examples = Examples(torch.randn(100, 4), 500, LAW, Augment([], (4,)), Stream(0, "training", 1))
    log_sigma = examples.block(0, 100)[1].flatten().double()
    t = (log_sigma - math.log(0.02)) / (math.log(20.0) - math.log(0.02))
    # Beta(3, 3): mean 1/2, variance 1/28; four standard errors of 50,000
    assert float(t.mean()) == pytest.approx(0.5, abs=4 * math.sqrt(1 / 28 / 5e4))
    assert float(t.var()) == pytest.approx(1 / 28, rel=0.04)
    grid = torch.linspace(0.05, 0.95, 19).double()
    cdf = grid**3 * (10 - 15 * grid + 6 * grid**2)
    assert ((t[:, None] < grid).double().mean(0) - cdf).abs().max() < 0.01


def test_learning_rates_follow_their_schedule():
    for schedule, middle in (("linear", 0.55), ("cosine", 0.55), ("constant", 1.0)):
        rates = learning_rates(Train(steps=1, lr=1.0, final_lr=0.1, schedule=schedule, warmup=10), 100)
        assert float(rates[0]) == pytest.approx(0.1)
        assert float(rates[50]) == pytest.approx(middle, abs=0.01)
        assert float(rates[-1]) == pytest.approx(1.0 if schedule == "constant" else 0.1, abs=0.02)


def test_an_interrupted_training_continues_bit_for_bit():
    draws, options = torch.randn(100, 4), Train(steps=1000, batch=8, lr=1e-3, ema=0.99, checkpoint_seconds=1e-9)
    whole, saved = prior(), []
    maximization(
        whole, draws, options, steps=1000, seed=0, lap=1,
        checkpoint=lambda done, state, record: saved.append((done, {k: v.clone() for k, v in state.items()}, record)),
    )  # fmt: skip
    assert len(saved) >= 2
    again = prior(seed=5)
    maximization(again, draws, options, steps=1000, seed=0, lap=1, resume=saved[1])
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_training_of_weights_in_channels_last_continues_bit_for_bit(monkeypatch, tmp_path):
    """As on a GPU, where convolutions are fastest that way; files hold contiguous tensors."""
    monkeypatch.setattr("diffem.em.maximization.BLOCK_BYTES", 2 * 4 * (3 * 64 + 8) * 4)  # blocks of two steps

    def unet():
        torch.manual_seed(0)
        network = make_network("unet", (3, 8, 8), {"hidden": [8, 8], "blocks": 1, "heads": [0, 0], "embedding": 8})
        return priors.DiffusionPrior(network.to(memory_format=torch.channels_last), (3, 8, 8))

    draws, options = torch.randn(20, 3, 8, 8), Train(steps=12, batch=4, lr=1e-2, ema=0.9, checkpoint_seconds=1e-9)
    whole, file = unet(), tmp_path / "training.safetensors"

    def checkpoint(done, state, record):
        if done == 6:
            write_checkpoint(file, done, state, record)

    maximization(whole, draws, options, steps=12, seed=0, lap=1, checkpoint=checkpoint)
    again = unet()
    maximization(again, draws, options, steps=12, seed=0, lap=1, resume=read_checkpoint(file))
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_averaged_weights_are_the_average():
    p, options = prior(), Train(steps=3, batch=8, lr=1e-2, ema=0.7)
    trainer = Trainer(p, options, 3)
    average = [w.detach().clone() for w in p.network.parameters()]
    for i in range(3):
        trainer.step(i, torch.randn(8, 4), torch.zeros(8), torch.randn(8, 4))
        average = [0.7 * a + 0.3 * w.detach() for a, w in zip(average, p.network.parameters(), strict=True)]
    trainer.finish()
    for a, w in zip(average, p.network.parameters(), strict=True):
        assert torch.allclose(a, w, atol=1e-6)


def test_training_learns_a_gaussian():
    """The denoiser of N(0, diag) is known; a short training must come near it at every noise level."""
    std = torch.tensor([1.0, 0.5, 0.2, 0.05])
    draws = torch.randn(4000, 4, generator=torch.Generator().manual_seed(0)) * std
    p = prior(hidden=(64, 64))
    maximization(p, draws, Train(steps=3000, batch=256, lr=3e-3, ema=0.99), steps=3000, seed=0, lap=1)
    x = torch.randn(2000, 4, generator=torch.Generator().manual_seed(1)) * std
    for sigma in (0.05, 0.3, 1.0, 5.0):
        x_t = x + sigma * torch.randn(2000, 4, generator=torch.Generator().manual_seed(2))
        exact = std**2 / (std**2 + sigma**2) * x_t
        error, optimal = (p(x_t, sigma) - exact).square().mean(), (exact - x).square().mean()
        assert float(error) < 0.05 * float(optimal)


def test_a_loss_that_is_not_a_number_stops_with_a_message():
    with pytest.raises(FloatingPointError, match=r"lap 3.*nan.*train.lr"):
        maximization(prior(), torch.full((20, 4), torch.nan), OPTIONS, steps=4, seed=0, lap=3)


class TestAugment:
    def test_flip_and_crop_move_pixels_only(self):
        x, u = torch.randn(64, 3, 8, 8), torch.rand(64, 3)
        flipped = Augment(["hflip"], (3, 8, 8))(x, u)
        assert torch.equal(flipped[u[:, 0] < 0.5], x.flip(-1)[u[:, 0] < 0.5])
        assert torch.equal(flipped[u[:, 0] >= 0.5], x[u[:, 0] >= 0.5])
        middle = torch.full((64, 2), 0.5)
        assert torch.equal(AUGMENTATIONS["crop"][1](x, middle), x)
        shifted = AUGMENTATIONS["crop"][1](x, torch.tensor([[0.5, 0.999]]).expand(64, 2))
        assert torch.equal(shifted[..., :4], x[..., 4:])

    def test_hue_keeps_grey_and_length(self):
        grey = torch.randn(5, 1, 4, 4).expand(5, 3, 4, 4)
        u = torch.rand(5, 1)
        hue = AUGMENTATIONS["hue"][1]
        assert torch.allclose(hue(grey, u), grey, atol=1e-6)
        x = torch.randn(5, 3, 4, 4)
        assert torch.allclose(hue(x, u).norm(dim=1), x.norm(dim=1), atol=1e-5)
        assert torch.allclose(hue(x, torch.full((5, 1), 0.5)), x, atol=1e-6)
        assert (hue(x, torch.ones(5, 1)) - x).abs().max() > 0.01

    def test_unknown_or_unsuitable_augmentations_are_errors(self):
        with pytest.raises(ValueError, match="unknown augmentation 'zoom'"):
            Augment(["zoom"], (3, 8, 8))
        with pytest.raises(ValueError, match="need images"):
            Augment(["hflip"], (5,))
        with pytest.raises(ValueError, match="three channels"):
            Augment(["hue"], (1, 8, 8))
