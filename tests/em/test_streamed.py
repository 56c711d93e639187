"""Data beyond the budget are read as they are used, and the results have the same bits as with everything in memory."""

import numpy as np
import pytest
import torch

import diffem
from diffem import Observations, priors
from diffem.core.errors import InputError
from diffem.em.maximization import maximization
from diffem.files import memory
from diffem.files.arrays import array_rows
from diffem.nn import MLP
from diffem.observations.lazy import LazyObservations
from diffem.runs.draws import DrawStore, StoredDraws, lap_draws
from diffem.runs.recipe import Train
from diffem.runs.rundir import RunDir

from .small import RECIPE, observations


class Disk:
    """The small run's observations in files; notes how many are read at a time."""

    digest = "00"

    def __init__(self, folder, obs):
        self.obs, self.x_shape, self.largest = obs, obs.x_shape, 0
        np.save(folder / "y.npy", obs.y.numpy())
        self.y = array_rows(folder / "y.npy")

    def __len__(self):
        return len(self.y)

    def read(self, rows):
        self.largest = max(self.largest, len(rows))
        return Observations(torch.from_numpy(self.y[rows.numpy()]), self.obs.A[rows], sigma=0.1)


@pytest.fixture
def draws(tmp_path):
    """Two draws of every observation in four shards, and all of them in memory."""
    store = DrawStore(tmp_path / "draws", 136, shard=40)
    x = torch.randn(2, 136, 4, generator=torch.Generator().manual_seed(0))
    for k in range(len(store)):
        first, end = store.range(k)
        store.write(k, x[:, first:end], {})
    return store


def trained(draws, measured=0.0, **settings):
    torch.manual_seed(0)
    prior = priors.DiffusionPrior(MLP((4,), (16,), 8, dropout=0.1), sigma_min=0.02, sigma_max=20.0)
    options = Train(steps=20, batch=24, measured=measured)
    record = maximization(prior, draws, options, steps=20, seed=0, lap=1, progress=False, **settings)
    return [record.losses[-1][1], *(p.detach() for p in prior.network.parameters())]


def same(a, b):
    return a[0] == b[0] and all(torch.equal(x, y) for x, y in zip(a[1:], b[1:], strict=True))


def test_rows_of_draws_are_those_of_all_draws(draws):
    some, every = StoredDraws(draws), draws.all()
    assert len(some) == len(every) == 272
    assert some.shape == tuple(every.shape)
    rows = torch.randint(0, 272, (5, 60), generator=torch.Generator().manual_seed(0))
    assert torch.equal(some[rows], every[rows])
    assert torch.equal(some[torch.arange(272)], every)


def test_training_on_draws_and_operators_on_disk(draws, tmp_path, monkeypatch):
    obs = observations()
    disk = LazyObservations(Disk(tmp_path, obs))
    owners = draws.owners(2)
    plain = trained(draws.all())
    measured = trained(draws.all(), measured=0.5, measured_with=(obs.A, owners, obs.cov))
    assert not same(plain, measured)
    assert same(measured, trained(draws.all(), measured=0.5, measured_with=(disk.operators(), owners, disk.noises())))
    monkeypatch.setattr(memory, "RESIDENT_BYTES", 0)
    read = lap_draws(draws, torch.device("cpu"))
    assert isinstance(read, StoredDraws)
    assert same(plain, trained(read))
    assert same(measured, trained(read, measured=0.5, measured_with=(disk.operators(), owners, disk.noises())))
    assert disk._source.largest <= 136  # the gain is measured on the first 256
    monkeypatch.setattr("diffem.em.measured_loss.PROBES", 10)
    disk._source.largest = 0
    trained(read, measured=0.5, measured_with=(disk.operators(), owners, disk.noises()))
    assert disk._source.largest == 24  # a batch


def test_a_run_over_files_is_the_run_in_memory_bit_for_bit(tmp_path, monkeypatch):
    recipe = RECIPE | {"train": {"steps": 40, "batch": 16, "lr": 2e-3, "measured": 0.5}}
    monkeypatch.setattr(
        memory, "WORKING_BYTES", 40 * 8 * (8 * 4**2 + 8 * 4)
    )  # of 40 observations in the Gaussian start
    monkeypatch.setattr("diffem.observations.batches.SCANNED_BYTES", 40 * 24)
    monkeypatch.setattr("diffem.em.measured_loss.PROBES", 16)
    monkeypatch.setattr("diffem.em.model_check.CHECKED", 32)
    obs = observations()
    source = Disk(tmp_path, obs)
    memory_run = diffem.fit(obs, recipe, tmp_path / "memory", progress=False)
    monkeypatch.setattr(memory, "RESIDENT_BYTES", 0)
    disk_run = diffem.fit(LazyObservations(source), recipe, tmp_path / "disk", progress=False)
    assert source.largest == 40  # of 136: a batch of the start, a shard
    for lap in (0, 1, 2):
        a, b = (diffem.load(run.path, lap=lap).state_dict() for run in (memory_run, disk_run))
        assert all(torch.equal(a[name], b[name]) for name in a)
    for k in range(3):
        a, b = ((RunDir(run.path).lap(2) / "draws" / f"{k:05d}.npy").read_bytes() for run in (memory_run, disk_run))
        assert a == b


def test_files_that_change_during_a_run_are_rejected(draws):
    some = StoredDraws(draws)
    file = draws.folder / "00001.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-4] + b"\0\0\0\0")
    with pytest.raises(InputError, match=r"00001\.npy has changed since it was opened"):
        some[torch.tensor([100])]
    with pytest.raises(InputError, match="do not match their checksum"):
        StoredDraws(draws)
    file.write_bytes(data[:-4])
    with pytest.raises(InputError, match="the file holds"):
        lap_draws(draws, torch.device("cpu"))
