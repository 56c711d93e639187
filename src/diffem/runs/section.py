"""Base classes for the sections of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

MANY = 10_000_000  # upper limit for counts: larger values are typing errors or malicious


class Section(BaseModel):
    """A section with a fixed set of keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OpenSection(BaseModel):
    """A section with additional keys, which depend on `kind` or `source` and are validated by the network or source."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    def options(self, *known: str) -> dict[str, Any]:
        """Return all keys of the section except those in `known`."""
        return {name: value for name, value in self.model_dump().items() if name not in known}
