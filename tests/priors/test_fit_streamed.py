"""The Gaussian fit on disk is bit-identical to that in memory, and never reads all observations at once."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.files import memory
from diffem.observations.lazy import LazyObservations

from .test_fit import problem


class Counted:
    """A wrapper of observations that records how many are read at a time, and how often."""

    digest = "00"

    def __init__(self, obs):
        self.obs, self.x_shape, self.largest, self.rows = obs, obs.x_shape, 0, 0

    def __len__(self):
        return len(self.obs)

    def read(self, rows):
        self.largest, self.rows = max(self.largest, len(rows)), self.rows + len(rows)
        return self.obs[rows]


def complete(n=60):
    y = torch.randn(n, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Observations(y, operators.Identity(), sigma=0.2)


CASES = {
    "masks": (problem(0), None),
    "dense": (problem(2, kind="dense"), None),
    "everything measured": (complete(), None),
    "masks, low rank": (problem(1), 2),
    "blurs, low rank": (problem(4, kind="blur"), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_fits_on_disk_and_in_memory_are_bit_identical(case, monkeypatch):
    obs, rank = CASES[case]
    monkeypatch.setattr(
        "diffem.observations.batches.SCANNED_BYTES", 7 * 8 * 12
    )  # several batches for passes that only read the data
    fits = []
    for budget in (1 << 30, 0):
        for observations in (obs, LazyObservations(Counted(obs))):
            monkeypatch.setattr(memory, "RESIDENT_BYTES", budget)
            fits.append(priors.fit_gaussian(observations, rank, rounds=7, batch_size=16))
    for fit in fits[1:]:
        assert torch.equal(fit.mean, fits[0].mean)
        for name, tensor in fit.covariance()._tensors.items():
            assert torch.equal(tensor, fits[0].covariance()._tensors[name])


@pytest.mark.parametrize("case", CASES)
def test_observations_beyond_the_budget_are_read_a_batch_at_a_time(case, monkeypatch):
    obs, rank = CASES[case]
    monkeypatch.setattr("diffem.observations.batches.SCANNED_BYTES", 1)  # one at a time
    read = {}
    for budget in (1 << 30, 0):
        source = Counted(obs)
        monkeypatch.setattr(memory, "RESIDENT_BYTES", budget)
        priors.fit_gaussian(LazyObservations(source), rank, rounds=7, batch_size=16)
        assert source.largest <= 16
        read[budget] = source.rows
    # within the budget, all rounds, or the two passes of the closed form, use the data read by the first
    passes = 2 if case == "everything measured" else 7
    assert read[0] - read[1 << 30] >= (passes - 1) * len(obs)


def images(n, *shape):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(n))


MEASURED = {
    "masks": (Observations(images(200, 96), operators.Mask(images(200, 96) < 0), sigma=0.1), None),
    "masks, low rank": (Observations(images(600, 256), operators.Mask(images(600, 256) < 0), sigma=0.1), 8),
    "dense": (Observations(images(100, 64), operators.Dense(images(100, 64, 128)), sigma=0.1), None),
}


@pytest.mark.parametrize("case", MEASURED)
def test_a_batch_stays_within_its_memory_budget(case, monkeypatch):
    """The peak of bytes in tensors, counted by PyTorch's allocator, if the observations take several times as much."""
    obs, rank = MEASURED[case]
    monkeypatch.setattr(memory, "WORKING_BYTES", 4 << 20)
    monkeypatch.setattr(memory, "RESIDENT_BYTES", 0)
    monkeypatch.setattr("diffem.observations.batches.SCANNED_BYTES", 1 << 16)
    monkeypatch.setattr("diffem.priors.fit_low_rank.STARTED_FROM", 16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        priors.fit_gaussian(obs, rank, rounds=1)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    # the model itself, a few matrices of 128 × 128, does not count towards the batch
    assert 2 << 20 < most < 5 << 20
