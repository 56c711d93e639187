"""The dependencies in pyproject.toml are the packages that the library imports."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# imports whose names differ from those of their packages
PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
# optional imports that other packages install: torch on Linux, and notebooks
NOT_DECLARED = {"triton", "ipywidgets"}
# extras for developers of the library
DEVELOPMENT = {"dev", "docs"}
# imported by torch.utils.tensorboard
INDIRECT = {"tensorboard"}


def imported_names(file: Path) -> set[str]:
    """Top-level names of all absolute imports of a file, also those by importlib with a literal name."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in ("import_module", "find_spec", "_has") and isinstance(node.args[0].value, str):
                names.add(node.args[0].value)
    return {name.partition(".")[0] for name in names}


def declared() -> tuple[set[str], dict[str, set[str]]]:
    """Packages that the library requires, and those of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements}

    return names(project["dependencies"]), {k: names(v) for k, v in project["optional-dependencies"].items()}


def test_imported_packages_are_declared_and_declared_packages_are_imported():
    imported = set().union(*(imported_names(file) for file in (ROOT / "src").rglob("*.py")))
    third_party = imported - sys.stdlib_module_names - {"diffem"} - NOT_DECLARED
    packages = {PACKAGES.get(name, name).lower() for name in third_party}
    required, extras = declared()
    used = set().union(*(names for extra, names in extras.items() if extra not in DEVELOPMENT))
    assert packages == (required | used) - INDIRECT


def test_constraints_contain_no_package_that_was_removed():
    assert "accelerate" not in (ROOT / "constraints.txt").read_text()
