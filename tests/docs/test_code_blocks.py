"""Every code block of every page runs: Python unchanged, `sh` blocks through the command line.

Each block runs in a folder of its own, with tiny runs: few laps, small networks and few steps, regardless of the
settings on the page. Other blocks contain command lines with explanations, whose commands and options must exist. A
block that cannot run on every machine is marked with a comment that states the reason, `<!-- not run: ... -->`.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

from diffem.cli.commands import app
from diffem.datasets.digits import images
from diffem.nn import networks
from diffem.runs.recipe import load_recipe, names, parse_change

from ..metrics.extractors import write_extractor

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = {"docs/interop.md"}  # needs other packages; tests/interop/test_page.py runs it if they are installed
REPEATS = "docs/index.md"  # its Python blocks are those of the README
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)

FEWER = {  # added to the commands of a page
    "evaluate": ["--samples", "64", "--steps", "8"],
    "posterior": ["--steps", "4", "--draws", "2"],
}

PEERS = ("deepinv", "azula", "diffusers")  # packages with environments of their own


@dataclass
class Block:
    language: str
    text: str
    line: int


def blocks(page: str, not_run: bool = False) -> list[Block]:
    """The code blocks of a page; with `not_run`, also those that are marked as not run."""
    text = (ROOT / page).read_text()
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip().splitlines()
        if not_run or not (before and before[-1].startswith("<!-- not run:")):
            found.append(Block(match[2], match[3], text[: match.start()].count("\n") + 2))
    return found


@pytest.fixture(scope="module")
def digits_run(tiny, tmp_path_factory):
    return tiny(None, "digits", tmp_path_factory.mktemp("docs") / "digits", device="cpu").path


def write_images(path: Path) -> None:
    """The user's images of the first page, with NaN for missing pixels, in NumPy's own precision."""
    y = (images()[:300] + 0.1 * torch.randn(300, 8, 8)).double()
    np.save(path, torch.where(torch.rand(300, 8, 8) < 0.5, y, torch.nan).numpy())


def commands(text: str) -> list[list[str]]:
    """The command lines of a block, without explanations after two spaces or #."""
    lines = [re.split(r"\s{2,}|\s#", line.strip())[0] for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("diffem ")]


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p not in {*ELSEWHERE, REPEATS} and any(b.language in ("python", "sh") for b in blocks(p))],
)
def test_blocks_run(page, digits_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIFFEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(networks, "NETWORKS", dict(networks.NETWORKS))  # a page registers a network of its own
    shutil.copytree(digits_run, "runs/digits")
    write_extractor(tmp_path / "inception.pt")
    write_images(tmp_path / "images.npy")
    names: dict = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python":
            try:
                exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
            except ModuleNotFoundError as error:
                if error.name not in PEERS:
                    raise
                pytest.skip(f"{error.name} is not installed; tests/interop runs this page where it is")
        if block.language == "yaml" and (named := re.match(r"# (\S+\.yaml)\n", block.text)):
            load_recipe(yaml.safe_load(block.text))  # a recipe; the name in its first line lets commands use it
            (tmp_path / named[1]).write_text(block.text)
        if block.language == "sh":
            for words in commands(block.text):
                result = CliRunner().invoke(app, [*words, *FEWER.get(words[0], [])], catch_exceptions=False)
                assert result.exit_code == 0, (words, result.output)


def test_the_first_page_contains_the_code_of_the_readme():
    first, readme = ([b.text for b in blocks(p) if b.language == "python"] for p in (REPEATS, "README.md"))
    assert first
    assert set(first) <= set(readme)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    known = typer.main.get_command(app).commands
    for block in blocks(page):
        if block.language not in ("", "sh"):
            continue
        for words in commands(block.text):
            if words[0].startswith("-"):
                continue
            assert words[0] in known, (page, words)
            options = {
                name for parameter in known[words[0]].params for name in (*parameter.opts, *parameter.secondary_opts)
            }
            given = [w.split("=")[0] for w in words[1:] if re.match(r"--?[a-zA-Z]", w)]
            assert set(given) <= options | {"--help"}, (page, words)


@pytest.mark.parametrize("page", PAGES)
def test_changes_of_built_in_recipes_are_valid(page):
    """Runs that take too long for a test, such as those on a GPU, begin at least."""
    for block in blocks(page, not_run=True):
        for words in commands(block.text) if block.language in ("", "sh", "bash") else []:
            if words[0] == "fit" and words[1] in names():
                load_recipe(words[1], dict(parse_change(words[i + 1]) for i, w in enumerate(words) if w == "--set"))


def test_every_block_is_of_a_kind_that_is_checked():
    kinds = {block.language for page in PAGES for block in blocks(page)}
    assert kinds <= {"python", "sh", "", "yaml", "text"}
