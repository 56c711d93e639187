"""Data: observations, where they come from, and the draws of a lap on disk."""

from .observations import Observations
from .store import DrawStore

__all__ = ["DrawStore", "Observations"]
