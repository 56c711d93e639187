"""Devices that users name."""

from __future__ import annotations

import torch

from .errors import InputError


def require_device(device: torch.device | str) -> torch.device:
    """The device. Raises an `InputError` if PyTorch does not know it or this machine does not have it."""
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"device {str(device)!r} cannot be used here: {reason}. 'cpu' always works") from None
