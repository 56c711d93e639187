"""Covariances in files: their kind and the axes of their tensors as JSON values, and the way back, with every check."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .covariance import Covariance
from .kinds import COVARIANCES

# the tensors of each kind, and how many axes one sample of each has; None: as many as the event, or one more, or not yet settled
TENSORS: dict[str, dict[str, int | None]] = {
    "isotropic": {"variance": 0},
    "diagonal": {"variances": None},
    "low_rank": {"factor": None, "variances": None},
    "dense": {"vectors": 2, "values": 1},
}


def describe_covariance(cov: Covariance) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `rebuild_covariance` needs, and the tensors, under names that begin with `cov.`."""
    kind = next(name for name, type_ in COVARIANCES.items() if type_ is type(cov))
    return {"kind": kind, "axes": cov._shared_ndim}, {f"cov.{name}": tensor for name, tensor in cov._tensors.items()}


def rebuild_covariance(entry: Any, tensors: dict[str, Tensor]) -> Covariance:
    """The covariance again, its tensors as they were; what its constructor would refuse is refused here."""
    if not isinstance(entry, dict) or not isinstance(entry.get("axes"), dict):
        raise InputError("the covariance is not described by a kind and axes")
    kind, axes = entry.get("kind"), entry["axes"]
    if kind not in TENSORS:
        raise InputError(f"unknown covariance {kind!r}; known: {', '.join(TENSORS)}")
    if axes.keys() != TENSORS[kind].keys():
        raise InputError(
            f"a covariance {kind!r} has {', '.join(TENSORS[kind])}, the description names {', '.join(axes)}"
        )
    parts: dict[str, tuple[Tensor, int | None]] = {}
    for name, expected in TENSORS[kind].items():
        count, tensor = axes[name], tensors.get(f"cov.{name}")
        if tensor is None or not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise InputError(f"cov.{name} must be floating point and finite")
        whole = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 32
        if count != expected if expected is not None else not (whole or count is None):
            raise InputError(f"cov.{name} cannot have {count!r} axes per sample")
        parts[name] = tensor, count
    for name in ("variance", "variances"):
        if name in parts and not (parts[name][0] > 0).all():
            raise InputError(f"cov.{name} must be positive")
    if kind == "dense":
        vectors, values = parts["vectors"][0], parts["values"][0]
        if (
            not (values >= 0).all()
            or vectors.shape[-1:] != values.shape[-1:]
            or vectors.shape[-2:-1] != values.shape[-1:]
        ):
            raise InputError(
                f"eigenvalues {tuple(values.shape)} must be non-negative and fit vectors {tuple(vectors.shape)}"
            )
        _require_orthonormal(vectors)
    return COVARIANCES[kind]._raw(**parts)


def _require_orthonormal(vectors: Tensor) -> None:
    """Refuse eigenvectors Q with QQᵀv ≠ v for a fixed vector v: Q diag(1/λ) Qᵀ would not be the inverse of Q diag(λ) Qᵀ."""
    v = torch.cos(torch.arange(vectors.shape[-1], dtype=torch.float64)).unsqueeze(-1)
    error = (vectors.double() @ (vectors.double().mT @ v) - v).norm(dim=-2).max() / v.norm()
    if not error < 1e-2:  # far above rounding in half precision, far below what arbitrary vectors have
        raise InputError("cov.vectors must be orthonormal: they are not the eigenvectors of a covariance")
