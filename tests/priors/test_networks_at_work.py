"""How a network is evaluated: in which precision, how many samples at a time, and that neither is seen in the draws."""

import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.errors import InputError
from diffem.nn import MLP
from diffem.nn.networks import make_network
from diffem.priors import batching
from diffem.priors.files import save_prior


class Watched(torch.nn.Module):
    """A network that notes the batches it is given."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.event_shape, self.sizes = MLP((size,), hidden=(16,), embedding=8), (size,), []

    def forward(self, x, log_sigma):
        self.sizes.append(len(x))
        return self.network(x, log_sigma)


@pytest.fixture
def prior():
    return priors.DiffusionPrior(Watched(4)).eval()


@pytest.fixture
def obs():
    A = operators.Dense(torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(1)))
    return Observations(torch.zeros(6, 2), A, sigma=0.1)


def test_precision_of_the_network_alone(prior):
    x, sigma = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)), 0.5
    exact = prior(x, sigma)
    coarse = prior.compute_in("bf16")(x, sigma)
    assert coarse.dtype == torch.float32
    assert not torch.equal(coarse, exact)
    torch.testing.assert_close(coarse, exact, rtol=0, atol=0.02)
    assert torch.equal(prior.compute_in("float32")(x, sigma), exact)
    with pytest.raises(InputError, match="precision must be float32, tf32, bf16 or fp16, got 'half'"):
        prior.compute_in("half")


def test_accelerating_keeps_the_precision(prior):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    coarse = prior.compute_in("bf16")(x, 0.5)
    assert torch.equal(prior.accelerate(8)(x, 0.5), coarse)
    assert not torch.equal(prior.accelerate(8, precision="float32")(x, 0.5), coarse)


def test_as_many_at_a_time_as_suit_the_device(prior, obs, monkeypatch):
    """Where nobody says how many: prior samples, posterior draws and particles, none of which depend on it."""
    draws = {
        "prior": lambda **options: prior.sample(20, steps=2, **options),
        "posterior": lambda **options: prior.posterior(obs).sample(5, steps=2, **options),
        "particles": lambda **options: prior.posterior(obs).sample(5, steps=2, sampler="tds", particles=2, **options),
    }
    for draw in draws.values():
        whole = draw(batch_size=1000)
        monkeypatch.setattr(batching, "CPU_NUMBERS", 7 * 4)
        prior.network.sizes.clear()
        parts = draw()
        assert max(prior.network.sizes) in (6, 7)  # particles of a draw stay together
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)
        monkeypatch.undo()


def test_batches_by_size_of_a_sample():
    few, many = (priors.DiffusionPrior(torch.nn.Identity(), shape) for shape in ((3, 32, 32), (5,)))
    assert few.batch_for(10_000) == 85
    assert many.batch_for(10_000) == 10_000
    assert priors.DiffusionPrior(torch.nn.Identity(), (3, 1024, 1024)).batch_for(4) == 1
    assert few.accelerate(32).batch_for(10_000) == 32
    assert few.batch_for(3) == 3
    assert priors.GaussianPrior(torch.zeros(5), torch.eye(5)).batch_for(1 << 30) == 1 << 30


def test_loaded_in_a_precision(tmp_path):
    settings = {"kind": "mlp", "hidden": [16], "embedding": 8}
    network = make_network("mlp", (4,), {"hidden": [16], "embedding": 8})
    save_prior(priors.DiffusionPrior(network, (4,), settings=settings), tmp_path / "prior.safetensors")
    x = torch.ones(2, 4)
    exact, coarse, drawn = (
        diffem.load(tmp_path / "prior.safetensors", precision=precision)(x, 0.5)
        for precision in ("float32", "bf16", "recipe")
    )
    assert not torch.equal(coarse, exact)
    assert torch.equal(drawn, exact)  # on a CPU, where runs draw in float32
    with pytest.raises(InputError, match="precision must be"):
        diffem.load(tmp_path / "prior.safetensors", precision="double")
