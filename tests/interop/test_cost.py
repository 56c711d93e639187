"""The cost benchmark counts network evaluations correctly, and the results of the libraries agree."""

import pytest
import torch

from benchmarks.cost.counting import peak_mib
from benchmarks.cost.libraries import azula_steps, deepinv_steps
from benchmarks.cost.measuring import answers
from benchmarks.cost.problem import Problem

from .packages import need

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
TINY = {"kind": "unet", "hidden": [8], "blocks": 1, "heads": [0], "embedding": 8}


def problem(dtype=torch.float64):
    return Problem.make(TINY, 3, torch.device("cpu"), dtype)


def counted(instance, step):
    with instance.network.count() as counts:
        step()
    return counts.forwards, counts.vjps


@pytest.mark.parametrize("k", [1, 3, 5])
def test_ours_takes_k_products(k):
    own = problem()
    assert counted(own, own.ours("mmps", {"iterations": k})) == (1, k)
    assert counted(own, own.plain()) == (1, 0)


def test_peak_memory_is_that_of_tensors_alive_together():
    mib = 1 << 18  # float32 numbers

    def together():
        a, b = torch.ones(mib), torch.ones(mib)
        return a[:1] + b[:1]

    def in_turn():
        for _ in range(3):
            a = torch.ones(mib)
            del a
        return torch.ones(1)

    device = torch.device("cpu")
    assert peak_mib(together, device) == pytest.approx(2, abs=1e-3)
    assert peak_mib(in_turn, device) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("method", ["mmps k=1", "mmps k=3", "dps", "pigdm"])
def test_azula_takes_one_product_more_for_the_same_answer(method):
    need("azula")
    own = problem()
    k = int(method[-1]) if "k=" in method else 0
    assert counted(own, azula_steps(own)[method]) == (1, k + 1)
    assert answers(own, "azula", method) < 1e-9


@pytest.mark.parametrize("method", ["mmps k=1", "mmps k=3", "dps", "pigdm"])
def test_deepinv_takes_two_more(method):
    """deepinv computes in float32, whose rounding leaves 1e-4 of the change."""
    need("deepinv")
    own = problem(torch.float32)
    products = int(method[-1]) + 2 if "k=" in method else 1
    assert counted(own, deepinv_steps(own)[method]) == (1, products)
    assert answers(own, "deepinv", method) < 1e-4
