"""Parameters of operators that were estimated together with a prior."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..observations import Observations
from ..observations.lazy import LazyObservations
from ..operators import Operator
from ..operators.learned import is_learned, learned_parameters, with_values
from .levels import NORMAL95

MOST = 64  # largest number of values to learn


@dataclass(frozen=True)
class ParameterEstimate:
    """One estimated parameter.

    Attributes:
        shape: `(*shape)`, or `(G, *shape)` for one value per group.
        value: The values, flattened.
        error: Their standard errors.
        is_determined: Whether the observations determine each of them; otherwise it keeps its initial value.
    """

    shape: tuple[int, ...]
    value: tuple[float, ...]
    error: tuple[float, ...]
    is_determined: tuple[bool, ...]

    def tensor(self) -> Tensor:
        """The values in their shape, in float64."""
        return torch.tensor(self.value, dtype=torch.float64).reshape(self.shape)

    def __str__(self) -> str:
        texts = []
        for value, error, known in zip(self.value, self.error, self.is_determined, strict=True):
            ends = f" ({value - NORMAL95 * error:.4g} to {value + NORMAL95 * error:.4g})"
            texts.append(f"{value:.4g}" + (ends if known else " (not determined)"))
        return ", ".join(texts)


@dataclass(frozen=True)
class OperatorParameters:
    """Estimated parameters of an operator, by name: `prior.operator_parameters["width"].value`.

    Attributes:
        estimates: The parameters. Their numbers, one parameter after the other, are the vector θ `(P,)`.
        covariance: `(P, P)`. The covariance of the estimate of θ; 0 for numbers that are not determined.
        observations: The number of observations that it was estimated from.
        is_settled: Whether the iteration reached a maximum of the likelihood; otherwise the initial values were too
            far from it.
    """

    estimates: dict[str, ParameterEstimate]
    covariance: tuple[tuple[float, ...], ...]
    observations: int
    is_settled: bool = True

    @classmethod
    def of(
        cls,
        A: Operator,
        value: Tensor,
        covariance: Tensor,
        determined: Tensor,
        observations: int,
        is_settled: bool = True,
    ) -> OperatorParameters:
        """Parameters of an operator from θ `(P,)`, its covariance `(P, P)`, and whether each number is determined."""
        out, error = {}, covariance.diagonal().clamp(min=0).sqrt()
        learned = learned_parameters(A)
        for name, here in _slices({name: p.value.numel() for name, p in learned.items()}).items():
            parts = (tuple(vector[here].tolist()) for vector in (value.double(), error.double(), determined))
            out[name] = ParameterEstimate(tuple(learned[name].value.shape), *parts)
        return cls(out, _rows(covariance), observations, is_settled)

    def updated(self, value: Tensor, covariance: Tensor) -> OperatorParameters:
        """The same parameters with other values and another covariance."""
        out, error = {}, covariance.diagonal().clamp(min=0).sqrt()
        for name, here in _slices({name: len(e.value) for name, e in self.estimates.items()}).items():
            entries = {"value": tuple(value[here].tolist()), "error": tuple(error[here].tolist())}
            out[name] = replace(self.estimates[name], **entries)
        return replace(self, estimates=out, covariance=_rows(covariance))

    def __getitem__(self, name: str) -> ParameterEstimate:
        if name not in self.estimates:
            raise InputError(f"no parameter {name!r} was learned; learned parameters: {', '.join(self.estimates)}")
        return self.estimates[name]

    @property
    def is_determined(self) -> bool:
        """Whether the observations determine all parameters."""
        return all(all(estimate.is_determined) for estimate in self.estimates.values())

    def vector(self) -> Tensor:
        """θ `(P,)`, in float64."""
        return torch.cat([estimate.tensor().flatten() for estimate in self.estimates.values()])

    def determined(self) -> Tensor:
        """Whether each number of θ is determined, `(P,)`."""
        return torch.tensor([known for e in self.estimates.values() for known in e.is_determined])

    def apply(self, A: Operator) -> Operator:
        """The operator with the estimated values in place of the parameters to learn.

        Raises:
            InputError: If it has other parameters to learn, or of other shapes.
        """
        return with_values(A, {name: estimate.tensor() for name, estimate in self.estimates.items()})

    def entries(self) -> list[tuple[str, float, float, bool]]:
        """Every number with its name, standard error, and whether it is determined: `width`, or `width[1]` of several.

        The number in brackets counts through the values of all groups.
        """
        out = []
        for name, e in self.estimates.items():
            for k, entry in enumerate(zip(e.value, e.error, e.is_determined, strict=True)):
                out.append((name if len(e.value) == 1 else f"{name}[{k}]", *entry))
        return out

    def note(self) -> dict[str, Any]:
        """The parameters as JSON values."""
        estimates = {name: asdict(estimate) for name, estimate in self.estimates.items()}
        fit = {"observations": self.observations, "is_settled": self.is_settled}
        return {"estimates": estimates, "covariance": self.covariance, **fit}

    @classmethod
    def read(cls, note: Any) -> OperatorParameters:
        """Read the result of `note`.

        Raises:
            InputError: If a number is not finite, or their numbers do not fit the shapes.
        """
        try:
            estimates = {str(name): _read(entry) for name, entry in note["estimates"].items()}
            rows = tuple(tuple(float(v) for v in row) for row in note["covariance"])
            count, numbers = int(note["observations"]), sum(len(e.value) for e in estimates.values())
            if {len(rows), *map(len, rows)} != {numbers} or not 0 < numbers <= MOST or count < 1:
                raise ValueError
            if not all(map(math.isfinite, (v for row in rows for v in row))):
                raise ValueError
            if not isinstance(settled := note["is_settled"], bool):
                raise ValueError
            return cls(estimates, rows, count, settled)
        except (AttributeError, TypeError, KeyError, ValueError):
            raise InputError(f"these are not operator parameters: {str(note)[:200]}") from None

    def __str__(self) -> str:
        return "; ".join(f"{name} is {estimate}" for name, estimate in self.estimates.items())


def _slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Where the numbers of each parameter are in θ; sizes: how many numbers each parameter has."""
    ends = itertools.accumulate(sizes.values())
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def _rows(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """The rows of a matrix as numbers."""
    return tuple(tuple(row) for row in matrix.double().tolist())


def _read(entry: Any) -> ParameterEstimate:
    shape = tuple(int(size) for size in entry["shape"])
    value, error = (tuple(float(v) for v in entry[name]) for name in ("value", "error"))
    known = tuple(entry["is_determined"])
    good = all(map(math.isfinite, (*value, *error))) and all(isinstance(k, bool) for k in known)
    if not good or not {len(value), len(error), len(known)} == {math.prod(shape)} or not value:
        raise ValueError
    return ParameterEstimate(shape, value, error, known)


def with_parameters(obs: Observations, parameters: OperatorParameters) -> Observations:
    """The observations with the estimated values in their operators; those on disk are completed as they are read."""
    if isinstance(obs, LazyObservations):
        name = f"parameters {parameters.note()}"
        return obs.changed(lambda read: with_parameters(read, parameters), name, parameters.apply)
    new = copy.copy(obs)
    new.A = parameters.apply(obs.A)
    return new


def with_first_values(obs: Observations, theta: Tensor) -> Observations:
    """The observations with other initial values of the parameters to learn, given as one vector `(P,)`."""
    new, learned = copy.copy(obs), learned_parameters(obs.A)
    places = _slices({name: p.value.numel() for name, p in learned.items()})
    values = {name: theta[here].reshape(learned[name].value.shape) for name, here in places.items()}
    new.A = with_values(obs.A, values, still_learned=True)
    return new


def with_known_operator(obs: Observations, parameters: OperatorParameters | None) -> Observations:
    """The observations with the estimated operator if theirs has parameters to learn; otherwise the same observations.

    Raises:
        InputError: If the operator has parameters to learn, and none or others were estimated.
    """
    A = obs[:1].A
    if not is_learned(A):
        return obs
    if parameters is None:
        raise InputError(
            f"the operator has parameters to learn ({', '.join(learned_parameters(A))}), and this prior was learned "
            "without them: diffem.fit estimates them; otherwise pass them to Function as known parameters"
        )
    return with_parameters(obs, parameters)
