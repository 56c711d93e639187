"""The precision and the batch size in which a network is evaluated, and that the draws do not depend on them."""

from types import SimpleNamespace

import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.core.errors import InputError
from diffem.linalg import Isotropic
from diffem.nn import MLP
from diffem.nn.networks import make_network
from diffem.priors import batching
from diffem.priors.files import save_prior


class RecordingNetwork(torch.nn.Module):
    """A network that records its batch sizes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.event_shape, self.sizes = MLP((size,), hidden=(16,), embedding=8), (size,), []

    def forward(self, x, log_sigma):
        self.sizes.append(len(x))
        return self.network(x, log_sigma)


@pytest.fixture
def prior():
    return priors.DiffusionPrior(RecordingNetwork(4)).eval()


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
    torch.testing.assert_close(coarse, exact, rtol=0, atol=5 * 2**-8)  # eight bits, numbers of about 1, a few layers
    assert torch.equal(prior.compute_in("float32")(x, sigma), exact)
    with pytest.raises(InputError, match="precision must be float32, tf32, bf16 or fp16, got 'half'"):
        prior.compute_in("half")


def test_accelerating_keeps_the_precision(prior):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    coarse = prior.compute_in("bf16")(x, 0.5)
    assert torch.equal(prior.accelerate(8)(x, 0.5), coarse)
    assert not torch.equal(prior.accelerate(8, precision="float32")(x, 0.5), coarse)


def test_few_draws_are_not_compiled():
    """`diffem mri` with six observations, against a hundred batches of 64 steps, on a simulated GPU."""
    for is_cuda, evaluations, expected in ((True, 6 * 2 * 28, []), (True, 100 * 64, [32]), (False, 100 * 64, [])):
        batches: list[int] = []
        stand_in = SimpleNamespace(mean=SimpleNamespace(is_cuda=is_cuda), accelerate=batches.append)
        priors.DiffusionPrior.prepare(stand_in, 32, evaluations)
        assert batches == expected


def test_default_batch_sizes_depend_on_the_device(prior, obs, monkeypatch):
    """Prior samples, posterior draws and particles, none of which depend on the batch size."""
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
        assert max(prior.network.sizes) in (6, 7)  # the particles of a draw are in one batch
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)  # float32, and a solve in every step
        monkeypatch.undo()


def test_batches_by_size_of_a_sample():
    few, many = (priors.DiffusionPrior(torch.nn.Identity(), shape) for shape in ((3, 32, 32), (5,)))
    assert few.batch_for(10_000) == 85
    assert many.batch_for(10_000) == 10_000
    assert priors.DiffusionPrior(torch.nn.Identity(), (3, 1024, 1024)).batch_for(4) == 1
    assert few.accelerate(32).batch_for(10_000) == 32
    assert few.batch_for(3) == 3
    # a draw from a Gaussian needs 24 vectors in float64: 256 MiB are enough for 455 photographs
    assert priors.GaussianPrior(torch.zeros(5), torch.eye(5)).batch_for(10_000) == 10_000
    assert priors.GaussianPrior(torch.zeros(3, 32, 32), Isotropic(torch.tensor(1.0))).batch_for(10_000) == 455


@pytest.mark.parametrize(("fits", "batch"), [(1000, 512), (20, 128), (2, 1)])
def test_batches_fit_into_memory(monkeypatch, fits, batch):
    """On a simulated GPU: a sample takes a megabyte, and a probe of more than `fits` samples runs out of memory."""

    def peak(prior, count):
        if count > fits:
            raise torch.OutOfMemoryError
        return (100 << 20) + (count << 20)

    monkeypatch.setattr(batching, "_peak_bytes", peak)
    monkeypatch.setattr(batching, "free_on", lambda device: 1000 << 20 if fits > 100 else 200 << 20)
    cuda = SimpleNamespace(event_shape=(3, 32, 32), mean=SimpleNamespace(device=torch.device("cuda")))
    assert batching.choose_batch(cuda, 10_000) == batch
    assert batching.choose_batch(cuda, 3) == min(3, batch)


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
    assert torch.equal(drawn, exact)  # on a CPU, on which runs draw in float32
    with pytest.raises(InputError, match="precision must be"):
        diffem.load(tmp_path / "prior.safetensors", precision="double")
