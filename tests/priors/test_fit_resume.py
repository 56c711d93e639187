"""A Gaussian fit resumed from any of its checkpoints ends with a bit-identical result."""

import pytest
import torch

from diffem import Observations, operators, priors

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 6, generator=GENERATOR) * torch.tensor([3.0, 2, 1, 1, 0.5, 0.1]) + 1
PROBLEMS = {
    "masks": (operators.Mask(torch.rand(60, 6, generator=GENERATOR) < 0.7), {}),
    "dense": (operators.Dense(torch.randn(60, 4, 6, generator=GENERATOR)), {}),
    "low rank": (operators.Mask(torch.rand(60, 6, generator=GENERATOR) < 0.7), {"rank": 2}),
    "low rank, dense": (operators.Dense(torch.randn(60, 4, 6, generator=GENERATOR)), {"rank": 2}),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_resuming_from_every_checkpoint_is_bit_identical(problem):
    A, options = PROBLEMS[problem]
    y = A(X)
    obs = Observations(y + 0.1 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1)), A, sigma=0.1)
    states, history = [], priors.FitHistory()
    fitted = priors.fit_gaussian(obs, rounds=20, history=history, checkpoint=states.append, **options)
    assert len(states) > 4
    for state in states:
        again = priors.FitHistory()
        # tensors that were written and read have other addresses in memory
        copies = {name: t.clone() for name, t in state.tensors.items()}
        state = priors.FitState(copies, list(state.log_likelihood))
        resumed = priors.fit_gaussian(obs, rounds=20, history=again, resume=state, **options)
        assert again.log_likelihood == history.log_likelihood
        assert torch.equal(resumed.mean, fitted.mean)
        one, other = (p.covariance().matvec(torch.eye(6)) for p in (resumed, fitted))
        assert torch.equal(one, other)
