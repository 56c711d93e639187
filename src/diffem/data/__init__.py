"""Data: observations and where they come from."""

from .observations import Observations

__all__ = ["Observations"]
