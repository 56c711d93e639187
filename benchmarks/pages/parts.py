"""What every block is made of: a table, and where its numbers came from."""

from __future__ import annotations

from typing import Any

# "given", since a bar would end the cell of a table
COVARIANCES = {
    "0": "0",
    "sigma_t": "Σ_t",
    "sigma_x": "(Σ_x⁻¹ + Σ_t⁻¹)⁻¹",
    "identity": "(I + Σ_t⁻¹)⁻¹",
    "exact": "V[x given x_t]",
    "mmps": "V[x given x_t], `mmps`",
}


def source(result: dict[str, Any]) -> str:
    return f"`{result['command']}`, commit {result['commit']}, {result['machine']}, {result['date']}."


def kept(result: dict[str, Any]) -> list[str]:
    """Where rows came from that were measured by another command."""
    commands = {
        row["command"]: row for row in result["rows"] if "command" in row and row["command"] != result["command"]
    }
    return [f"Rows of another run: {source(row)}" for row in commands.values()]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
