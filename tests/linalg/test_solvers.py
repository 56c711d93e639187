"""Solvers against dense algebra and textbook iterations, one system per sample."""

import pytest
import torch

from diffem.linalg import SOLVERS, Diagonal, Isotropic, Status, System, cg

from ..exact import random_covariance, textbook_cg

N, M = 6, 8
EYE = torch.eye(M, dtype=torch.float64)


def system(matrices, noise=None):
    """A system whose signal is a dense matrix per sample; the 'pullback' of p is 3p, to distinguish it from u."""
    return System(lambda p: ((matrices @ p.unsqueeze(-1)).squeeze(-1), 3 * p), noise)


def spd(seed=0):
    return torch.stack([random_covariance(M, seed + i) for i in range(N)])


def nonsymmetric():
    generator = torch.Generator().manual_seed(3)
    return EYE + 0.4 * torch.randn(N, M, M, generator=generator, dtype=torch.float64)


def rhs():
    return torch.randn(N, M, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("solver", SOLVERS)
def test_symmetric_systems_are_solved(solver):
    matrices, b = spd(), rhs()
    solution = SOLVERS[solver](system(matrices, Isotropic(0.5)), b, iterations=4 * M, tolerance=1e-13)
    expected = torch.linalg.solve(matrices + 0.5 * EYE, b)
    assert torch.allclose(solution.u, expected, rtol=1e-9, atol=1e-10)
    assert torch.allclose(solution.pullback, 3 * expected, rtol=1e-9, atol=1e-10)
    assert (solution.status == Status.CONVERGED).all()
    assert (solution.guards == 0).all()


@pytest.mark.parametrize("solver", ["gmres", "bicgstab", "direct"])
def test_nonsymmetric_systems_are_solved(solver):
    matrices, b = nonsymmetric(), rhs()
    solution = SOLVERS[solver](system(matrices), b, iterations=20 * M, tolerance=1e-12, guard=False)
    expected = torch.linalg.solve(matrices, b)
    assert float((solution.u - expected).norm() / expected.norm()) < 1e-8
    assert float((solution.pullback - 3 * expected).norm() / expected.norm()) < 1e-7


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_cg_is_textbook_cg(k):
    matrices, b = spd(), rhs()
    solution = cg(system(matrices, Isotropic(0.1)), b, iterations=k)
    full = matrices + 0.1 * EYE
    expected = torch.stack([textbook_cg(full[i], b[i], k) for i in range(N)])
    assert torch.allclose(solution.u, expected, rtol=1e-11, atol=1e-12)
    residual = (b - (full @ expected.unsqueeze(-1)).squeeze(-1)).norm(dim=1) / b.norm(dim=1)
    assert torch.allclose(solution.residual, residual, rtol=1e-9)
    assert (solution.iterations == k).all()
    assert solution.products == k


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_gmres_minimises_the_residual_over_the_krylov_space(k):
    matrices, b = nonsymmetric(), rhs()
    solution = SOLVERS["gmres"](system(matrices), b, iterations=k)
    for i in range(N):
        powers = [b[i]]
        for _ in range(k - 1):
            powers.append(matrices[i] @ powers[-1])
        space = torch.linalg.qr(torch.stack(powers, 1)).Q
        best = space @ torch.linalg.lstsq(matrices[i] @ space, b[i]).solution
        assert torch.allclose(solution.u[i], best, atol=1e-10)
    assert solution.products == k


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("tolerance", [None, 1e-6])
def test_a_sample_alone_equals_the_sample_in_a_batch(solver, tolerance):
    # very different systems in one batch: scalars or stopping rules shared by the batch would show
    matrices, b = spd() * torch.logspace(-3, 3, N, dtype=torch.float64).reshape(-1, 1, 1), rhs()
    together = SOLVERS[solver](system(matrices, Isotropic(0.1)), b, iterations=4, tolerance=tolerance)
    for i in range(N):
        alone = SOLVERS[solver](
            system(matrices[i : i + 1], Isotropic(0.1)), b[i : i + 1], iterations=4, tolerance=tolerance
        )
        assert torch.allclose(alone.u[0], together.u[i], rtol=1e-12, atol=1e-14)
        assert alone.iterations[0] == together.iterations[i]


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_curvature_guard_stops_one_sample_and_not_the_others(solver):
    matrices, b = spd(), rhs()
    clean = SOLVERS[solver](system(matrices, Isotropic(0.1)), b, iterations=3)
    matrices = matrices.clone()
    matrices[2] = -matrices[2]
    bad = SOLVERS[solver](system(matrices, Isotropic(0.1)), b, iterations=3)
    others = [i for i in range(N) if i != 2]
    assert torch.equal(bad.u[others], clean.u[others])
    assert torch.isfinite(bad.u).all()
    assert torch.isfinite(bad.pullback).all()
    assert bad.guards[2] >= 1
    assert (bad.guards[others] == 0).all()
    assert bad.status[2] == Status.GUARDED
    assert (bad.u[2] == 0).all()  # no step along a direction of negative curvature


def test_direct_solves_exactly_on_eigenvectors_of_valid_curvature():
    """One negative eigenvalue: u is the exact solution in the span of the other eigenvectors.

    The likelihood uses the magnitude of the rejected eigenvalue.
    """
    matrices, b = spd(), rhs()
    values, vectors = torch.linalg.eigh(matrices)
    values[:, 0] = -values[:, 0]
    indefinite = (vectors * values.unsqueeze(-2)) @ vectors.mT
    solution = SOLVERS["direct"](system(indefinite, Isotropic(0.1)), b, iterations=3)
    seen = (vectors.mT @ b.unsqueeze(-1)).squeeze(-1)
    along = seen / (values.abs() + 0.1)
    expected = (vectors[:, :, 1:] @ along[:, 1:].unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(solution.u, expected, rtol=1e-10, atol=1e-12)
    assert (solution.guards == 1).all()
    assert torch.allclose(solution.energy, (seen * along).sum(-1), rtol=1e-10)
    assert torch.allclose(solution.logdet, (values.abs() + 0.1).log().sum(-1), rtol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_nan_product_affects_only_its_sample(solver):
    matrices, b = spd(), rhs()
    clean = SOLVERS[solver](system(matrices, Isotropic(0.1)), b, iterations=3)
    matrices = matrices.clone()
    matrices[1] = torch.nan
    bad = SOLVERS[solver](system(matrices, Isotropic(0.1)), b, iterations=3)
    others = [i for i in range(N) if i != 1]
    assert torch.equal(bad.u[others], clean.u[others])
    assert torch.isfinite(bad.u).all()
    assert bad.status[1] in (Status.GUARDED, Status.BREAKDOWN)


@pytest.mark.parametrize("solver", SOLVERS)
def test_zero_right_hand_side(solver):
    b = rhs()
    b[0] = 0
    solution = SOLVERS[solver](system(spd(), Isotropic(0.1)), b, iterations=3)
    assert (solution.u[0] == 0).all()
    assert solution.residual[0] == 0
    assert torch.isfinite(solution.u).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_unmeasured_entries_are_removed_from_the_system(solver):
    measured = torch.rand(N, M, generator=torch.Generator().manual_seed(4)) < 0.6
    pair = measured.unsqueeze(1) & measured.unsqueeze(2)
    matrices, b = spd() * pair, rhs() * measured
    noise = Diagonal(torch.full((N, M), 0.2, dtype=torch.float64)).restrict(measured)
    solution = SOLVERS[solver](system(matrices, noise), b, iterations=4 * M, tolerance=1e-12)
    for i in range(N):
        keep = measured[i]
        sub = matrices[i][keep][:, keep] + 0.2 * torch.eye(int(keep.sum()))
        assert torch.allclose(solution.u[i][keep], torch.linalg.solve(sub, b[i][keep]), atol=1e-9)
    assert (solution.u[~measured] == 0).all()


@pytest.mark.parametrize("unit", [2.0**-80, 2.0**40])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_solution_does_not_depend_on_the_units(solver, unit):
    """With unmeasured entries, and negative curvature that the guard refuses."""
    measured = torch.rand(N, M, generator=torch.Generator().manual_seed(4)) < 0.6
    pair = measured.unsqueeze(1) & measured.unsqueeze(2)
    matrices, b = (spd() - 0.5 * EYE) * pair, rhs() * measured

    def solution(c):
        noise = Diagonal(torch.full((N, M), 0.2 * c, dtype=torch.float64)).restrict(measured)
        return SOLVERS[solver](system(c * matrices, noise), b, iterations=2 * M, tolerance=1e-12)

    expected, found = solution(1.0), solution(unit)
    torch.testing.assert_close(found.u * unit, expected.u, rtol=1e-7, atol=0)
    assert torch.equal(found.guards, expected.guards)


def ill_conditioned(condition, size=40):
    """Symmetric systems with eigenvalues from 1 to 1e-6; the noise sets their condition number.

    b has unit variance in the norm of M⁻¹.
    """
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(N, size, size, generator=generator, dtype=torch.float64)).Q
    signal = (basis * torch.logspace(0, -6, size, dtype=torch.float64)) @ basis.mT
    whole = signal + torch.eye(size, dtype=torch.float64) / condition
    z = torch.randn(N, size, 1, generator=generator, dtype=torch.float64)
    return signal, whole, (torch.linalg.cholesky(whole) @ z).squeeze(-1)


def squared_error(whole, u, exact):
    """(u − u*)ᵀM(u − u*) relative to u*ᵀMu*: 1 for u = 0."""

    def energy(v):
        return (v * (whole @ v.unsqueeze(-1)).squeeze(-1)).sum(1)

    return energy(u.double() - exact) / energy(exact)


@pytest.mark.parametrize("iterations", [3, 20, 300])
@pytest.mark.parametrize("condition", [1e4, 1e8])
@pytest.mark.parametrize("solver", ["cg", "gmres", "bicgstab"])
def test_no_solve_ends_further_from_the_solution_than_it_began(solver, condition, iterations):
    """In float32, where bicgstab diverges for condition numbers above about 1e4. 1 % allows for rounding."""
    signal, whole, b = ill_conditioned(condition)
    noise = Isotropic(torch.tensor(1 / condition))
    iterations = min(iterations, 60) if solver == "gmres" else iterations  # the space has 40 dimensions
    solution = SOLVERS[solver](system(signal.float(), noise), b.float(), iterations=iterations)
    assert (squared_error(whole, solution.u, torch.linalg.solve(whole, b)) <= 1.01).all()
    assert torch.allclose(solution.pullback, 3 * solution.u, rtol=1e-3, atol=1e-3 * float(solution.u.abs().max()))
    assert torch.equal(solution.guards, (solution.status == Status.DIVERGED).long())
    if (solver, condition, iterations) == ("bicgstab", 1e8, 300):
        assert (solution.status == Status.DIVERGED).any()


@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("condition", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("solver", ["cg", "gmres", "bicgstab", "direct"])
def test_rounding_errors_are_part_of_the_reported_residual(solver, condition, tolerance):
    """In float32, against b − Mu in float64: the recurrences report the tolerance where more than b itself is left.

    The error is an estimate, and the right-hand sides have large components along the smallest eigenvalues: within a
    factor of 4 of the truth. A sample is called converged only if its residual is below twice the tolerance.
    """
    signal, whole, _ = ill_conditioned(condition)
    b = torch.randn(N, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    solution = SOLVERS[solver](
        system(signal.float(), Isotropic(torch.tensor(1 / condition))),
        b.float(),
        iterations=40 if solver == "gmres" else 300,
        tolerance=tolerance,
    )
    residual = (b - (whole @ solution.u.double().unsqueeze(-1)).squeeze(-1)).norm(dim=1) / b.norm(dim=1)
    assert (residual <= 4 * solution.residual).all()
    if solver != "direct":  # which has no tolerance
        assert (residual <= 2 * tolerance)[solution.status == Status.CONVERGED].all()


@pytest.mark.parametrize("solver", ["cg", "bicgstab"])
def test_a_solve_that_diverges_is_replaced_by_its_best_iterate_and_counted(solver):
    """No guard stops conjugate gradients on a Jacobian with a rotation, as every direction has positive curvature.

    The other samples of the batch are unaffected.
    """
    matrices, b = spd(), rhs()
    clean = SOLVERS[solver](system(matrices, Isotropic(0.1)), b, iterations=5)
    generator = torch.Generator().manual_seed(0)
    rotation = torch.randn(M, M, generator=generator, dtype=torch.float64)
    matrices = matrices.clone()
    matrices[2] += 20 * (rotation - rotation.T)
    bad = SOLVERS[solver](system(matrices, Isotropic(0.1)), b, iterations=5)
    others = [i for i in range(N) if i != 2]
    assert torch.equal(bad.u[others], clean.u[others])
    assert (bad.guards[others] == 0).all()
    # with H the symmetric part, a merit of at most 0 bounds u: uᵀHu ≤ 4 bᵀH⁻¹b
    H = (matrices[2] + matrices[2].T) / 2 + 0.1 * EYE
    assert float(bad.u[2] @ H @ bad.u[2]) <= 4 * float(b[2] @ torch.linalg.solve(H, b[2]))
    if solver == "cg":
        assert bad.status[2] == Status.DIVERGED
        assert bad.guards[2] == 1


def test_a_measured_value_without_noise_is_part_of_the_system():
    """A value with variance 0 is solved for exactly: zero rows mark unmeasured entries, not a variance of 0."""
    noise = Diagonal._raw(variances=(torch.tensor([0.0, 1.0], dtype=torch.float64), 1))
    matrix = torch.tensor([[[2.0, 1.0], [1.0, 3.0]]], dtype=torch.float64)
    b = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    solution = SOLVERS["direct"](system(matrix, noise), b, iterations=1)
    expected = torch.linalg.solve(matrix[0] + torch.diag(torch.tensor([0.0, 1.0], dtype=torch.float64)), b[0])
    assert torch.allclose(solution.u[0], expected)


def test_scalars_are_kept_in_float64():
    # float32 dot products over 2^20 entries of size 1 ± 1e-4 lose the differences; float64 products do not
    b = 1 + 1e-4 * torch.randn(1, 1 << 20)
    solution = cg(System(lambda p: (p, p), Isotropic(1.0)), b, iterations=1)
    assert solution.residual.dtype == torch.float64
    assert float((solution.u - b / 2).norm() / b.norm()) < 1e-7


def test_direct_rejects_systems_that_exceed_memory():
    with pytest.raises(ValueError, match=r"direct.*5000.*cg"):
        SOLVERS["direct"](System(lambda p: (p, p), Isotropic(1.0)), torch.randn(1, 5000), iterations=1)


def two_parallel_rows(A):
    return torch.cat([A[:, :1], A[:, :1] + 1e-3 * A[:, 1:]], 1)


ACCURATE = {  # A `(n, m, N)` of accurate measurements, and the standard deviations of their noise
    "square": (lambda A: A, torch.full((20,), 1e-5)),
    "unequal noise": (lambda A: A, torch.logspace(-5, -2, 20)),
    "redundant": (lambda A: A[:, :8, :5], torch.full((8,), 1e-5)),
    "two rows, nearly parallel": (lambda A: two_parallel_rows(A[:, :2]), torch.full((2,), 1e-5)),
}


@pytest.mark.parametrize("name", ACCURATE)
def test_direct_resolves_accurate_measurements_in_float32(name):
    """The posterior mean of x ~ N(0, I) is within a tenth of its standard deviation; in float64, it is exact.

    Rounding y to float32 alone moves it by up to 0.04 standard deviations.
    """
    make, stds = ACCURATE[name]
    A = make(torch.randn(32, 20, 20, generator=torch.Generator().manual_seed(0)))
    y = (A @ torch.randn(32, A.shape[-1], 1, generator=torch.Generator().manual_seed(1))).squeeze(-1)

    def mean(A, y):
        def signal(p):
            pullback = A.mT @ p.unsqueeze(-1)
            return (A @ pullback).squeeze(-1), pullback.squeeze(-1)

        noise = Diagonal(stds.to(A).square())
        return SOLVERS["direct"](System(signal, noise), y)

    A64 = A.double()
    precision = torch.eye(A.shape[-1], dtype=torch.float64) + (A64.mT / stds.double().square()) @ A64
    exact = torch.linalg.solve(precision, A64.mT @ (y.double() / stds.double().square()).unsqueeze(-1)).squeeze(-1)
    root = torch.linalg.cholesky(precision).mT  # takes differences to posterior standard deviations
    for solution, bound in ((mean(A, y), 0.1), (mean(A64, y.double()), 1e-4)):
        distance = (root @ (solution.pullback - exact).unsqueeze(-1)).squeeze(-1)
        assert distance.square().mean(-1).sqrt().max() < bound


def test_direct_does_not_depend_on_the_batch():
    """A sample that needs a second measurement of its matrix leaves the others unchanged."""
    A = torch.randn(4, 20, 20, generator=torch.Generator().manual_seed(0))
    A[0] = torch.eye(20)
    b = torch.randn(4, 20, generator=torch.Generator().manual_seed(1))

    def solve(n):
        def signal(p):
            pullback = A[:n].mT @ p.unsqueeze(-1)
            return (A[:n] @ pullback).squeeze(-1), pullback.squeeze(-1)

        return SOLVERS["direct"](System(signal, Isotropic(1e-8)), b[:n])

    alone, together = solve(1), solve(4)
    assert (alone.products, together.products) == (20, 40)
    assert torch.equal(alone.u, together.u[:1])
    assert torch.equal(alone.pullback, together.pullback[:1])
