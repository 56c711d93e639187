"""The loss on measured values: its definition, its fixed point, and a faster decay of the start's errors than in EM."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.core.errors import InputError
from diffem.em.augment import Augment
from diffem.em.determined import determined
from diffem.em.maximization import MeasuredWith, maximization
from diffem.em.measured_loss import MeasuredLoss, mean_gain
from diffem.linalg import Isotropic
from diffem.nn import MLP
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import Train

SMALL = Isotropic(torch.tensor(1e-8))  # a noise that a mask's weights do not show in float32


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_loss_weights_measured_pixels():
    mask = torch.rand(6, 1, 4, 4, generator=generator()) < 0.25
    A = operators.Mask(mask).resolve_axes(torch.zeros(1, 3, 4, 4))
    error, rows = torch.randn(5, 3, 4, 4, generator=generator(1)), torch.tensor([7, 0, 3, 11, 2])
    owners = torch.arange(6).repeat(2)
    D = determined(A, SMALL, 6, (3, 4, 4), 1.0)
    loss = MeasuredLoss(D, owners, 0.8, Augment([], (3, 4, 4)), gain=0.25)(error, rows, torch.zeros(5, 0))
    weight = 0.2 + 0.8 / 0.25 * mask[rows % 6].float()
    assert float(loss) == pytest.approx(float((weight * error.square()).sum()), rel=1e-5)


@pytest.mark.parametrize("names", [["hflip"], ["hue"], ["hflip", "hue"]])
def test_augmented_samples_are_measured_in_their_original_position(names):
    augment = Augment(names, (3, 4, 4))
    A = operators.Mask(torch.rand(5, 1, 4, 4, generator=generator()) < 0.5).resolve_axes(torch.zeros(1, 3, 4, 4))
    error, u = torch.randn(5, 3, 4, 4, generator=generator(1)), torch.rand(5, augment.uniforms, generator=generator(2))
    rows = torch.arange(5)
    D = determined(A, SMALL, 5, (3, 4, 4), 1.0)
    plain = MeasuredLoss(D, rows, 0.7, Augment([], (3, 4, 4)), 0.5)(error, rows, torch.zeros(5, 0))
    turned = MeasuredLoss(D, rows, 0.7, augment, 0.5)(augment(error, u), rows, u)
    assert float(turned) == pytest.approx(float(plain), rel=1e-5)


def test_a_shift_is_undone_before_the_measurement():
    augment, u = Augment(["crop"], (1, 16, 16)), torch.rand(20, 2, generator=generator())
    x = torch.randn(20, 1, 16, 16, generator=generator(1))
    assert torch.equal(augment.undo(augment(x, u), u)[..., 4:12, 4:12], x[..., 4:12, 4:12])


def test_the_gain_is_the_fraction_of_measured_values():
    like = torch.zeros(1)

    def gain(A, count, shape):
        return mean_gain(determined(A, SMALL, count, shape, 1.0), count, shape, like, 0)

    assert gain(operators.Identity(), 10, (3, 4)) == pytest.approx(1)
    mask = torch.zeros(1000, 8, 8, dtype=torch.bool)
    mask[:, :, :2] = True
    assert gain(operators.Mask(mask), 1000, (8, 8)) == pytest.approx(0.25, rel=0.05)
    columns = torch.zeros(8, dtype=torch.bool)
    columns[:3] = True
    assert gain(operators.Fourier(columns), 1000, (8, 8)) == pytest.approx(5 / 8, rel=0.05)


def test_every_draw_belongs_to_its_observation(tmp_path):
    store = DrawStore(tmp_path, 5, shard=2)
    for k in range(len(store)):
        first, end = store.range(k)
        observation = torch.arange(first, end).float()
        store.write(k, torch.stack([observation, observation])[..., None], {})
    assert torch.equal(store.all()[:, 0].long(), store.owners(2))


def test_the_loss_on_measured_values_needs_the_operators():
    prior = priors.DiffusionPrior(MLP((4,), (8,), 8))
    with pytest.raises(InputError, match=r"train\.measured is 0\.5: the operators of the draws are needed"):
        maximization(prior, torch.randn(9, 4), Train(steps=1, measured=0.5), steps=1, seed=0, lap=1)


def test_operators_that_the_loss_does_not_use_change_nothing():
    A, draws = operators.Dense(torch.eye(4)[:2]), torch.randn(64, 4, generator=generator())

    def trained(share: float, **settings: MeasuredWith) -> torch.Tensor:
        torch.manual_seed(0)
        prior, options = priors.DiffusionPrior(MLP((4,), (8,), 8)), Train(steps=4, batch=16, measured=share)
        maximization(prior, draws, options, steps=4, seed=0, lap=1, progress=False, **settings)
        return torch.cat([p.flatten() for p in prior.network.parameters()])

    with_operators = (A, torch.arange(64), SMALL)
    assert torch.equal(trained(0.0, measured_with=with_operators), trained(0.0))
    assert not torch.equal(trained(0.8, measured_with=with_operators), trained(0.0))


# two correlated numbers, each measured every fourth time --------------------------------------------------------------

CORRELATION, WRONG = 0.9, 0.0


def pairs(believed: float, count: int = 20_000) -> tuple[Observations, torch.Tensor]:
    """Observations of pairs, and posterior draws under a prior that believes in a correlation."""
    covariance = torch.tensor([[1, CORRELATION], [CORRELATION, 1]])
    x = torch.randn(count, 2, generator=generator()) @ torch.linalg.cholesky(covariance).T
    mask = torch.rand(count, 2, generator=generator(1)) < 0.25
    obs = Observations(torch.where(mask, x, 0), operators.Mask(mask), sigma=1e-3)
    prior = priors.GaussianPrior(torch.zeros(2), torch.tensor([[1.0, believed], [believed, 1.0]]))
    return obs, prior.draw_posterior(obs)


def slope(obs: Observations, draws: torch.Tensor, measured: float) -> float:
    """How strongly the trained denoiser of the first number depends on the second, at σ = 1, relative to the truth."""
    torch.manual_seed(0)
    prior = priors.DiffusionPrior(MLP((2,), (32, 32), 16), sigma_min=0.3, sigma_max=3.0)
    train = Train(steps=800, batch=512, lr=3e-3, ema=0.99, measured=measured)
    with_operators = (obs.A, torch.arange(len(obs)), obs.cov)
    maximization(prior, draws, train, steps=800, seed=0, lap=1, measured_with=with_operators, progress=False)
    x_t = torch.randn(4000, 2, generator=generator(3)) * 2**0.5
    lean = (prior(x_t, 1.0)[:, 0] * x_t[:, 1]).mean() / x_t[:, 1].square().mean()
    other = (prior(x_t, 1.0)[:, 0] * x_t[:, 0]).mean() / x_t[:, 0].square().mean()
    # d = C (C + I)⁻¹ x_t with C = [[1, c], [c, 1]] leans by c / (4 − c²) on the other number
    assert 0.3 < other < 0.6
    return float(lean) / (CORRELATION / (4 - CORRELATION**2))


def test_training_on_measured_values_keeps_the_truth():
    obs, draws = pairs(CORRELATION)
    assert slope(obs, draws, 0.0) == pytest.approx(1, abs=0.1)
    assert slope(obs, draws, 0.9) == pytest.approx(1, abs=0.1)


def test_training_on_measured_values_forgets_a_wrong_start_faster():
    """Pairs are measured together once in sixteen: EM keeps 15/16 of a wrong correlation, the loss on measured values
    about 3/4."""
    obs, draws = pairs(WRONG)
    em, ours = slope(obs, draws, 0.0), slope(obs, draws, 0.98)
    assert em < 0.12
    assert 0.15 < ours < 0.3
