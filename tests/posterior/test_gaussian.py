"""With a Gaussian prior, converged MMPS is the exact E[x | x_t, y]: every operator, every solver, five noise levels."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.linalg import DenseCovariance, Diagonal, LowRank, cg
from diffem.priors import gaussian as gaussian_prior
from diffem.samplers import get_sampler

from ..exact import gaussian_posterior_mean, matrix_of, random_covariance, textbook_cg
from ..operators.registry import REGISTRY

N = 3
SIGMAS = [1e-3, 3e-2, 0.5, 4.0, 1e2]
OPERATORS = [
    "mask",
    "mask each",
    "mask each, channels together",
    "dense",
    "dense each",
    "dense complex each",
    "blur circular",
    "blur reflect each",
    "blur zero",
    "downsample bicubic",
    "downsample mean",
    "crop each",
    "compose",
    "stack of different shapes",
    "fourier, real image",
    "fourier each, complex image",
    "fourier, coils, real image",
    "fourier, coils each, complex image",
    "fourier each, two channels",
    "fourier, coils each, two channels",
    "fourier, coils each, one channel",
    "crop of two channels",
]


def gaussian(x_shape, kind):
    size = int(torch.tensor(x_shape).prod())
    mean = torch.randn(x_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if kind == "dense":
        cov = random_covariance(size)
        return priors.GaussianPrior(mean, cov), cov
    if kind == "diagonal":
        variances = torch.rand(x_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.1
        return priors.GaussianPrior(mean, Diagonal(variances)), torch.diag(variances.flatten())
    factor = torch.randn(4, *x_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    u = factor.flatten(1)
    return priors.GaussianPrior(mean, LowRank(factor, 0.05)), u.T @ u + 0.05 * torch.eye(size, dtype=torch.float64)


def problem(name, kind="dense", sigma_y=0.3):
    make, x_shape = REGISTRY[name]
    A = make(N)
    prior, cov = gaussian(x_shape, kind)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(N, *x_shape, generator=generator, dtype=torch.float64)
    y = A(x)
    y = y + sigma_y * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    obs = Observations(y, A, sigma=sigma_y)
    z = torch.randn(N, *x_shape, generator=generator, dtype=torch.float64)
    return prior, cov, obs, matrix_of(A, x_shape, N), x, z


def exact(prior, cov, obs, matrix, x_t, sigma, sigma_y=0.3):
    # unmeasured rows are zero rows of A and need no special case in information form
    m = matrix.shape[1]
    cov_y = (sigma_y**2 * torch.eye(m, dtype=torch.float64)).expand(N, m, m)
    mean = prior.mean.flatten()
    return gaussian_posterior_mean(mean, cov, x_t.flatten(1), sigma, obs.y.flatten(1), matrix, cov_y).reshape(x_t.shape)


@pytest.mark.parametrize("kind", ["dense", "diagonal", "low rank"])
@pytest.mark.parametrize("name", OPERATORS)
def test_converged_mmps_is_exact(name, kind):
    prior, cov, obs, matrix, x, z = problem(name, kind)
    posterior = prior.posterior(obs, solver="cg", iterations=300, tolerance=1e-12)
    for sigma in SIGMAS:
        x_t = x + sigma * z
        expected = exact(prior, cov, obs, matrix, x_t, sigma)
        error = (posterior(x_t, sigma) - expected).norm() / expected.norm()
        assert error < 1e-8, f"{name}, {kind}, sigma {sigma}: {error:.1e}"


@pytest.mark.parametrize("name", ["mask each", "dense", "fourier, coils, real image", "downsample bicubic"])
@pytest.mark.parametrize("solver", ["gmres", "bicgstab", "direct"])
def test_the_other_solvers_agree(name, solver):
    prior, cov, obs, matrix, x, z = problem(name)
    posterior = prior.posterior(obs, solver=solver, iterations=150, tolerance=1e-12)
    for sigma in SIGMAS:
        x_t = x + sigma * z
        expected = exact(prior, cov, obs, matrix, x_t, sigma)
        assert (posterior(x_t, sigma) - expected).norm() / expected.norm() < 1e-8


@pytest.mark.parametrize("name", ["mask each", "dense each", "blur circular", "fourier each, complex image"])
def test_sigma_x_with_the_priors_covariance_is_exact_too(name):
    prior, cov, obs, matrix, x, z = problem(name)
    posterior = prior.posterior(obs, method="sigma_x", iterations=300, tolerance=1e-12)
    for sigma in SIGMAS:
        x_t = x + sigma * z
        expected = exact(prior, cov, obs, matrix, x_t, sigma)
        assert (posterior(x_t, sigma) - expected).norm() / expected.norm() < 1e-8


def test_noise_levels_may_differ_from_sample_to_sample():
    prior, cov, obs, matrix, x, z = problem("mask each")
    sigma = torch.tensor([0.02, 1.0, 30.0], dtype=torch.float64)
    x_t = x + sigma.reshape(-1, 1, 1) * z
    for kind in ("dense", "diagonal", "low rank"):
        prior, cov = gaussian(tuple(x.shape[1:]), kind)
        for method in ("mmps", "sigma_x"):
            posterior = prior.posterior(obs, method=method, iterations=300, tolerance=1e-12)
            expected = exact(prior, cov, obs, matrix, x_t, sigma)
            assert (posterior(x_t, sigma) - expected).norm() / expected.norm() < 1e-8


def noise(kind, shape):
    """A covariance of the noise, shared or one per observation, and its matrices `(N, m, m)`."""
    generator, size = torch.Generator().manual_seed(8), int(torch.tensor(shape).prod())
    variances = torch.rand(shape, dtype=torch.float64, generator=generator) + 0.1
    factor = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    low_rank = torch.diag(variances.flatten()) + factor.flatten(1).T @ factor.flatten(1)
    each = torch.stack([random_covariance(size, seed) for seed in range(N)])
    cov, matrix = {
        "diagonal": (Diagonal(variances), torch.diag(variances.flatten())),
        "low rank": (LowRank(factor, variances), low_rank),
        "dense": (DenseCovariance(each[0]), each[0]),
        "dense each": (DenseCovariance(each), each),
    }[kind]
    return cov, matrix.expand(N, size, size)


@pytest.mark.parametrize("kind", ["diagonal", "low rank", "dense", "dense each"])
@pytest.mark.parametrize(
    "options",
    [{"solver": solver} for solver in ("cg", "gmres", "bicgstab", "direct")] + [{"method": "sigma_x"}],
    ids=str,
)
def test_correlated_noise_is_conditioned_on_exactly(kind, options):
    prior, cov, obs, matrix, x, z = problem("mask each")
    noise_y, cov_y = noise(kind, tuple(obs.y.shape[1:]))
    obs = Observations(obs.y, obs.A, cov=noise_y)
    posterior = prior.posterior(obs, iterations=300, tolerance=1e-12, **options)
    x_t, measured = x + 0.7 * z, obs.measured.flatten(1)
    for i in range(N):  # only the measured block of Σ_y matters
        keep = measured[i]
        expected = gaussian_posterior_mean(
            prior.mean.flatten(), cov, x_t[i : i + 1].flatten(1), 0.7, obs.y[i : i + 1].flatten(1)[:, keep],
            matrix[i : i + 1, keep], cov_y[i][keep][:, keep][None],
        )  # fmt: skip
        assert torch.allclose(posterior(x_t, 0.7)[i].flatten(), expected[0], atol=1e-8)


@pytest.mark.parametrize(("kind", "expected"), [("diagonal", True), ("low rank", False), ("dense", False)])
def test_steps_that_factor_the_noise_are_not_captured(kind, expected):
    prior, _, obs, *_ = problem("mask each")
    obs = Observations(obs.y, obs.A, cov=noise(kind, tuple(obs.y.shape[1:]))[0])
    dps = prior.posterior(obs, method="dps")
    assert dps.capturable(get_sampler("ddpm2"))
    assert dps.capturable(get_sampler("tds")) is expected


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["mask each", "dense", "blur zero", "fourier, coils, real image"])
def test_truncated_cg_is_textbook_cg_on_the_dense_system(name, k):
    prior, cov, obs, matrix, x, z = problem(name)
    sigma = 0.8
    x_t = x + sigma * z
    size = cov.shape[0]
    jacobian = torch.linalg.solve(cov + sigma**2 * torch.eye(size), cov)
    x_hat = prior(x_t, sigma).flatten(1)
    got = prior.posterior(obs, iterations=k)(x_t, sigma).flatten(1)
    measured = obs.measured
    measured = torch.ones_like(obs.y, dtype=torch.bool) if measured is None else measured.expand_as(obs.y)
    for i in range(N):
        rows = matrix[i][measured[i].flatten()]
        y = obs.y[i].flatten()[measured[i].flatten()]
        system = 0.3**2 * torch.eye(len(y), dtype=torch.float64) + sigma**2 * rows @ jacobian @ rows.T
        u = textbook_cg(system, y - rows @ x_hat[i], k)
        expected = x_hat[i] + sigma**2 * jacobian.T @ rows.T @ u
        assert torch.allclose(got[i], expected, atol=1e-9)


def test_few_iterations_suffice_on_k_space_of_real_images():
    """Both halves of a Hermitian spectrum measure the same values, so one half is removed.

    Without this reduction, five iterations are less accurate than two with it.
    """
    generator = torch.Generator().manual_seed(0)
    place = torch.cartesian_prod(torch.arange(12.0), torch.arange(12.0)).double()
    cov = torch.exp(-torch.cdist(place, place) / 3)
    prior = priors.GaussianPrior(torch.zeros(12, 12, dtype=torch.float64), cov)
    mask = torch.rand(4, 1, 12, generator=generator) < 0.3
    mask[:, :, 5:8] = True
    x = (torch.randn(4, 144, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(cov).T).reshape(
        4, 12, 12
    )
    A = operators.Fourier(mask)
    y = A(x) + 0.01 * torch.randn(4, 12, 12, 2, generator=generator, dtype=torch.float64)
    obs = Observations(y, A, sigma=0.01)
    x_t = x + 0.1 * torch.randn(4, 12, 12, generator=generator, dtype=torch.float64)
    exact = prior.posterior(obs, solver="direct")(x_t, 0.1)
    error = (prior.posterior(obs, iterations=2)(x_t, 0.1) - exact).norm()
    # the orthonormal rows have few distinct eigenvalues, so two iterations almost converge
    assert error < 2e-3 * (exact - prior(x_t, 0.1)).norm()
    unfolded = prior.posterior(obs, iterations=5)
    unfolded.observe(obs)
    assert (unfolded(x_t, 0.1) - exact).norm() > 10 * error


@pytest.mark.parametrize("solver", ["cg", "gmres", "bicgstab"])
def test_a_few_iterations_suffice_when_the_noise_is_unequal(solver):
    """Variances from 1e-4 to 1e2, three iterations: within 5 % of the correction of a full solve at every noise level.

    The scaled system is S(Σ_y + V)S with S² = 1/(Σ_y + σ²). For x ~ N(0, I) its eigenvalues lie between 1/(1 + σ²) and
    1. Without scaling they spread over six orders of magnitude at small σ. Above σ = 1 they spread by σ², but V stays
    below 1.
    """
    generator = torch.Generator().manual_seed(0)
    variances = torch.logspace(-4, 2, 20, dtype=torch.float64)
    prior = priors.GaussianPrior(torch.zeros(20, dtype=torch.float64), torch.eye(20, dtype=torch.float64))
    x = torch.randn(4, 20, generator=generator, dtype=torch.float64)
    y = x + variances.sqrt() * torch.randn(4, 20, generator=generator, dtype=torch.float64)
    obs = Observations(y, operators.Identity(), cov=Diagonal(variances))
    for sigma in (1e-3, 1e-2, 0.1, 1.0):
        x_t = x + sigma * torch.randn(4, 20, generator=generator, dtype=torch.float64)
        exact = prior.posterior(obs, solver="direct")(x_t, sigma)
        error = (prior.posterior(obs, solver=solver, iterations=3)(x_t, sigma) - exact).norm(dim=1)
        assert (error < 0.05 * (exact - prior(x_t, sigma)).norm(dim=1)).all(), sigma


def test_noise_of_every_entry_is_solved_for_all_observations_at_once():
    """Complete observations with one noise level per entry: the posterior mean of the closed form, to rounding."""
    prior, cov = gaussian((4, 2), "dense")
    variances = torch.linspace(0.01, 3, 8, dtype=torch.float64).reshape(4, 2)
    y = torch.randn(N, 4, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    obs = Observations(y, operators.Identity(), cov=Diagonal(variances))
    mean, D = prior.mean.flatten(), torch.diag(variances.flatten())
    expected = mean + (y.flatten(1) - mean) @ torch.linalg.inv(cov + D) @ cov
    torch.testing.assert_close(prior.posterior_mean(obs).flatten(1), expected, rtol=1e-9, atol=1e-10)


def test_noise_of_nine_orders_of_magnitude_leaves_precise_values_exact():
    # two measurements of each entry, and a prior in float32: a residual that is small beside the noisiest values was
    # hundreds of standard deviations of the most precise ones
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    sigma = 10 ** (9 * torch.rand(5, 2, 6, generator=generator, dtype=torch.float64) - 6)
    y = (x.unsqueeze(1) + sigma * torch.randn(5, 2, 6, generator=generator, dtype=torch.float64)).float()
    A = operators.Stack(operators.Identity(), operators.Identity())
    prior = priors.GaussianPrior(torch.zeros(6), Diagonal(torch.ones(6)))
    mean = prior.posterior(Observations(y, A, sigma=sigma)).mean().double()
    precision = 1 + (sigma**-2).sum(1)
    expected = (y.double() / sigma**2).sum(1) / precision
    # rounding of the result and of the variances to float32, and the tolerance of the solve
    assert ((mean - expected).abs() < 0.02 * precision.rsqrt() + 1e-7 * expected.abs()).all()


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", ["dense", "diagonal", "low rank"])
def test_exact_draws_are_the_same_in_parts_of_any_size(name, kind, monkeypatch):
    """On a CPU the systems of a batch are solved in parts."""
    prior, _, obs, *_ = problem(name, kind)
    sizes = []

    def spied(system, b, **options):
        sizes.append(len(b))
        return cg(system, b, **options)

    monkeypatch.setattr(gaussian_prior, "cg", spied)
    together = prior.draw_posterior(obs)
    assert sizes in ([N], [])  # closed forms need no solve
    monkeypatch.setattr(gaussian_prior, "CPU_SOLVED_BYTES", 1)
    sizes.clear()
    apart = prior.draw_posterior(obs)
    assert sizes in ([1] * N, [])
    # both solve to a relative residual of 2e-12 and differ by rounding, times condition numbers of up to 3e3
    assert torch.allclose(together, apart, rtol=0, atol=1e-8)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("sigma_t", [0.03, 1.0, 30.0])
def test_redundant_rows_are_no_negative_directions_in_float32(equal, sigma_t):
    """Twenty values of twelve numbers: rounding makes half of the zero eigenvalues of A V Aᵀ slightly negative."""
    generator = torch.Generator().manual_seed(0)
    A, x = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((20, 12), (3, 12)))
    sigma = 1e-3 if equal else 10 ** (-3 * torch.rand(1, 20, generator=generator, dtype=torch.float64))
    x_t = x + sigma_t * torch.randn(3, 12, generator=generator, dtype=torch.float64)
    cov = random_covariance(12)
    found = []
    for dtype in (torch.float64, torch.float32):
        prior = priors.GaussianPrior(torch.zeros(12, dtype=dtype), cov.to(dtype))
        obs = Observations((x @ A.T).to(dtype), operators.Dense(A.to(dtype)), sigma=sigma)
        posterior = prior.posterior(obs, "mmps", solver="direct")
        found.append(posterior.evaluate(x_t.to(dtype), torch.tensor(sigma_t, dtype=dtype)))
    assert (found[1].solution.guards == 0).all()
    # a tenth of the smallest posterior standard deviation, which is about 2e-4
    assert torch.allclose(found[1].x_hat.double(), found[0].x_hat, rtol=0, atol=2e-5)
