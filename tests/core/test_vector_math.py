"""Vector functions of the CPU are initialised before the library can call them from several threads."""

import ast

import torch

from diffem.core import vector_math
from tests.test_layers import imports, modules, parsed


def methods_called_in(module: str) -> set[str]:
    calls = (node.func for node in ast.walk(parsed(module)) if isinstance(node, ast.Call))
    return {called.attr for called in calls if isinstance(called, ast.Attribute)}


def imported_with(module: str) -> set[str]:
    """All modules of the library that are imported before the module is, and itself."""
    reached, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name and name not in reached:
            reached.add(name)
            waiting += [found.imported for found in imports() if found.module == name and not found.delayed]
            waiting.append(name.rpartition(".")[0])  # its package
    return reached


def test_the_functions_have_both_precisions():
    for name in vector_math.FUNCTIONS:
        for dtype in (torch.float32, torch.float64):
            assert getattr(torch, name)(torch.full((1,), 0.5, dtype=dtype)).isfinite().all()


def test_every_module_that_calls_them_imports_the_initialisation():
    functions = {*vector_math.FUNCTIONS, "atan2", "pow"}
    using_torch = [module for module in modules() if "import torch" in modules()[module].read_text()]
    calling = [module for module in using_torch if methods_called_in(module) & functions]
    assert len(calling) > 50
    assert [module for module in calling if "diffem.core.vector_math" not in imported_with(module)] == []
