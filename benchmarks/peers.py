"""Import deepinv, azula and diffusers even if their torchvision was built for another version of torch.

deepinv and diffusers import torchvision (diffusers only if it is installed), whose compiled operators load only with
the torch version they were built for. None of these operators is used here. But torchvision registers shapes for two of
them on import, which fails if they do not exist. Declaring these two operators is enough.
"""

from __future__ import annotations

import importlib.util
import sys

import torch

OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # the library exists as long as this object


def torchvision_imports() -> None:
    """Make `import torchvision` work, if torchvision is installed."""
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
