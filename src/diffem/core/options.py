"""The options of a function, for messages about those that it does not have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def options_of(function: Callable[..., Any], given: int = 0) -> str:
    """Describe the options that a function or class takes, such as `its options: solver, iterations`.

    Args:
        function: The function.
        given: The number of leading parameters that are no options.
    """
    names = list(inspect.signature(function).parameters)[given:]
    return f"its options: {', '.join(names)}" if names else "it has none"
