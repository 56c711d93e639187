"""Hooks of the site: generate the tables of recipe keys and of commands."""

from __future__ import annotations

import json
import re
from typing import Any


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replace the placeholders of a page by tables generated from the package."""
    for mark, make in (("<!-- keys of a recipe -->", recipe_keys), ("<!-- commands -->", commands)):
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def table(header: list[str], rows: list[list[str]]) -> str:
    # Python-Markdown keeps the bars of code spans as they are, and a backslash before them too
    escaped = ([re.sub(r"(`[^`]*`)|\|", lambda m: m[1] or r"\|", cell) for cell in row] for row in rows)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *escaped])


def recipe_keys() -> str:
    from diffem.runs.recipe import Recipe

    def rows(model: Any, prefix: str = "") -> list[list[str]]:
        out = []
        for name, field in model.model_fields.items():
            inner = field.annotation if hasattr(field.annotation, "model_fields") else None
            if inner is not None:
                out += rows(inner, f"{prefix}{name}.")
            else:
                default = "needed" if field.is_required() else f"`{plain(field.default)}`"
                out.append([f"`{prefix}{name}`", default, field.description or ""])
        return out

    return table(["key", "default", ""], rows(Recipe))


def plain(value: Any) -> str:
    """A value as it is written in a recipe."""
    return value if isinstance(value, str) and value else json.dumps(value)


def commands() -> str:
    import typer

    from diffem.cli.commands import app

    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in group.commands.items():
        usage = " ".join(p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument")
        options = [
            [
                f"`{', '.join(p.opts)}{f' {p.metavar}' if p.metavar else ''}`",
                p.help or "",
                "needed" if p.required else "" if p.is_flag or p.default in (None, "") else f"`{p.default}`",
            ]
            for p in command.params
            if p.param_type_name == "option"
        ]
        arguments = [
            [f"`{p.metavar or p.name.upper()}`", p.help or "", ""]
            for p in command.params
            if p.param_type_name == "argument"
        ]
        parts.append(f"## diffem {name}\n\n{command.help or ''}\n\n    diffem {name} {usage}\n")
        if arguments or options:
            parts.append(table(["", "", "default"], arguments + options))
    return "\n\n".join(parts)
