"""deepinv's physics as operators: identities, exact posteriors; and our posterior as a deepinv model."""

import math

import pytest
import torch

from diffem import InputError, Observations, operators, priors

from ..exact import matrix_of
from .gaussian import SIGMA_Y, denoised, exact_posterior, gaussian, relative
from .packages import need

deepinv = need("deepinv")

from diffem.interop import deepinv as interop  # noqa: E402

from .physics import IMAGE, REGISTRY, P  # noqa: E402

N = 3
EACH = pytest.mark.parametrize("name", REGISTRY)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:deepinv", "ignore::DeprecationWarning")


def build(name):
    make, x_shape, options = REGISTRY[name]
    physics = make(N)
    A = interop.operator(physics, x_shape, **options)
    x = torch.randn(N, *x_shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return physics, A, x


def snapshot(physics):
    """Every tensor and plain attribute of the physics and its parts."""
    seen = {}
    for prefix, module in interop_modules(physics):
        for key, value in {**vars(module), **module._buffers}.items():
            if isinstance(value, torch.Tensor):
                seen[prefix + key] = (id(value), value._version, value.clone())
            elif isinstance(value, int | float | str | tuple | torch.dtype):
                seen[prefix + key] = value
    return seen


def interop_modules(physics):
    from diffem.interop.physics import modules_of

    return modules_of(physics)


def same(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        if isinstance(value, tuple) and value and isinstance(value[-1], torch.Tensor):
            assert value[:2] == b[key][:2], key
            assert torch.equal(value[2], b[key][2]), key
        else:
            assert value == b[key], key


@EACH
def test_it_measures_what_the_physics_does(name):
    """In the float32 of the physics, to its rounding."""
    physics, A, x = build(name)
    x = x.float()
    image = torch.view_as_complex(x) if A.complex else x
    assert relative(A(x), A.measurements(physics.A(image))) < 1e-6


@EACH
def test_adjoint_is_the_transposed_matrix(name):
    _, A, x = build(name)
    A = A.to(torch.float64)
    matrix, y = matrix_of(A, tuple(x.shape[1:]), N), A(x)
    v = torch.randn(y.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    assert relative(y.flatten(1), (matrix @ x.flatten(1).unsqueeze(-1)).squeeze(-1)) < 1e-12
    assert relative(A.adjoint(v).flatten(1), (matrix.mT @ v.flatten(1).unsqueeze(-1)).squeeze(-1)) < 1e-12
    assert operators.check(A, tuple(x.shape[1:])).ok


@EACH
def test_a_sample_alone_equals_the_sample_in_a_batch(name):
    _, A, x = build(name)
    A = A.to(torch.float64)
    y = A(x)
    for index in (slice(0, 1), slice(1, 3), [2, 0, 2]):
        assert relative(A[index](x[index]), y[index]) < 1e-13
        assert relative(A[index].adjoint(y[index]), A.adjoint(y)[index]) < 1e-13
    assert A.batch == (N if "each" in name else None)


@EACH
def test_the_physics_is_never_changed(name):
    physics, A, x = build(name)
    before = snapshot(physics)
    A64 = A.to(torch.float64)
    y = A64(x)
    A64.adjoint(y), A64[1:](x[1:]), A64[[0]].adjoint(y[:1])
    Observations(y, A64, sigma=0.1)
    same(before, snapshot(physics))


def test_changing_the_physics_does_not_change_the_operator():
    physics = P.MRI(mask=torch.ones(6, 6))
    A = interop.operator(physics, (2, 6, 6))
    x = torch.randn(2, 2, 6, 6)
    y = A(x)
    physics.update(mask=torch.zeros(6, 6))
    assert not physics.A(x).any()
    assert torch.equal(A(x), y)


@EACH
def test_unmeasured_rows_leave_the_system(name):
    _, A, x = build(name)
    A = A.to(torch.float64)
    y, matrix = A(x), matrix_of(A, tuple(x.shape[1:]), N)
    measured = A.measured(y)
    nonzero = (matrix != 0).any(-1)
    full = torch.ones_like(nonzero) if measured is None else measured.expand_as(y).flatten(1)
    assert torch.equal(full, nonzero)
    if measured is not None:
        poisoned = torch.where(measured, y, torch.nan)
        assert torch.equal(A.adjoint(poisoned), A.adjoint(y))
        assert Observations(poisoned, A, sigma=1.0).counts().tolist() == full.sum(1).tolist()


@EACH
def test_converged_mmps_is_the_exact_gaussian_posterior(name):
    """To the tolerance of the solver times the condition number, far below the documented 1e-6."""
    _, A, x = build(name)
    A = A.to(torch.float64)
    prior, cov = gaussian(tuple(x.shape[1:]))
    z = torch.randn(x.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    y = A(x)
    obs = Observations(y + SIGMA_Y * torch.randn(y.shape, dtype=torch.float64), A, sigma=SIGMA_Y)
    posterior = prior.posterior(obs, iterations=300, tolerance=1e-12)
    for sigma in (1e-2, 0.7, 30.0):
        x_t = x + sigma * z
        assert relative(posterior(x_t, sigma), exact_posterior(prior.mean, cov, obs, x_t, sigma)) < 1e-8


class TestObservations:
    def test_noise_and_measurements_of_a_stack(self):
        mask = (torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.5).float()
        first = P.Inpainting(IMAGE, mask=mask, noise_model=P.GaussianNoise(0.1))
        second = P.Downsampling(IMAGE, filter="bicubic", factor=2, noise_model=P.GaussianNoise(0.4))
        physics = first.stack(second)
        obs = interop.observations(physics(torch.rand(2, *IMAGE)), physics, IMAGE)
        assert obs.y.shape == (2, 36 + 9)
        expected = torch.cat([torch.full((36,), 0.1**2), torch.full((9,), 0.4**2)])
        assert torch.allclose(obs.cov.diagonal((45,))[0], expected)

    def test_complex_noise_has_half_its_variance_on_each_part(self):
        physics = P.LinearPhysics(
            A=lambda x: torch.fft.rfft2(x, norm="ortho"), img_size=IMAGE, noise_model=P.GaussianNoise(0.5)
        )
        n = 20_000
        y = physics(torch.zeros(n, *IMAGE))
        obs = interop.observations(y[:2], physics, IMAGE, adjoint="autograd")
        variance = float(obs.cov.diagonal(tuple(obs.y.shape[1:])).mean())
        assert variance == pytest.approx(0.5**2 / 2)
        # the empirical variance of 20,000 × 24 numbers is within 5 of its standard errors √(2/count)
        count = n * y[0].numel()
        assert abs(float(y.real.var()) / variance - 1) < 5 * math.sqrt(2 / count)

    def test_one_noise_level_per_observation(self):
        physics = P.Denoising(P.GaussianNoise(torch.tensor([0.1, 0.2])))
        obs = interop.observations(torch.rand(2, *IMAGE), physics, IMAGE)
        assert torch.allclose(obs.cov.diagonal(IMAGE)[:, 0, 0, 0], torch.tensor([0.01, 0.04]))

    def test_the_range_goes_through_exactly(self):
        """y = Au + e with u = (x − b)/a: residuals in the two scales are the same up to the factor a."""
        change = interop.Range.between((0, 1), (-2, 2))
        physics = P.Blur(torch.rand(1, 1, 3, 3), padding="reflect", noise_model=P.GaussianNoise(0.1)).to(torch.float64)
        u = torch.rand(4, *IMAGE, dtype=torch.float64)
        y = physics.A(u) + 0.1
        obs = interop.observations(y, physics, IMAGE, range=change)
        assert torch.allclose(obs.residual(change.ours(u)), change.scale * (y - physics.A(u)), atol=1e-12)
        assert torch.allclose(obs.cov.diagonal(IMAGE), torch.tensor((4 * 0.1) ** 2, dtype=torch.float64), rtol=1e-6)
        assert relative(change.theirs(change.ours(u)), u) < 1e-15

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda: interop.operator(P.Denoising, IMAGE), "LinearPhysics"),
            (lambda: interop.operator(P.Inpainting((1, 5, 5), mask=torch.ones(1, 5, 5)), IMAGE), r"\(1, 6, 6\)"),
            (lambda: interop.operator(P.LinearPhysics(A=lambda x: x + 1, A_adjoint=lambda y: y), IMAGE), "linearity"),
            (lambda: interop.operator(P.LinearPhysics(A=lambda x: 2 * x, A_adjoint=lambda y: y), IMAGE), "autograd"),
            (lambda: interop.observations(torch.rand(2, 1, 5, 5), P.Denoising(), IMAGE), r"\(2, 1, 5, 5\)"),
            (lambda: interop.observations(
                torch.rand(2, *IMAGE), P.LinearPhysics(img_size=IMAGE), IMAGE, adjoint="autograd"), "sigma"),
            (lambda: interop.observations(
                torch.rand(2, *IMAGE), P.Denoising(sensor_model=torch.sign), IMAGE), "sensor"),
        ],
    )  # fmt: skip
    def test_bad_input_is_rejected(self, call, words):
        with pytest.raises(InputError, match=words):
            call()


class TestReconstructor:
    def setup_method(self):
        self.prior, self.cov = gaussian(IMAGE)
        self.change = interop.Range.between((0, 1), (-2, 2))
        mask = (torch.rand(N, *IMAGE, generator=torch.Generator().manual_seed(0)) < 0.5).double()
        self.physics = P.Inpainting(IMAGE, mask=mask, noise_model=P.GaussianNoise(0.2)).to(torch.float64)
        u = self.change.theirs(torch.randn(N, *IMAGE, dtype=torch.float64))
        self.y = self.physics(u)

    def model(self, **options):
        options = {"iterations": 300, "tolerance": 1e-12} | options
        return interop.Reconstructor(self.prior, range=self.change, **options)

    def test_its_posterior_is_the_exact_one_in_the_scale_of_the_physics(self):
        mean, cov = self.change.theirs(self.prior.mean), self.cov / self.change.scale**2
        obs = interop.observations(self.y, self.physics, IMAGE)
        posterior = self.model().posterior(self.y, self.physics)
        for sigma in (0.01, 0.2, 5.0):
            u_t = torch.randn(N, *IMAGE, dtype=torch.float64)
            got = self.change.theirs(posterior(self.change.ours(u_t), self.change.scale * sigma))
            assert relative(got, exact_posterior(mean, cov, obs, u_t, sigma)) < 1e-7  # σ_y is a float32 in the physics

    def test_draws_are_those_of_the_posterior_and_reach_its_mean(self):
        model = self.model(draws=200, steps=32, seed=3, iterations=40, tolerance=1e-8)
        before = snapshot(self.physics)
        u = model.sample(self.y, self.physics)
        obs = interop.observations(self.y, self.physics, IMAGE, range=self.change)
        own = self.prior.posterior(obs, iterations=40, tolerance=1e-8).sample(200, steps=32, seed=3)
        assert relative(u, self.change.theirs(own)) < 1e-12
        assert torch.equal(model(self.y, self.physics), u.mean(0))
        exact = self.change.theirs(self.prior.posterior_mean(obs))
        # five standard errors of 200 draws, and the sampler's own bias, below 1 % of a standard deviation at 32 steps
        assert ((u.mean(0) - exact).abs() < (5 / math.sqrt(200) + 0.01) * u.std(0)).all()
        same(before, snapshot(self.physics))

    def test_a_sample_alone_equals_the_first_of_a_batch(self):
        """Random numbers are addressed by the position in the batch, so the first position is compared."""
        model = self.model(steps=8)
        alone = P.Inpainting(IMAGE, mask=self.physics.mask[:1], noise_model=P.GaussianNoise(0.2)).to(torch.float64)
        assert relative(model(self.y[:1], alone), model(self.y, self.physics)[:1]) < 1e-9

    def test_complex_images_are_reconstructed(self):
        physics = P.CompressedSensing(9, (1, 4, 4), dtype=torch.complex64, noise_model=P.GaussianNoise(0.1))
        prior = priors.GaussianPrior(torch.zeros(1, 4, 4, 2), torch.eye(32))
        x = torch.randn(2, 1, 4, 4, dtype=torch.complex64)
        model = interop.Reconstructor(prior, steps=8, physics_options={"complex": True})
        got = model(physics.A(x), physics)
        assert got.dtype == torch.complex64
        assert got.shape == x.shape


class TestDenoiser:
    def test_it_is_the_prior_in_the_other_scale(self):
        prior, cov = gaussian(IMAGE)
        change = interop.Range.between((0, 1), (-2, 2))
        model = interop.Denoiser(prior, range=change)
        u_t = torch.randn(N, *IMAGE, dtype=torch.float64)
        levels = torch.tensor([0.02, 0.5, 7.0], dtype=torch.float64)
        for sigma in (0.3, torch.tensor(0.3, dtype=torch.float64), levels, levels.reshape(-1, 1, 1, 1)):
            flat = sigma.flatten() if isinstance(sigma, torch.Tensor) and sigma.ndim else sigma
            expected = denoised(change.theirs(prior.mean), cov / change.scale**2, u_t, flat)
            assert relative(model(u_t, sigma), expected) < 1e-12

    def test_deepinvs_own_moment_matching_with_it_agrees_with_ours(self):
        """deepinv computes in float32 and adds 1e-8 to the denominators of its solver, so the error is about 1e-4."""
        from deepinv.sampling import MomentMatchingDataFidelity

        prior, _ = gaussian(IMAGE)
        prior = prior.float()
        physics = P.Inpainting(IMAGE, mask=(torch.rand(N, *IMAGE) < 0.5).float(), noise_model=P.GaussianNoise(0.3))
        y, sigma = physics(torch.randn(N, *IMAGE)), torch.tensor(0.8)
        x_t = torch.randn(N, *IMAGE)
        fidelity = MomentMatchingDataFidelity(interop.Denoiser(prior), cg_max_iter=3, cg_tol=1e-12)
        gradient, x_hat = fidelity.grad(x_t, y, physics, sigma, get_model_outputs=True)
        ours = prior.posterior(interop.observations(y, physics, IMAGE), iterations=3)(x_t, sigma)
        assert relative(x_hat - sigma**2 * gradient, ours) < 1e-4
