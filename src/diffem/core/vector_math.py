"""Initialise PyTorch's vector functions on the CPU before several threads use them.

PyTorch computes functions like log and cos of CPU tensors with the Vector Math Library of oneMKL. That library chooses
the code for the processor when a function is called for the first time. If the first call comes from several threads,
one of them can get code of low accuracy for its part of the tensor (errors of thousands of units in the last place),
in this call only (PyTorch issue 188792; oneMKL 2024.2). Random numbers would then differ between two processes, without
a message. One call with a single number, from one thread, makes the choice safely.
"""

from __future__ import annotations

import torch

FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "sin", "sinh", "tan", "tanh", "sigmoid"),
    *("erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10", "log1p", "log2", "rsqrt", "sqrt"),
)


def initialise() -> None:
    """Call every function once, in both precisions."""
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):
            number = torch.full((1,), 0.5, dtype=dtype, device="cpu")
            for name in FUNCTIONS:
                getattr(torch, name)(number)


initialise()
