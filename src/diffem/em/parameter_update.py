r"""Parameters θ of the operators, from the residuals of a lap's draws.

For draws x of q(x | y) at the current θ, the gradient of the expected log-likelihood is that of the likelihood of y
(Fisher's identity):

    ∇ log p(y | θ) = E[s | y],      s = Jᵀ Σ_y⁻¹ (y − A_θ x),      J = ∂(A_θ x)/∂θ.

The M-step of expectation–maximisation divides it by E[JᵀΣ_y⁻¹J], the information about θ if x were known. That is far
more than the observations contain, so θ would hardly move in a lap. The step here divides by the information of the
Gaussian start, C⁻¹, with C the covariance of its estimate (`priors/parameter_scoring.py`):

    θ ← θ + C Σ s,      with covariance C (Σ s sᵀ) C.

The scores of a network's draws have a systematic error: on digits, after a short training, 0.3 of their standard
deviation, which moved θ by 17 %. Therefore this estimate and that of the start are averaged with their precisions, with
a systematic error of the former, and the start dominates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..observations import Observations
from ..operators.learned import derivatives, positions
from ..priors.parameters import OperatorParameters, with_first_values
from ..runs.draws import DrawStore

SYSTEMATIC = 0.3  # systematic error of a score from draws, relative to its standard deviation


@torch.no_grad()
def draw_scores(parameters: OperatorParameters, obs: Observations, draws: DrawStore) -> tuple[Tensor, Tensor]:
    """The mean of s over the observations, `(P,)`, and of s sᵀ, `(P, P)`.

    Args:
        parameters: The parameters that the draws were made with.
        obs: The training observations, with parameters to learn.
    """
    theta, count = parameters.vector(), 0
    total, squares = torch.zeros_like(theta), theta.new_zeros(len(theta), len(theta))
    for k in range(len(draws)):
        first, end = draws.range(k)
        part = with_first_values(obs[first:end].to(torch.device("cpu")), theta)
        score = theta.new_zeros(len(part), len(theta))
        x, measured = draws.read(k), part.measured
        for draw in x:
            y, J = derivatives(part.A, draw.to(part.y))
            residual = part.y - y if measured is None else torch.where(measured, part.y - y, 0)
            white = part.noise.solve(residual)
            scores = (J * white).flatten(2).sum(2).T.double()  # (n, q)
            score.scatter_add_(1, positions(part.A, len(part)), scores / len(x))
        total, squares, count = total + score.sum(0), squares + score.T @ score, count + len(part)
    return total / count, squares / count


def updated_parameters(
    before: OperatorParameters, start: OperatorParameters, score: Tensor, square: Tensor, observations: int
) -> OperatorParameters:
    """The parameters after the draws of a lap.

    Args:
        before: The parameters that the draws were made with.
        start: The parameters of the start.
        score: `(P,)`. The mean of s.
        square: `(P, P)`. The mean of s sᵀ.
        observations: The number of observations that were drawn.
    """
    determined = start.determined()
    if not bool(determined.any()):
        return start
    first = torch.tensor(start.covariance, dtype=torch.float64)[determined][:, determined]
    step = start.observations * first
    estimate = before.vector()[determined] + step @ score[determined]
    further = step @ (square[determined][:, determined] * (1 / observations + SYSTEMATIC**2)) @ step
    gain = torch.linalg.solve(first + further, first, left=False)  # C (C + C')⁻¹, the weight of the draws
    value, covariance = start.vector(), torch.zeros(len(determined), len(determined), dtype=torch.float64)
    value[determined] = value[determined] + gain @ (estimate - value[determined])
    covariance[determined.outer(determined)] = (first - gain @ first).flatten()
    return start.updated(value, covariance)
