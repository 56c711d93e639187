"""The parts of a block: captions, tables, and the source of the numbers."""

from __future__ import annotations

import textwrap
from typing import Any

# "given" instead of a bar, because a bar would end the table cell
COVARIANCES = {
    "0": "0",
    "sigma_t": "Σ_t",
    "sigma_x": "(Σ_x⁻¹ + Σ_t⁻¹)⁻¹",
    "identity": "(I + Σ_t⁻¹)⁻¹",
    "exact": "V[x given x_t]",
    "mmps": "V[x given x_t], `mmps`",
}


def prose(text: str) -> str:
    """Wrap a caption at 120 columns, so that diffs of the pages can be read."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def source(result: dict[str, Any]) -> str:
    """The command, commit, machine and date of a result."""
    return f"`{result['command']}`, commit {result['commit']}, {result['machine']}, {result['date']}."


def kept(result: dict[str, Any]) -> list[str]:
    """The sources of rows that were measured by other commands, one sentence per commit, machine and date."""
    commands: dict[tuple[str, ...], list[str]] = {}
    for row in result["rows"]:
        if "command" in row and row["command"] != result["command"]:
            found = commands.setdefault((row["commit"], row["machine"], row["date"]), [])
            found += [row["command"]] if row["command"] not in found else []
    return [_others(*where, found) for where, found in commands.items()]


def _others(commit: str, machine: str, date: str, commands: list[str]) -> str:
    runs = "another run" if len(commands) == 1 else "other runs"
    named = ", ".join(f"`{command}`" for command in commands)
    return f"Some rows come from {runs}: {named}, commit {commit}, {machine}, {date}."


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
