"""Observations grouped by their operator and noise, as dense matrices.

Observations with the same operator and noise enter a Gaussian likelihood only through the mean and the second moment of
their y, so the cost of a likelihood depends on the number of different operators, not of observations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.interruption import poll
from ..observations import Observations
from ..observations.matrices import noise_matrices
from ..operators.learned import derivatives, learned_parameters, positions

LOOKED_AT = 8192  # largest number of observations that are used
NUMBERS = 1 << 24  # largest number of entries in the matrices of all classes
WORK = 1 << 28  # classes times N³, as long as there are more than FEWEST classes
FEWEST, MOST = 128, 512


@dataclass(frozen=True)
class OperatorClasses:
    """C classes of observations; m values of y and N of x.

    Attributes:
        obs: One observation of each class, in float64.
        rows: `(n, m)`. The values of all observations, 0 where nothing was measured.
        label: `(n,)`. The class of each observation.
        count: `(C,)`. The number of observations in each class.
        mean: `(C, m)`. The mean of y.
        factor: `(C, m, k)`. F with covariance FFᵀ of y within a class; k is 0 if every class is a single observation.
        noise: `(C, m, m)`. Σ_y, with a unit diagonal where nothing was measured.
        measured: The number of measured values of all observations.
        position: `(C, q)`. Where the parameters of a class are in the vector of all parameters.
    """

    obs: Observations
    rows: Tensor
    label: Tensor
    count: Tensor
    mean: Tensor
    factor: Tensor
    noise: Tensor
    measured: int
    position: Tensor

    @classmethod
    def of(cls, obs: Observations) -> OperatorClasses:
        """Group observations. If there are too many different operators, those that come first are used."""
        size, values = math.prod(obs.x_shape), obs[:1].y[0].numel()
        most = min(NUMBERS // (size * max(size, values)), max(FEWEST, WORK // size**3), MOST)
        some = obs[: min(len(obs), LOOKED_AT)].to(torch.float64)
        label = _labels(some)
        used = (label < max(1, most)).nonzero().flatten()
        some, label = some[used], label[used]
        _, order = torch.unique(label, return_inverse=True)
        classes = int(order.max()) + 1
        first = torch.full((classes,), len(order), device=order.device).scatter_reduce(
            0, order, torch.arange(len(order), device=order.device), "amin"
        )
        representatives = some[first]
        noise, outside = noise_matrices(representatives)
        rows = torch.where(outside[order], 0, some.y.flatten(1))
        count = torch.bincount(order, minlength=classes).double()
        mean = torch.zeros(classes, values, dtype=torch.float64, device=rows.device).index_add(0, order, rows)
        mean = mean / count[:, None]
        factor = _factors([rows[order == c] - mean[c] for c in range(classes)])
        measured = int((~outside).sum(1).double() @ count)
        place = positions(representatives.A, classes)
        return cls(representatives, rows, order, count, mean, factor, noise, measured, place)

    @property
    def value(self) -> Tensor:
        """The initial values of all parameters to learn, in one vector."""
        return torch.cat([p.value.flatten() for p in learned_parameters(self.obs.A).values()])

    def matrices(self, obs: Observations) -> tuple[Tensor, Tensor]:
        """A `(C, m, N)` and its derivatives by the parameters of each class `(q, C, m, N)`, column by column.

        Args:
            obs: `self.obs`, with other values of the parameters to learn.
        """
        size, (n, values) = math.prod(obs.x_shape), self.mean.shape
        q = self.position.shape[1]
        A, dA = (
            torch.empty(*shape, n, values, size, dtype=torch.float64, device=self.mean.device) for shape in ((), (q,))
        )
        for k in range(size):
            poll()
            e = torch.zeros(size, dtype=torch.float64, device=self.mean.device)
            e[k] = 1
            y, dy = derivatives(obs.A, e.reshape(1, *obs.x_shape).expand(n, *obs.x_shape).contiguous())
            A[..., k], dA[..., k] = y.flatten(1), dy.flatten(2)
        return A, dA


def _factors(centred: list[Tensor]) -> Tensor:
    """Factors F `(C, m, k)` of the covariances of classes of observations `(n_c, m)` around their means."""
    values = centred[0].shape[1]
    found = []
    for rows in centred:
        if len(rows) <= values:
            found.append(rows.T[:, : 0 if len(rows) == 1 else None] / math.sqrt(len(rows)))
            continue
        eigenvalues, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
        found.append(vectors * eigenvalues.clamp(min=0).sqrt())
    width = max(F.shape[1] for F in found)
    return torch.stack([torch.nn.functional.pad(F, (0, width - F.shape[1])) for F in found])


def _labels(obs: Observations) -> Tensor:
    """Number the different operators and noises of observations in the order of their first appearance, `(n,)`."""
    tensors, names = obs.tensors(), obs.per_observation() - {"y", "repeats"}
    if not names:
        return torch.zeros(len(obs), dtype=torch.int64, device=obs.y.device)
    arrays = [tensors[name].cpu().contiguous().numpy() for name in sorted(names)]
    known: dict[bytes, int] = {}
    label = [known.setdefault(b"".join(a[i].tobytes() for a in arrays), len(known)) for i in range(len(obs))]
    return torch.tensor(label, device=obs.y.device)
