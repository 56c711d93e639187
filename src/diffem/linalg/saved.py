"""Covariances in files: kind and axes as JSON values, tensors by name.

Files are untrusted, so a covariance is rebuilt with all checks of its kind.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .covariance import Covariance
from .kinds import COVARIANCES


def describe_covariance(cov: Covariance) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description that `rebuild_covariance` needs, and the tensors under names that begin with `cov.`."""
    kind = next(name for name, type_ in COVARIANCES.items() if type_ is type(cov))
    return {"kind": kind, "axes": cov._shared_ndim}, {f"cov.{name}": tensor for name, tensor in cov._tensors.items()}


def rebuild_covariance(entry: Any, tensors: dict[str, Tensor]) -> Covariance:
    """Rebuild a covariance from its description and tensors.

    Raises InputError for what its constructor would reject.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("axes"), dict):
        raise InputError(f"the description of a covariance must contain its kind and axes, got {str(entry)[:80]}")
    kind, axes = entry.get("kind"), entry["axes"]
    if kind not in COVARIANCES:
        raise InputError(f"unknown covariance {kind!r}; known: {', '.join(COVARIANCES)}")
    expected_axes = COVARIANCES[kind].axes
    if axes.keys() != expected_axes.keys():
        raise InputError(
            f"the description of a covariance {kind!r} must name the tensors {', '.join(expected_axes)}, got "
            f"{', '.join(axes)[:80]}"
        )
    parts: dict[str, tuple[Tensor, int | None]] = {}
    for name, expected in expected_axes.items():
        count, tensor = axes[name], tensors.get(f"cov.{name}")
        if tensor is None or not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise InputError(f"cov.{name} must be floating point and finite")
        whole = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 32
        if count != expected if expected is not None else not (whole or count is None):
            raise InputError(f"cov.{name} cannot have {count!r} axes per sample")
        parts[name] = tensor, count
    COVARIANCES[kind].check_tensors({name: tensor for name, (tensor, _) in parts.items()})
    return COVARIANCES[kind]._raw(**parts)
