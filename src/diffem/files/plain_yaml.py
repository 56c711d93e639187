"""Parse the subset of YAML that recipes use: strings, numbers, lists and mappings.

Nothing is executed. Aliases are rejected, because with them a short text can expand to a huge value.
"""

from __future__ import annotations

import math
from typing import Any

import yaml

from ..core.errors import InputError

YAML_BYTES, YAML_DEPTH = 32 << 10, 16  # the parser takes about a second for the largest text


class _Loader(yaml.SafeLoader):
    """A loader that rejects aliases, deep nesting and repeated keys, of which YAML would keep only the last."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed; repeat the value instead")
        self.depth += 1
        if self.depth > YAML_DEPTH:
            raise yaml.YAMLError(f"values are nested more than {YAML_DEPTH} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(keys) != len(node.value):
            raise yaml.YAMLError("keys must be strings, got a list or a mapping")
        if len(keys) != len(set(keys)):
            raise yaml.YAMLError(f"a key is given twice among {', '.join(keys)[:200]}")
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, name: str) -> Any:
    """Parse YAML; name: name of the text in error messages.

    Raises:
        InputError: If the text is too long, is not valid YAML, or contains other values than the subset allows.
    """
    if len(text) > YAML_BYTES:
        raise InputError(f"{name} is too large: {len(text)} characters, the limit is {YAML_BYTES}")
    try:
        value = yaml.load(text, _Loader)  # a SafeLoader: nothing is executed
        _require_plain(value)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{name} is not valid YAML: {error}") from None
    return value


def _require_plain(value: Any) -> None:
    """Require strings, finite numbers below 2^63, and lists and mappings of them; otherwise raise ValueError."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"keys must be strings, got {key!r}")
            _require_plain(item)
    elif isinstance(value, list):
        for item in value:
            _require_plain(item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"numbers must be finite, got {value}")
    elif isinstance(value, int):
        if abs(value) >= 1 << 63:
            raise ValueError(f"integers must be below 2^63 in magnitude, got one of {value.bit_length()} bits")
    elif value is not None and not isinstance(value, str):
        raise ValueError(f"values must be strings or numbers, got {type(value).__name__} {str(value)[:40]!r}")
