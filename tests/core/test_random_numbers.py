"""Random numbers for a simulator: addressed by sample, independent from call to call, with the right distributions."""

import pytest
import torch
from scipy import stats

from diffem import InputError
from diffem.core.random_numbers import RandomNumbers, _inverted
from diffem.core.randomness import Stream


def numbers(*index: int) -> RandomNumbers:
    return RandomNumbers(Stream(3, "test"), torch.tensor(index))


def everything(rng: RandomNumbers, rates: torch.Tensor) -> list[torch.Tensor]:
    return [rng.uniform(5), rng.normal(2, 3), rng.normal(2, 3), rng.poisson(rates), rng.seeds()]


def test_a_sample_has_its_numbers_in_any_batch() -> None:
    rates = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) * 100
    whole, part = everything(numbers(7, 8, 9, 2), rates), everything(numbers(9, 7), rates[[2, 0]])
    for together, alone in zip(whole, part, strict=True):
        assert torch.equal(together[[2, 0]], alone)


def test_calls_give_different_numbers() -> None:
    rng = numbers(1, 2)
    first, second = rng.normal(8), rng.normal(8)
    assert not torch.equal(first, second)
    assert len(rng.seeds().unique()) == 2


@pytest.mark.parametrize("rate", [0.0, 0.3, 5.0, 63.9, 64.1, 1000.0])
def test_poisson_counts_invert_the_cumulative_distribution(rate: float) -> None:
    """The counts are those of scipy for the same uniform numbers, by search and by bisection."""
    u = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    counts = _inverted(torch.full_like(u, rate), u)
    assert torch.equal(counts, torch.from_numpy(stats.poisson.ppf(u.numpy(), rate)).clamp(min=0))


@pytest.mark.parametrize("bad", [-1e-6, float("nan"), float("inf")])
def test_rates_that_have_no_counts_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="clamp"):
        numbers(0).poisson(torch.tensor([[bad]]))
