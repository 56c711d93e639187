"""Importing deepinv, azula and diffusers where their torchvision was built for another torch.

deepinv, and diffusers where it finds one, import torchvision, whose compiled operators load only beside the torch they were built for.
None of them is used here, but torchvision registers shapes for two of them on import, and that fails when they do not exist. Declaring
these two is enough.
"""

from __future__ import annotations

import importlib.util
import sys

import torch

OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # a library lives as long as its object


def torchvision_imports() -> None:
    """Make `import torchvision` work, if torchvision is there at all."""
    if importlib.util.find_spec("torchvision") is None or "torchvision" in sys.modules:
        return
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        import torchvision  # noqa: F401


def available(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
