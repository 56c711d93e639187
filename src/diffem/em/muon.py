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
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
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
            by_shape: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
            if not (parameters := [p for p in group["params"] if p.grad is not None]):
                continue
            for p, direction in zip(parameters, self._directions(parameters, group["momentum"]), strict=True):
                by_shape.setdefault(direction.shape, []).append((p, direction))
            for shape, pairs in by_shape.items():
                size = ADAM_SIZE * max(shape) ** 0.5
                steps = group["lr"] * size * orthogonalised(torch.stack([direction for _, direction in pairs]))
                for (p, _), step in zip(pairs, steps, strict=True):
                    if group["weight_decay"]:
                        p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(step.reshape(p.shape))

    def _directions(self, parameters: list[nn.Parameter], momentum: float) -> list[Tensor]:
        """Update the mean gradients; return Nesterov's directions, each flattened to a matrix `(out, rest)`."""
        for p in parameters:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        means = [self.state[p]["momentum"] for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_lerp_(means, gradients, 1 - momentum)
        return [direction.flatten(1) for direction in torch._foreach_lerp(means, gradients, 1 - momentum)]
