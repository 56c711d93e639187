"""Docstrings of this library explain arguments as lines `name: what it is`; on a page such lines become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (.*)$")


def as_list(text: str) -> str:
    """Turn the argument lines of a docstring into list items, together with their continuation lines."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        found = ARGUMENT.match(line)
        if found and found[1] != "http":
            if not inside and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            lines.append(f"- {names}: {found[2]}")
            inside = True
        elif inside and line.startswith(" "):
            lines.append("    " + line.strip())
        else:
            if inside and line:
                lines.append("")
            inside = inside and not line
            lines.append(line)
    return "\n".join(lines)


class Arguments(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)
