"""When the network of a lap is compiled for its evaluation."""

import torch

from diffem import priors
from diffem.em.batches import MicroBatches
from diffem.nn import MLP
from diffem.runs.recipe import load_recipe


def batches():
    return MicroBatches(load_recipe("digits"), 100, torch.device("cuda"), lambda event, data: None)


def trained():
    """A prior as the M-step leaves it, whose next call would be compiled; here on a CPU."""
    prior = priors.DiffusionPrior(MLP((4,), (8,), 8))
    prior.network.compile()
    return prior


def test_a_network_that_makes_no_draws_is_not_compiled_for_the_last_evaluation():
    prior, micro = trained(), batches()
    micro.prepare(prior, last=True)
    assert prior.network._compiled_call_impl is None
    assert micro.compiled_batch is None


def test_a_network_that_will_make_draws_stays_compiled():
    prior, micro = trained(), batches()
    batch = micro.prepare(prior)
    assert prior.network._compiled_call_impl is not None
    assert micro.compiled_batch == batch


def test_a_network_that_made_draws_stays_compiled_for_the_last_evaluation():
    prior, micro = trained(), batches()
    batch = micro.prepare(prior)
    assert micro.prepare(prior, last=True) == batch
    assert prior.network._compiled_call_impl is not None
