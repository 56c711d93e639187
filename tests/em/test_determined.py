"""D = I − (I + s²AᵀΣ_y⁻¹A)⁻¹, what an observation determined: against dense algebra for every operator, and what the
loss makes of it."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.determined import Explicit, Polynomial, RowWeights, Spectral, determined
from diffem.em.maximization import maximization
from diffem.linalg import DenseCovariance, Diagonal, Isotropic
from diffem.nn import MLP
from diffem.runs.recipe import Train

from ..exact import matrix_of, random_covariance
from ..operators.registry import REGISTRY

DOUBLE = torch.float64
N_OBSERVATIONS, SCALE = 3, 1.7
FORMS = {
    "mask": RowWeights,
    "crop": RowWeights,
    "identity": RowWeights,
    "downsample mean": RowWeights,
    "fourier each": RowWeights,
}
FORMS |= {"fourier, ": Spectral, "blur circular": Spectral}
EXPLICIT = ("coils", "dense", "reflect", "zero", "bicubic", "compose", "stack", "function")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def noise_for(y, kind):
    if kind == "each":
        return Isotropic(torch.tensor([0.01, 0.1, 0.7], dtype=DOUBLE))
    if kind == "entries":
        return Diagonal(0.05 + torch.rand(y.shape[1:], generator=generator(3), dtype=DOUBLE))
    return DenseCovariance(0.3 * random_covariance(y[0].numel(), 4))


def exact(A, cov, x_shape, like):
    """D `(n, N, N)` by dense algebra apart from the library."""
    obs = Observations(like, A, cov=cov)
    rows = matrix_of(obs.A, x_shape, len(like))
    shape, size = tuple(like.shape[1:]), like[0].numel()
    unit = torch.eye(size, dtype=DOUBLE).reshape(size, 1, *shape)
    noise = torch.stack([obs.cov.matvec(e.expand(len(like), *shape)).flatten(1) for e in unit], -1)
    noise = noise.expand(len(like), size, size)
    measured = obs.measured
    keep = torch.ones_like(like, dtype=torch.bool) if measured is None else measured.expand_as(like)
    eye, out = torch.eye(rows.shape[-1], dtype=DOUBLE), []
    for i in range(len(like)):
        k = keep[i].flatten()
        G = rows[i][k].T @ torch.linalg.solve(noise[i][k][:, k], rows[i][k])
        out.append(eye - torch.linalg.inv(eye + SCALE**2 * G))
    return torch.stack(out)


def weighed(D, x_shape, n=N_OBSERVATIONS):
    """D as matrices `(n, N, N)`, from gradients of its energy: rᵀDr has the gradient 2Dr."""
    size = torch.Size(x_shape).numel()
    columns = []
    for e in torch.eye(size, dtype=DOUBLE):
        r = e.reshape(1, *x_shape).repeat(n, *[1] * len(x_shape)).requires_grad_()
        (gradient,) = torch.autograd.grad(D.energy(r, torch.arange(n)), r)
        columns.append(gradient.flatten(1) / 2)
    return torch.stack(columns, -1)


@pytest.mark.parametrize("noise", ["each", "entries", "full"])
@pytest.mark.parametrize("name", REGISTRY)
def test_every_operator_against_dense_algebra(name, noise):
    make, x_shape = REGISTRY[name]
    A = make(N_OBSERVATIONS)
    y = A(torch.zeros(N_OBSERVATIONS, *x_shape, dtype=DOUBLE))
    A, cov = A.resolve_axes(torch.zeros(1, *x_shape, dtype=DOUBLE)), noise_for(y, noise).bind(y.ndim - 1)
    D = determined(A, cov, N_OBSERVATIONS, x_shape, SCALE)
    expected = exact(A, cov, x_shape, y)
    assert torch.allclose(weighed(D, x_shape), expected, atol=1e-10)
    index, r = torch.tensor([2, 0]), torch.randn(2, *x_shape, generator=generator(), dtype=DOUBLE)
    energy = torch.einsum("ni,nij,nj->", r.flatten(1), expected[index], r.flatten(1))
    assert float(D.energy(r, index)) == pytest.approx(float(energy), rel=1e-9)
    if noise == "each":
        form = (
            Explicit
            if any(word in name for word in EXPLICIT)
            else next(f for n, f in FORMS.items() if name.startswith(n))
        )
        assert isinstance(D, form)


def coils(n, sigma):
    generator_ = generator(1)
    maps = torch.view_as_complex(torch.randn(n, 3, 6, 8, 2, generator=generator_, dtype=DOUBLE))
    maps = maps / maps.abs().square().sum(1, keepdim=True).sqrt()
    mask = torch.rand(n, 1, 8, generator=generator_) < 0.5
    return operators.Fourier(mask, coils=maps), Isotropic(torch.tensor(sigma**2, dtype=DOUBLE)), (6, 8)


def blurs(n, sigma):
    kernel = torch.rand(n, 3, 3, generator=generator(2), dtype=DOUBLE)
    kernel = kernel / kernel.sum((1, 2), keepdim=True)
    return operators.Blur(kernel, "zero"), Isotropic(torch.tensor(sigma**2, dtype=DOUBLE)), (6, 8)


@pytest.mark.parametrize("make", [coils, blurs])
def test_a_polynomial_of_the_information_does_not_depend_on_the_error(make, monkeypatch):
    """Linear, symmetric, with eigenvalues from 0 to 1 up to the ripple of Chebyshev's polynomials; with many iterations
    it is D."""
    A, cov, x_shape = make(N_OBSERVATIONS, 0.3)
    y = A(torch.zeros(N_OBSERVATIONS, *x_shape, dtype=DOUBLE))
    monkeypatch.setattr("diffem.files.memory.RESIDENT_BYTES", 0)
    few = determined(A, cov, N_OBSERVATIONS, x_shape, 1.0)
    assert isinstance(few, Polynomial)
    matrices = weighed(few, x_shape)
    assert torch.allclose(matrices, matrices.mT, atol=1e-12)
    values = torch.linalg.eigvalsh(matrices)
    # the residual polynomial of k iterations over [λ/k², λ] is at most 1/T_k((k² + 1)/(k² − 1)), 0.27 for k = 4
    assert values.min() > -1e-9
    assert values.max() < 1.3
    r = torch.randn(N_OBSERVATIONS, *x_shape, generator=generator(), dtype=DOUBLE)
    energy = torch.einsum("ni,nij,nj->", r.flatten(1), matrices, r.flatten(1))
    assert float(few.energy(r, torch.arange(N_OBSERVATIONS))) == pytest.approx(float(energy), rel=1e-9)
    many = Polynomial(few._source, N_OBSERVATIONS, iterations=60)
    obs = Observations(y, A, cov=cov)
    monkeypatch.setattr("tests.em.test_determined.SCALE", 1.0)
    assert torch.allclose(weighed(many, x_shape), exact(obs.A, obs.cov, x_shape, y), atol=1e-5)


def test_masks_with_little_noise_are_trained_on_as_before():
    """D/g is mask/share up to rounding, so the weights agree with those of a loss written out with the mask."""
    mask = torch.rand(40, 6, generator=generator()) < 0.4
    A, owners = operators.Mask(mask), torch.arange(40)
    draws = torch.randn(40, 6, generator=generator(1))

    def trained(measured_with):
        torch.manual_seed(0)
        prior = priors.DiffusionPrior(MLP((6,), (16,), 8), sigma_min=0.02, sigma_max=20.0)
        options = {"steps": 30, "seed": 0, "lap": 1, "progress": False, "measured_with": measured_with}
        maximization(prior, draws, Train(steps=30, batch=16, measured=0.8), **options)
        return torch.cat([p.flatten() for p in prior.network.parameters()])

    class OfMask:
        resident = True

        def weighted_energy(self, r, index):
            return A[index](r).square().sum()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffem.em.maximization.determined", lambda *arguments: OfMask())
        before = trained((A, owners, Isotropic(torch.tensor(1e-6))))
    for variance in (1e-12, 1e-6, 1e-2):  # one level for all: it cancels against the gain
        after = trained((A, owners, Isotropic(torch.tensor(variance))))
        assert torch.allclose(after, before, rtol=1e-4, atol=1e-5)


def blurred(n=600):
    """Signals of 16 values, a few smooth bumps and an edge each, through Gaussian blurs and noise of their own."""
    g = generator(5)
    place = torch.arange(16.0)
    edge = (place >= 16 * torch.rand(n, 1, generator=g)).float() * 2 - 1
    x = (edge + 0.3 * torch.randn(n, 1, generator=g))[:, None, :]
    width = 0.4 + 1.4 * torch.rand(n, 1, 1, generator=g)
    kernel = torch.exp(-0.5 * (torch.arange(-3.0, 4.0) / width) ** 2)
    A = operators.Blur(kernel / kernel.sum(-1, keepdim=True))
    sigma = 0.05 + 0.25 * torch.rand(n, generator=g)
    return x, Observations(A(x) + sigma[:, None, None] * torch.randn(x.shape, generator=g), A, sigma=sigma)


def test_no_direction_is_preferred_on_average():
    """The mean of W over observations is I, and its two forms agree; where operators select, W is D."""
    _, obs = blurred(50)
    D = determined(obs.A, obs.cov, 50, (1, 16), 1.0)
    assert isinstance(D, Spectral)
    explicit = Explicit.of(D._source, 50)
    r, everything = torch.randn(1, 1, 16, generator=generator()), torch.arange(50)
    for form in (D, explicit):
        mean = float(form.weighted_energy(r.expand(50, 1, 16), everything)) / 50
        assert mean == pytest.approx(float(r.square().sum()), rel=1e-4)
    some = torch.randn(9, 1, 16, generator=generator(1))
    assert float(D.weighted_energy(some, everything[:9])) == pytest.approx(
        float(explicit.weighted_energy(some, everything[:9])), rel=1e-3
    )
    for select in (operators.Mask(torch.rand(4, 6, 8) < 0.5), operators.Fourier(torch.rand(4, 1, 8) < 0.5)):
        D = determined(select, Isotropic(torch.tensor(0.01)), 4, (6, 8), 1.0)
        some = torch.randn(2, 6, 8)
        assert torch.equal(D.weighted_energy(some, everything[:2]), D.energy(some, everything[:2]))


def test_through_blurs_a_share_is_no_worse_than_em():
    """A denoiser trained on draws of the Gaussian fit: posterior draws of blurred signals against the clean ones.

    Measured with 600 steps: 0.117 with share 0, and 0.193 with 0.8 when weighed by the square of the gain.
    """
    x, obs = blurred()
    start = priors.fit_gaussian(obs, rounds=20, progress=False)
    draws = torch.cat([start.draw_posterior(obs, draw=k) for k in range(4)])
    with_noise = (obs.A, torch.arange(len(obs)).repeat(4), obs.cov)
    error = {}
    for share in (0.0, 0.8):
        torch.manual_seed(0)
        levels = {"scale": start.scale, "sigma_min": 0.02, "sigma_max": 20.0}
        prior = priors.DiffusionPrior(MLP((1, 16), (64, 64), 16), mean=start.mean, cov=start.covariance(), **levels)
        options = Train(steps=600, batch=128, lr=2e-3, ema=0.98, measured=share)
        maximization(prior, draws, options, steps=600, seed=0, lap=1, measured_with=with_noise, progress=False)
        x_hat = prior.posterior(obs[:200], iterations=3).sample(4, steps=24, seed=0, progress=False)
        error[share] = float((x_hat - x[:200]).square().mean())
    assert error[0.8] < 1.1 * error[0.0]
