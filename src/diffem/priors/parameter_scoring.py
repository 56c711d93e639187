r"""Parameters θ of an operator by maximum likelihood, together with a Gaussian prior N(μ, Σ) for x.

y | A_θ ~ N(A_θ μ, K), K = A_θ Σ A_θᵀ + Σ_y. The mean and the covariance of y are correct for every distribution of x,
so the estimate is consistent even if x is not Gaussian; only its standard error must be computed from the spread of the
scores.

A Gaussian that was fitted with a wrong θ compensates for most of the error of θ, so the gradient with respect to θ at a
given (μ, Σ) is far too small. Therefore the step uses the efficient score, which is orthogonal to all directions in
which (μ, Σ) can change (Bickel et al. 1993). With η = (μ, R), Σ = RRᵀ, and the Fisher information I of (θ, η),

    Z = I_ηη⁻¹ I_ηθ,      s* = s_θ − Zᵀ s_η,      I* = I_θθ − I_θη Z,      θ ← θ + I*⁻¹ s*,

and η follows by −Z dθ before some rounds of expectation–maximisation. I_ηη is applied without forming it, by conjugate
gradients. I*/I_θθ is the share of the information about θ that a free Gaussian leaves. If it vanishes, as for one
unknown blur that all observations share, every θ explains the observations equally well.

With the Cholesky factor L of K, Q = L⁻¹A, W = QR, whitened residuals r, u = L⁻¹(∂A)μ and E = L⁻¹(∂K)L⁻ᵀ:

    s_θ = uᵀr + (rᵀEr − tr E)/2,             I_θθ = uᵀu + tr(E²)/2,
    s_μ = Qᵀr,  s_R = Qᵀ(rrᵀ − I)W,          I_μθ = Qᵀu,  I_Rθ = QᵀEW,
    I_μμ = QᵀQ,  I_RR X = QᵀQ (XRᵀ + RXᵀ) QᵀQ R.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.progress import Progress
from ..observations import Observations
from ..observations.scale import signal_scale
from .operator_classes import OperatorClasses
from .parameters import OperatorParameters, with_first_values

STEPS = 24
FIRST_ROUNDS, ROUNDS = 24, 6  # rounds of expectation–maximisation: at first, and after each step
ITERATIONS, ACCURATE = 60, 1e-4  # largest number and relative residual of conjugate gradients
TRUST = 0.3  # change of the whitened covariance of y per measured value, squared and halved, that a step may predict
FLAT = 1e-4  # share of the information below which a direction is not determined
SETTLED = 0.05  # steps in units of the standard error that end the iteration
HALVINGS = 8


@dataclass(frozen=True)
class _State:
    """θ `(P,)`, μ `(N,)`, R `(N, N)`; A `(C, m, N)` and its derivatives by θ, `(q, C, m, N)`; the log-likelihood."""

    theta: Tensor
    mean: Tensor
    root: Tensor
    A: Tensor
    slope: Tensor
    log_likelihood: float = -math.inf


@dataclass(frozen=True)
class ParameterScore:
    """The efficient score and information at the estimate.

    Attributes:
        score: `(P,)`. s*.
        information: `(P, P)`. I*.
        spread: `(P, P)`. The sum of the squared efficient scores of the observations.
        full: `(P, P)`. I_θθ, the information if the prior were known.
        response: Z: the changes of μ `(P, N)` and of R `(P, N, N)`.
    """

    score: Tensor
    information: Tensor
    spread: Tensor
    full: Tensor
    response: tuple[Tensor, Tensor]

    def directions(self) -> tuple[Tensor, Tensor]:
        """Directions of θ that are determined `(P, k)`, and the inverse information `(P, P)` in their span."""
        unit = self.full.diagonal().clamp(min=1e-300).rsqrt()
        share, vectors = torch.linalg.eigh(unit[:, None] * self.information * unit)
        known = share > FLAT
        kept = vectors[:, known]
        inverse = (kept / share[known]) @ kept.T
        return kept, unit[:, None] * inverse * unit

    def is_determined(self) -> Tensor:
        """Whether each parameter is determined, `(P,)`."""
        kept, _ = self.directions()
        return kept.square().sum(1) > 0.99

    def covariance(self) -> Tensor:
        """The covariance of the estimate, valid for every distribution of x (White 1982)."""
        inverse = self.directions()[1]
        return inverse @ self.spread @ inverse


@torch.no_grad()
def score_parameters(obs: Observations, progress: bool | None = None) -> tuple[OperatorParameters, ParameterScore]:
    """Estimate the parameters to learn of the operators of observations, starting from their initial values.

    Args:
        progress: Whether to show a progress bar.

    Returns:
        The estimates with standard errors, and the score of the last step.
    """
    classes = OperatorClasses.of(obs)
    scale = signal_scale(classes.obs)
    size = math.prod(obs.x_shape)
    theta = classes.value
    state = _state_after_em(
        classes,
        theta,
        torch.zeros(size, dtype=theta.dtype, device=theta.device),
        scale * torch.eye(size, dtype=theta.dtype, device=theta.device),
        FIRST_ROUNDS,
    )
    settled = False
    with Progress("operator parameters", STEPS, "steps", progress) as bar:
        for _ in range(STEPS):
            found = efficient_score(classes, state)
            bar.advance(1)
            step = found.directions()[1] @ found.score
            error = found.covariance().diagonal().clamp(min=0).sqrt()
            if settled := bool((step.abs() <= SETTLED * error).all()):
                break
            if (further := _step(classes, state, found, step)) is None:
                break
            state = further
    known = found.is_determined()
    covariance = torch.where(known[:, None] & known, found.covariance(), 0)
    # if the iteration ended early, the last step shows how far the maximum still is
    covariance = covariance + torch.diag(torch.where(known, (step.abs() - SETTLED * error).clamp(min=0).square(), 0))
    value = torch.where(known, state.theta, classes.value)
    found_at = OperatorParameters.of(
        obs[:1].A, value.cpu(), covariance.cpu(), known.cpu(), len(classes.rows), is_settled=settled
    )
    return found_at, found


def _step(classes: OperatorClasses, state: _State, found: ParameterScore, step: Tensor) -> _State | None:
    """Change θ, let the Gaussian follow, and fit it again; halve steps that lower the likelihood."""
    limit = TRUST * classes.measured
    step = step * min(1.0, math.sqrt(limit / max(float(step @ found.full @ step), 1e-300)))
    mean, root = (torch.tensordot(step, z, 1) for z in found.response)
    for _ in range(HALVINGS):
        further = _state_after_em(classes, state.theta + step, state.mean - mean, state.root - root, ROUNDS)
        if further.log_likelihood >= state.log_likelihood:
            return further
        step, mean, root = step / 2, mean / 2, root / 2
    return None


def _state_after_em(classes: OperatorClasses, theta: Tensor, mean: Tensor, root: Tensor, rounds: int) -> _State:
    """The state at θ after rounds of expectation–maximisation of the Gaussian.

    Its log-likelihood is −∞ if that is not finite.
    """
    A, dA = classes.matrices(with_first_values(classes.obs, theta))
    state = _State(theta, mean, root, A, dA)
    if not bool(torch.isfinite(A).all() and torch.isfinite(dA).all()):
        return state
    try:
        for _ in range(rounds):
            state = _em_round(classes, state)
        likelihood = _WhitenedObservations.of(classes, state).log_likelihood
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return state
    return replace(state, log_likelihood=likelihood if math.isfinite(likelihood) else -math.inf)


@dataclass(frozen=True)
class _WhitenedObservations:
    """Observations whitened by K = LLᵀ.

    Attributes:
        chol: `(C, m, m)`. L.
        Q: `(C, m, N)`.
        W: `(C, m, N)`.
        mean: `(C, m)`. The mean of r.
        factor: `(C, m, k + 1)`. Y with second moment YYᵀ of r.
        log_likelihood: The log-likelihood up to a constant.
    """

    chol: Tensor
    Q: Tensor
    W: Tensor
    mean: Tensor
    factor: Tensor
    log_likelihood: float

    @classmethod
    def of(cls, classes: OperatorClasses, state: _State) -> _WhitenedObservations:
        B = state.A @ state.root
        chol = torch.linalg.cholesky(B @ B.mT + classes.noise)
        residual = (classes.mean - state.A @ state.mean).unsqueeze(-1)
        Q, factor = _solve(chol, state.A), _solve(chol, torch.cat([classes.factor, residual], -1))
        logdet = 2 * chol.diagonal(dim1=1, dim2=2).log().sum(1)
        fit = factor.square().sum((1, 2))
        log_likelihood = float(-0.5 * (classes.count @ (fit + logdet)))
        return cls(chol, Q, Q @ state.root, factor[..., -1], factor, log_likelihood)


def _solve(chol: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(chol, right, upper=False)


def _em_round(classes: OperatorClasses, state: _State) -> _State:
    """One round of expectation–maximisation of μ and Σ, see `fit_full.py`."""
    white = _WhitenedObservations.of(classes, state)
    weight = (classes.count / classes.count.sum()).sqrt()[:, None, None]
    g = (white.Q.mT @ white.factor) * weight  # (C, N, k + 1)
    Q, mean = (white.Q * weight).flatten(0, 1), (g[..., -1:] * weight).sum(0).flatten()
    g = g.transpose(0, 1).flatten(1)
    spread = g @ g.T - Q.T @ Q - mean.outer(mean)
    cov = state.root @ state.root.T
    mean, cov = state.mean + cov @ mean, cov + cov @ spread @ cov
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    return replace(state, mean=mean, root=(vectors * values.clamp(min=0).sqrt()) @ vectors.T)


def efficient_score(classes: OperatorClasses, state: _State) -> ParameterScore:
    """The efficient score of θ at a state, its information, and its spread over the observations."""
    white, n, P = _WhitenedObservations.of(classes, state), classes.count, len(state.theta)
    U = _solve(white.chol, state.slope)  # L⁻¹∂A, (q, C, m, N)
    u, half = U @ state.mean, U @ state.root @ white.W.mT
    E = half + half.mT  # (q, C, m, m)
    Y = white.factor
    place = classes.position.T  # (q, C)
    trace = E.diagonal(dim1=-2, dim2=-1).sum(-1)
    own = (u * white.mean).sum(-1) + 0.5 * ((Y * (E @ Y)).sum((-2, -1)) - trace)
    score = state.theta.new_zeros(P).index_add(0, place.flatten(), (n * own).flatten())
    full = state.theta.new_zeros(P, P)
    for j, k in itertools.product(range(len(u)), repeat=2):
        both = (u[j] * u[k]).sum(-1) + 0.5 * (E[j] * E[k]).sum((-2, -1))
        full.index_put_((place[j], place[k]), n * both, accumulate=True)
    cross_mean = state.theta.new_zeros(P, len(state.mean))
    cross_root = state.theta.new_zeros(P, *state.root.shape)
    for k in range(len(u)):
        cross_mean.index_add_(0, place[k], n[:, None] * (white.Q.mT @ u[k].unsqueeze(-1)).squeeze(-1))
        cross_root.index_add_(0, place[k], n[:, None, None] * (white.Q.mT @ E[k] @ white.W))
    response = _response(white, n, state.root, cross_mean, cross_root)
    information = full - cross_mean @ response[0].T - torch.tensordot(cross_root, response[1], ([1, 2], [1, 2]))
    eta_mean = torch.einsum("c,cmn,cm->n", n, white.Q, white.mean)
    back = white.Q.mT @ Y
    eta_root = (n[:, None, None] * (back @ (Y.mT @ white.W) - white.Q.mT @ white.W)).sum(0)
    score = score - response[0] @ eta_mean - torch.tensordot(response[1], eta_root, 2)
    spread = _spread(classes, state, white, (u, E), response)
    return ParameterScore(score, (information + information.T) / 2, spread, full, response)


def _response(
    white: _WhitenedObservations, n: Tensor, root: Tensor, cross_mean: Tensor, cross_root: Tensor
) -> tuple[Tensor, Tensor]:
    """Z = I_ηη⁻¹ I_ηθ for all parameters, by conjugate gradients preconditioned by the mean of QᵀQ."""
    information = white.Q.mT @ white.Q  # (C, N, N)
    total = torch.tensordot(n, information, 1)
    weighted = n.sqrt()[:, None, None] * information
    values, vectors = torch.linalg.eigh(total / n.sum())
    floor = 1e-10 * values.max()
    mean = cross_mean @ (vectors / values.clamp(min=floor)) @ vectors.T / n.sum()
    left = (vectors * values.clamp(min=floor).rsqrt()) @ vectors.T

    def product(S: Tensor) -> Tensor:
        X = left @ S @ root.T
        sides = (weighted @ (X + X.T)).transpose(0, 1).flatten(1)  # (N, C·N)
        return left @ (sides @ weighted.flatten(0, 1)) @ root

    return mean, torch.stack([left @ _conjugate_gradients(product, left @ b) for b in cross_root])


def _conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    x, r = torch.zeros_like(b), b
    p, square = r, r.square().sum()
    first = square
    for _ in range(ITERATIONS):
        if float(square) <= ACCURATE**2 * float(first):
            break
        q = product(p)
        length = square / (p * q).sum().clamp(min=1e-300)
        x, r = x + length * p, r - length * q
        before, square = square, r.square().sum()
        p = r + (square / before) * p
    return x


def _spread(
    classes: OperatorClasses,
    state: _State,
    white: _WhitenedObservations,
    direct: tuple[Tensor, Tensor],
    response: tuple[Tensor, Tensor],
) -> Tensor:
    """Sum of the squared efficient scores of single observations, `(P, P)`: each is linear and quadratic in r."""
    P, (u, E) = len(state.theta), direct
    spread = state.theta.new_zeros(P, P)
    for c in range(len(classes.count)):
        rows = classes.rows[classes.label == c] - state.A[c] @ state.mean
        r = _solve(white.chol[c], rows.T).T
        half = white.Q[c] @ response[1] @ white.W[c].T  # (P, m, m)
        linear, quadratic = -(response[0] @ white.Q[c].T), -half - half.mT
        linear.index_add_(0, classes.position[c], u[:, c])
        quadratic.index_add_(0, classes.position[c], E[:, c])
        trace = quadratic.diagonal(dim1=1, dim2=2).sum(1)
        each = r @ linear.T + 0.5 * (torch.einsum("ni,pij,nj->np", r, quadratic, r) - trace)
        spread += each.T @ each
    return spread
