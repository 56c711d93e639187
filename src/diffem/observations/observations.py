"""Observations y = A x + e, e ~ N(0, Σ_y), with one operator A per observation; or y simulated by a channel."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.batched import Index, as_index, take
from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.shapes import promoted, require_batch, require_precision
from ..files.tensors import explain, read_tensors, require_finite
from ..files.writing import write_tensors
from ..linalg import Covariance, Diagonal, Isotropic
from ..linalg.saved import describe_covariance, rebuild_covariance
from ..operators import Channel, Identity, Mask, Operator
from ..operators.channel_check import check_channel
from ..operators.saved import (
    describe_operator,
    gather_tensors,
    operator_structure,
    per_observation,
    rebuild_operator,
    require_affordable,
)
from ..operators.spectrum import Entries, Spectrum
from .arrays import aligned, as_tensor, implied_operator, real_view, require_batch_of, try_operator, without_unmeasured
from .noise import in_dtype_of, noise_covariance, simulated_noise

FORMAT = "diffem-observations-1"


class Observations:
    """n observations y = A x + e. Indexing and slicing select observations: `obs[:8]`, `obs[mask]`.

    Args:
        y: (n, *measurement). A tensor, an array, a data frame, a list of arrays or a data set (`arrays.py`). Unmeasured
            entries may have any value, even NaN. A complex y needs an operator with complex measurements and is stored
            as its real view. float64 stays float64; `fit` and `posterior` convert to the float32 of networks.
        A: An operator with shared parameters, or with parameters for n observations. None: NaN marks unmeasured
            entries. A `Channel` contains its noise and takes no `sigma`.
        sigma: Standard deviation of the noise: one number, `(n,)`, or one per measured value, broadcastable to
            `(*measurement)` (the columns of a table) or to y (`noise.py`). `"learn"`: unknown, and
            estimated by `fit`.
        cov: Covariance of the noise, instead of `sigma`.
        groups: Labels of the values that share an unknown noise level: `(n,)`, broadcastable to `(*measurement)`, or
            `"columns"` for one level per index of the last axis. Default: one level for all.
        adaptive: Whether operators depend on the object, for instance if later measurements were chosen by earlier
            results. Posteriors and EM remain valid, but the loss on measured values (`train.measured`) does not, so it
            is not used.

    Raises:
        InputError: If y, A and the noise do not fit together, if a measured value is not finite, or if A is not linear.
    """

    adaptive: bool = False
    repeats: Tensor | None = None  # (n,) how often an epoch of training uses the draws of each observation; None: once

    @in_default_modes
    def __init__(
        self,
        y: Any,
        A: Operator | None = None,
        sigma: Any = None,
        *,
        cov: Covariance | None = None,
        groups: Any = None,
        adaptive: bool = False,
    ) -> None:
        if not isinstance(adaptive, bool):
            raise InputError(f"adaptive must be True or False, got {adaptive!r}")
        self.adaptive = adaptive
        if isinstance(y, Observations):
            raise InputError(
                "y must be an array of measured values, got Observations: pass these instead of wrapping them"
            )
        sigma = aligned(sigma, y)
        y = as_tensor(y, "y")
        if A is None:
            A = implied_operator(y)
        if not isinstance(A, Operator):
            raise InputError(
                f"A must be a diffem operator, got {type(A).__name__}; for a mask operators.Mask(mask), for a matrix "
                "operators.Dense(matrix), for a function operators.Function(f, x_shape)"
            )
        y = real_view(y, A)
        y = require_batch(y, "y")
        require_precision(y.dtype, "y")
        if y.ndim == 1:
            raise InputError(
                f"y must have at least two axes, (n, *measurement), got shape {tuple(y.shape)}; single numbers have "
                "shape (n, 1)"
            )
        if y.numel() == 0:
            raise InputError(f"an observation needs at least one value, got y of shape {tuple(y.shape)}")
        require_batch_of(A, len(y))
        clean = without_unmeasured(y, A)
        if isinstance(A, Channel):
            A = check_channel(A, clean)
        # one adjoint checks that y and A fit, and gives the shape of a sample
        x, seen = try_operator(A, clean)
        self.x_shape = tuple(x.shape[1:])
        if seen.shape[1:] != y.shape[1:]:
            raise InputError(
                f"an observation in y has shape {tuple(y.shape[1:])}, but A returns measurements of shape "
                f"{tuple(seen.shape[1:])}"
            )
        self.y = clean.detach()
        if isinstance(A, Channel):
            self.cov: Covariance = simulated_noise(sigma, cov, groups)
        else:
            self.cov = noise_covariance(sigma, cov, groups, self.y, A.measured(self.y))
        self.A = A.resolve_axes(x)
        require_batch_of(self.A, len(y))  # again: a mask `(1, *event)` is now known to belong to one observation

    @classmethod
    def clean(cls, x: Any, sigma: float | None = None) -> Observations:
        """Make observations y = x `(n, *event)` from clean samples, for a recipe with `e_step.clean`.

        Args:
            sigma: Nominal noise level of posteriors given these observations. No noise is added to x. Default: a
                thousandth of the standard deviation of x.
        """
        x = require_batch(as_tensor(x, "x"), "x")
        if sigma is None:
            sigma = 1e-3 * (float(x.double().std(correction=0)) or 1.0)
        return cls(x, Identity(), sigma=sigma)

    @staticmethod
    def concatenate(sets: Sequence[Observations], weights: Sequence[int] | None = None) -> Observations:
        """Join observations of different kinds, for example clean samples, masks and blurs; see `combined.py`.

        Args:
            sets: Observations of samples of one shape.
            weights: How often an epoch of training uses the draws of each set. Default: once.
        """
        return COMBINERS[-1](sets, weights)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Index) -> Observations:
        index = as_index(index)
        new = copy.copy(self)
        new.y, new.A, new.cov = take(self.y, index), self.A[index], self.cov[index]
        if self.repeats is not None:
            new.repeats = take(self.repeats, index)
        return new

    def to(self, *args: Any, **kwargs: Any) -> Observations:
        """Move to a device or floating-point dtype, as `torch.Tensor.to`; returns new observations."""
        new = copy.copy(self)
        new.y, new.A, new.cov = self.y.to(*args, **kwargs), self.A.to(*args, **kwargs), self.cov.to(*args, **kwargs)
        if new.y.dtype != self.y.dtype:
            require_precision(new.y.dtype, "y")
            new.cov = in_dtype_of(self.cov, new.y)
        return new

    def scaled(self, factor: float) -> Observations:
        """The observations of factor·x: y and the noise are scaled, the operators are unchanged."""
        new = copy.copy(self)
        new.y, new.cov = self.y * factor, self.cov.scaled(factor)
        return new

    @property
    def measured(self) -> Tensor | None:
        """Mask of the measured entries, broadcastable to y. None: all entries."""
        return self.A.measured(self.y)

    def measured_entries(self) -> Tensor | None:
        """Mask of the measured entries of x, broadcastable to x. None: the operator does not measure entries of x."""
        measured = self.measured
        one = torch.ones_like(self.y[:1])
        spectrum = self.A.spectrum(one if measured is None else torch.where(measured, one, 0))
        return spectrum.gains > 0 if spectrum is not None and isinstance(spectrum.basis, Entries) else None

    @property
    def noise(self) -> Covariance:
        """Σ_y on the measured entries."""
        measured = self.measured
        return self.cov if measured is None else self.cov.restrict(measured)

    def selection(self) -> Tensor | None:
        """Mask `(n, N)` of the measured entries of x, if A selects entries and the noise is independent; or None."""
        if not isinstance(self.A, Mask) or not self.cov.is_diagonal:
            return None
        return self.A.measured(self.y).expand_as(self.y).flatten(1)

    def information(self) -> Spectrum | None:
        """The information AᵀΣ_y⁻¹A if it is diagonal in a known basis (`operators/spectrum.py`); otherwise None."""
        if not self.cov.is_diagonal:
            return None
        variances, measured = self.cov.diagonal(tuple(self.y.shape[1:])), self.measured
        precision = 1 / variances if measured is None else torch.where(measured, 1 / variances, 0)
        return self.A.spectrum(precision)

    def backprojected(self) -> Tensor:
        """Aᵀy, `(n, *event)`, for pictures. Unmeasured entries are NaN if the operator measures entries of x.

        For a channel it is the estimate of x, NaN if the channel has none.
        """
        if isinstance(self.A, Channel):
            estimate = self.A.estimate(self.y)
            return self.y.new_full((len(self), *self.x_shape), torch.nan) if estimate is None else estimate
        x, entries = self.A.adjoint(self.y), self.measured_entries()
        return x if entries is None else torch.where(entries, x, torch.nan)

    def reduced(self) -> Observations:
        """Equivalent observations whose operator has orthonormal rows, if A provides one; otherwise self.

        Posteriors are the same, and likelihoods are the same up to a factor that does not depend on x.
        """
        reduced = self.A.reduced(self.y) if isinstance(self.cov, Isotropic) else None
        if reduced is None:
            return self
        new = copy.copy(self)
        new.A, new.y, variance = reduced
        noise = self.cov.diagonal(tuple(self.y.shape[1:]))
        new.cov = Diagonal._raw(variances=((noise * variance).expand_as(self.y), self.y.ndim - 1))
        return new

    def counts(self) -> Tensor:
        """Number of measured values of each observation, `(n,)`."""
        measured, size = self.measured, self.y[0].numel()
        if measured is None:
            return torch.full((len(self),), size, device=self.y.device)
        # an axis of size 1 in the mask covers all entries along it
        rows = measured.reshape(len(measured), -1)
        return (rows.sum(1) * (size // rows.shape[1])).expand(len(self))

    def empty(self) -> Tensor:
        """Mask of the observations without measured values, `(n,)`: their posterior is the prior; metrics skip them."""
        return self.counts() == 0

    def informative(self) -> Observations | None:
        """The observations with measured values, in the same order: self if all have some, None if none has."""
        empty = self.empty()
        if not empty.any():
            return self
        return None if empty.all() else self[(~empty).nonzero().flatten()]

    def residual(self, x: Tensor) -> Tensor:
        """y − A x on the measured entries, 0 elsewhere. x: `(n, *event)`, a tensor or an array."""
        x = x if isinstance(x, Tensor) else as_tensor(x, "x")
        if x.shape != (len(self), *self.x_shape):
            raise InputError(
                f"needed: one sample per observation, {(len(self), *self.x_shape)}, got x of shape {tuple(x.shape)}"
            )
        residual = self.y - self.A(promoted(x, self.y))
        measured = self.measured
        return residual if measured is None else torch.where(measured, residual, 0)

    @in_default_modes
    def chi2(self, x: Tensor) -> Tensor:
        """Compute (y − Ax)ᵀ Σ_y⁻¹ (y − Ax) per measured value, `(n,)`; about 1 for draws of the right posterior.

        NaN for an observation without measured values; averages must skip it. x: `(n, *event)`, a tensor or an array.
        """
        counts = self.counts()
        chi2 = self.noise.mahalanobis(self.residual(x)) / counts.clamp(min=1)
        return torch.where(counts > 0, chi2, torch.nan)

    def __repr__(self) -> str:
        return f"Observations({len(self)} of {tuple(self.y.shape[1:])}, x {self.x_shape}, A={self.A}, cov={self.cov})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, which `load` and the command line read. Raises InputError for `Function`s."""
        tensors = {"y": self.y}
        operator = describe_operator(self.A, "A", tensors)
        cov, parts = describe_covariance(self.cov)
        structure: dict[str, Any] = {"format": FORMAT, "A": operator, "cov": cov}
        if self.adaptive:
            structure["adaptive"] = True
        tensors |= parts | ({} if self.repeats is None else {"repeats": self.repeats})
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_tensors(Path(path), tensors, structure)

    def read(self) -> Observations:
        """The observations in memory: these, unless they are lazy (`lazy.py`)."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name: y, the parameters of the operators, the noise, and a marker if adaptive."""
        tensors = {"y": self.y} | ({"adaptive": torch.ones((), dtype=torch.bool)} if self.adaptive else {})
        if self.repeats is not None:
            tensors["repeats"] = self.repeats
        gather_tensors(self.A, "A", tensors)
        return tensors | {f"cov.{name}": tensor for name, tensor in self.cov._tensors.items()}

    def per_observation(self) -> set[str]:
        """The names among `tensors` that hold one entry per observation."""
        own = {"y"} if self.repeats is None else {"y", "repeats"}
        return {*own, *per_observation(self.A, "A"), *(f"cov.{name}" for name in self.cov.per_observation())}

    def structure(self) -> dict[str, Any]:
        """Kinds and settings of operator and noise as JSON values: what the tensors do not contain."""
        kinds = {"A": operator_structure(self.A), "cov": type(self.cov).__name__}
        return {**kinds, "x_shape": list(self.x_shape), "adaptive": self.adaptive}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Observations:
        """Load a file of `save`. This executes no code.

        Observations larger than the budget of `memory.may_stay` stay in the file and are read when they are used.
        """
        if Path(path).suffix == ".npy":
            raise InputError(f"{path} is an array, not an observations file: Observations(np.load(path), sigma=...)")
        for opened in OPENERS:
            if (obs := opened(Path(path))) is not None:
                return obs
        tensors, structure = read_tensors(path, "an observations file")
        if structure.get("format") != FORMAT:
            raise InputError(
                f"{path} is not an observations file of this library: it has format {structure.get('format')!r}, "
                f"this version reads {FORMAT!r}"
            )
        # unmeasured entries of y may have any value
        require_finite({name: tensor for name, tensor in tensors.items() if name != "y"}, path)
        try:
            y, A = require_batch(tensors["y"], "y"), rebuild_operator(structure["A"], "A", tensors)
            require_affordable(A, y)
            cov = rebuild_covariance(structure["cov"], tensors)
            obs = cls(y, A, cov=cov, adaptive=structure.get("adaptive", False))
            obs.repeats = require_repeats(tensors, len(obs))
            return obs
        except Exception as error:  # any error from an untrusted description is an error of the file
            raise InputError(
                f"{path} is not an observations file of this library, or is damaged: {explain(error)}"
            ) from error


def require_repeats(tensors: dict[str, Tensor], n: int) -> Tensor | None:
    """The weights of n observations in a file, `(n,)`, or None. Raises InputError if they are not positive counts."""
    repeats = tensors.get("repeats")
    if repeats is not None and (repeats.dtype != torch.int64 or repeats.shape != (n,) or not (repeats > 0).all()):
        raise InputError(f"repeats must be {count_of(n, 'positive whole number')}")
    return repeats


# `__init__.py` adds functions of modules that import this one.
COMBINERS: list[Callable[[Sequence[Observations], Sequence[int] | None], Observations]] = []  # `concatenate`
OPENERS: list[Callable[[Path], Observations | None]] = []  # `load` tries these first; None: the function does not apply
