r"""Muon: steps of equal size in all directions of a weight matrix.

Adam scales every weight by itself. Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) takes the
running mean M = UΣVᵀ of a matrix's gradients and steps along UVᵀ: directions with small gradients are learned as fast
as those with large ones. UVᵀ is approximated by five Newton–Schulz iterations, which are matrix products only. The
kernels of a convolution are one matrix `(out, in·k²)`. Scaled by 0.2 √max(m, n), a step is about as large as one of
Adam (Liu et al. 2025, https://arxiv.org/abs/2502.16982), so a learning rate for Adam is a good start.

`torch.optim.Muon` does not train convolutions, has no learning rate on the device for CUDA graphs, and treats one
matrix at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# s → as + bs³ + cs⁵ brings singular values s ∈ (0, 1] close to 1 in five iterations. The steep start, s → as, costs
# accuracy at the end: most results lie between 0.7 and 1.2.
COEFFICIENTS = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
ADAM_SIZE = 0.2  # root mean square of Adam's steps in the course of a training, in units of the learning rate


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return UVᵀ of matrices UΣVᵀ `(k, m, n)`, with singular values of about 1 instead of 1; in bfloat16 on a GPU."""
    wide = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    X = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
    X = X.to(torch.bfloat16) if X.is_cuda else X
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = X @ X.mT
        X = a * X + (b * gram + c * gram @ gram) @ X
    X = X.to(matrices.dtype)
    return X if wide is matrices else X.mT


class Muon(torch.optim.Optimizer):
    """Muon for parameters `(out, …)` with two or more dimensions.

    Args:
        parameters: The parameters.
        lr: The learning rate; a tensor on a GPU, where a captured step reads it.
        momentum: The decay rate of the mean gradient.
        weight_decay: Every step first multiplies the weights by 1 − lr · weight_decay.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: Tensor | float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step. Matrices of the same shape are orthogonalised together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.flatten(1).shape, []).append(p)
            for shape, parameters in by_shape.items():
                directions = torch.stack([self._direction(p, group["momentum"]) for p in parameters])
                size = ADAM_SIZE * max(shape) ** 0.5
                for p, direction in zip(parameters, orthogonalised(directions), strict=True):
                    if group["weight_decay"]:
                        p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(group["lr"] * size * direction.reshape(p.shape))

    def _direction(self, p: nn.Parameter, momentum: float) -> Tensor:
        """Update the mean gradient; return Nesterov's direction, `(out, …)` flattened to a matrix."""
        assert p.grad is not None
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        mean = state["momentum"].lerp_(p.grad, 1 - momentum)
        return torch.lerp(mean, p.grad, 1 - momentum).flatten(1)
