"""Convert notebooks to pages when the site is built: `notebooks/name.ipynb` becomes `notebooks/name.md`, with outputs.

The notebook can be downloaded from the page. Of its outputs, the page shows plain text and PNG pictures but no HTML.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal


def on_files(files: Files, config: Any) -> Files:
    for path in sorted(Path(config.docs_dir).rglob("*.ipynb")):
        name = path.relative_to(config.docs_dir).with_suffix("").as_posix()
        text, pictures = page(json.loads(path.read_text()), path.stem)
        files.append(File.generated(config, f"{name}.md", content=text))
        for picture, content in pictures.items():
            files.append(File.generated(config, f"{Path(name).parent.as_posix()}/{picture}", content=content))
    return files


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and the pictures it shows by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        texts, found = outputs(cell)
        if texts:
            parts.append(f"```text\n{texts}\n```")
        for content in found:
            picture = f"{name}-{len(pictures)}.png"
            pictures[picture] = content
            parts.append(f"![{cell['metadata'].get('alt', 'output of the cell above')}]({picture})")
    title, *rest = parts
    download = f"[Download this notebook]({name}.ipynb){{ download }}"
    return "\n\n".join([title, download, *rest]), pictures


def outputs(cell: dict[str, Any]) -> tuple[str, list[bytes]]:
    """What a cell printed to standard output, and its pictures."""
    texts: list[str] = []
    pictures: list[bytes] = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        if output["output_type"] == "stream" and output["name"] == "stdout":
            texts.append("".join(output["text"]))
        elif "image/png" in data:
            pictures.append(base64.b64decode("".join(data["image/png"])))
        elif "text/plain" in data:
            texts.append("".join(data["text/plain"]).rstrip("\n") + "\n")
    return COLOURS.sub("", "".join(texts)).rstrip("\n"), pictures
