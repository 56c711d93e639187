"""Readable messages for pydantic's validation errors of recipes."""

from __future__ import annotations

import reprlib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from .earlier_keys import REPLACED
from .schedule import TAGS

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Describe all errors in one line: the key, what is needed and what was given.

    Args:
        error: An error of `model.model_validate`.
        model: The recipe or a section of it.
        prefix: The section's key with a final dot, such as `train.`; empty for the recipe.
    """
    return "; ".join(_explain(item, model, prefix) for item in error.errors())


def _explain(item: Any, model: type[BaseModel], prefix: str) -> str:
    path = [part for part in item["loc"] if part not in TAGS]
    key = prefix + ".".join(str(part) for part in path)
    if item["type"] == "extra_forbidden":
        if key in REPLACED:
            return f"the key {key!r} no longer exists; use {REPLACED[key]}"
        section: type[BaseModel] | None = model
        for part in path[:-1]:
            field = None if section is None else section.model_fields.get(str(part))
            section = None if field is None else _section(field.annotation)
        known = f"; known here: {', '.join(section.model_fields)}" if section is not None else ""
        return f"unknown key {key!r}{known}"
    if item["type"] == "missing":
        return f"{key!r} is missing"
    if item["type"] == "value_error":  # raised by a validator of the schema, whose message contains the value
        return (f"{key}: " if path else "") + item["msg"].removeprefix("Value error, ")
    given = _SHORT.repr(item["input"])
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{key or 'recipe'} must be a mapping, {{key: value, ...}}, got {given}"
    return f"{key or 'recipe'}: {item['msg'].lower()}, got {given}"


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section among the types of a field; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _section(part)) is not None), None)
