"""The packages of the library import each other in one direction: only packages earlier in the list below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from diffem.cli.commands import ELSEWHERE
from diffem.runs.sources import SOURCES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# Lowest first. A package may import those before it.
PACKAGES = {
    "core": "Errors, shapes, batched values, addressed random numbers, progress, processes, compilation and "
    "CUDA graphs.",
    "files": "Atomic writes, checked reads of arrays, tensors and YAML, and memory limits.",
    "linalg": "Covariances and batched linear solvers.",
    "operators": "The linear operators A, one family per file, the bases in which AᵀΣ⁻¹A is diagonal, and channels.",
    "observations": "y, A and the noise, in memory or on disk, and what is computed from them alone.",
    "nn": "Networks h(x, log σ).",
    "samplers": "Noise schedules and the samplers that turn a denoiser into draws.",
    "priors": "Priors as denoisers: Gaussian, mixture, diffusion; the Gaussian fit by EM; the registry of "
    "posterior methods.",
    "posterior": "Posterior methods: a prior and observations make another denoiser.",
    "metrics": "Metrics with and without clean data.",
    "runs": "Recipes, the registry of data sources, run folders, draws on disk.",
    "em": "The loop: expectation, maximization, checks of the model, the verdict, evaluation, exported priors.",
    "report": "Pictures, the HTML page, loggers.",
    "api": "`diffem.fit`, which calls the loop and the report.",
    "app": "The local web page for a run.",
    "cli": "The command line.",
}
# Nothing above imports these; the registries `SOURCES` and `ELSEWHERE` name their functions and modules as strings.
LEAVES = {
    "datasets": "Digits, CIFAR-10 and the curve in five dimensions, with simulated measurements.",
    "mri": "Accelerated MRI: k-space, coils, fastMRI, reconstructions, and their commands.",
    "tables": "Imputers for tables and time series with the interface of scikit-learn.",
    "interop": "Operators and denoisers of deepinv, azula and diffusers.",
}
SEPARATE = [{"nn", "samplers"}]  # neither imports the other
ROOT_MODULES = 5  # largest number of modules at the root
FILE_LINES, FUNCTION_LINES = 350, 80  # longest file and longest function, with docstrings
# Imports inside functions that are allowed, and the reason.
DELAYED = {
    "diffem": "`import diffem` imports the packages when they are used, among them torch and pydantic",
    "diffem.priors": "the same",
    "diffem.priors.methods": "the same; only types are imported",
    "diffem.posterior": "the same; `diffem --help` lists the methods without importing them",
    "diffem.cli": "the commands register those of other packages, which import this one",
    "diffem.cli.commands": "`diffem --help` imports only what it prints",
    "diffem.cli.drawing": "the same",
    "diffem.mri.commands": "the same",
    "diffem.metrics.transport": "a kernel whose module imports triton",
}


class Import(NamedTuple):
    module: str
    imported: str
    delayed: bool  # inside a function or a condition


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / "diffem").rglob("*.py")):
        *parents, last = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parents if last == "__init__" else [*parents, last])] = path
    return found


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


def imports_of(module: str) -> Iterator[Import]:
    """Every import of the library's own modules, anywhere in the file."""
    path = modules()[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = parsed(module)
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parents, *(node.module or "").split(".")]).rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in modules() else base for name in names]
        for target in targets:
            if target.split(".")[0] == "diffem" and target != module:
                yield Import(module, target, node not in tree.body)


@cache
def imports() -> list[Import]:
    return [found for module in modules() for found in imports_of(module)]


def package_of(module: str) -> str:
    """The package of a module below `diffem`; empty for `diffem` itself and its `__main__`."""
    name = [*module.split("."), ""][1]
    return "" if name == "__main__" else name


def test_every_package_has_its_place():
    assert {package_of(module) for module in modules()} - {""} == {*PACKAGES, *LEAVES}


def test_few_modules_are_at_the_root():
    at_root = [path.name for path in modules().values() if path.parent == SOURCE / "diffem"]
    assert len(at_root) <= ROOT_MODULES, at_root


def test_files_and_functions_are_short():
    for path in modules().values():
        text = path.read_text()
        assert text.count("\n") <= FILE_LINES, path
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        long = [f.name for f in functions if f.end_lineno - f.lineno >= FUNCTION_LINES]
        assert not long, (path, long)


def test_imports_go_one_way():
    order = list(PACKAGES)
    wrong = []
    for module, imported, _ in imports():
        here, there = package_of(module), package_of(imported)
        if here in ("", there):  # `diffem` itself imports what it offers
            continue
        allowed = order if here in LEAVES else order[: order.index(here)]
        if there not in allowed or {here, there} in SEPARATE:
            wrong.append(f"{module} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others():
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for module, imported, _ in imports():
        graph[module].add(imported)
    while free := [module for module, needed in graph.items() if not needed & graph.keys()]:
        for module in free:
            del graph[module]
    # the rest leads into a cycle
    assert not graph, {module: sorted(needed & graph.keys()) for module, needed in graph.items()}


def test_imports_are_delayed_only_for_a_faster_start():
    delayed = {module for module, _, inner in imports() if inner}
    assert delayed <= DELAYED.keys()


def test_modules_named_in_strings_are_leaves():
    """A dotted name in a string is imported later, so it could hide an import in the wrong direction."""
    wrong = []
    for module in modules():
        for node in ast.walk(parsed(module)):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            name = node.value.partition(":")[0]
            if (
                re.fullmatch(r"diffem(\.\w+)+", name)
                and name in modules()
                and package_of(name) not in (*LEAVES, package_of(module))
            ):
                wrong.append(f"{module} names {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("source", SOURCES)
def test_every_data_source_is_found(source):
    named = SOURCES[source]
    if isinstance(named, str):
        module, _, function = named.partition(":")
        assert package_of(module) in LEAVES
        assert callable(getattr(import_module(module), function))


@pytest.mark.parametrize("module", ELSEWHERE)
def test_every_package_with_commands_is_found(module):
    assert package_of(module) in LEAVES
    assert callable(import_module(module).register)


def test_the_page_for_developers_lists_the_packages():
    text = (ROOT / "docs/developer.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    assert rows == [*PACKAGES.items(), *LEAVES.items()]
