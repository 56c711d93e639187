r"""Muon: the update of a weight matrix is its averaged gradient with all singular values replaced by about 1.

With the gradient G of a matrix W, momentum μ and learning rate η,

    B ← μB + G,   U = orthogonalised(G + μB),   W ← W − 0.2 η √max(rows, columns) · U.

U has equal size in every direction, so directions with small gradients are learned as fast as the others. Its entries
have a root mean square of 1/√max(rows, columns); the factor makes the update as large as a typical one of Adam, so that
η means the same for both. A convolution is a matrix with one row per output channel.

References: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; Liu et al. 2025,
https://arxiv.org/abs/2502.16982 (the factor). `torch.optim.Muon` does not accept convolutions or CUDA graphs and
processes one matrix at a time; here, all matrices of one shape are processed together.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

SMALLEST_SIDE = 32  # narrower matrices, such as the first and last layers of a network, are left to Adam
UPDATE_SIZE = 0.2  # root mean square of a typical update of Adam, in units of the learning rate
# Five iterations X ← aX + (bXXᵀ + c(XXᵀ)²)X bring singular values between 0.01 and 1 to between 0.7 and 1.2.
COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5


def is_hidden_matrix(weight: Tensor) -> bool:
    """Whether Muon can update a weight: a matrix or convolution with enough rows and columns."""
    return weight.ndim >= 2 and min(weight.shape[0], weight[0].numel()) >= SMALLEST_SIDE


def orthogonalise(x: Tensor) -> Tensor:
    """Replace the singular values of matrices by values between 0.7 and 1.2, `(n, rows, columns)` → the same.

    Singular values below 0.01 of the Frobenius norm stay smaller. On a GPU, the products are computed in bfloat16.
    """
    a, b, c = COEFFICIENTS
    y = x.bfloat16() if x.is_cuda else x
    if wide := x.shape[-2] <= x.shape[-1]:
        y = y.mT  # the products below are as small as possible for columns that are fewer than rows
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = y.mT @ y
        y = a * y + y @ (b * square + c * square @ square)
    return (y.mT if wide else y).to(x.dtype)


class Muon(torch.optim.Optimizer):
    """Muon for matrices and convolutions (`is_hidden_matrix`).

    Args:
        parameters: The weights.
        lr: The learning rate; a tensor is read at every step, so that a captured step can change it.
        momentum: The decay rate μ of the averaged gradients.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float | Tensor, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            same_shape: dict[tuple[int, int], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    same_shape.setdefault((p.shape[0], p[0].numel()), []).append(p)
            for shape, weights in same_shape.items():
                self._update(weights, shape, group["lr"], group["momentum"])

    def _update(self, weights: list[Tensor], shape: tuple[int, int], lr: float | Tensor, momentum: float) -> None:
        gradients = [p.grad for p in weights if p.grad is not None]
        for p in weights:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        averages = [self.state[p]["momentum"] for p in weights]
        torch._foreach_mul_(averages, momentum)
        torch._foreach_add_(averages, gradients)
        ahead = torch._foreach_add(gradients, averages, alpha=momentum)
        updates = orthogonalise(torch.stack([g.reshape(shape) for g in ahead]))
        updates *= lr * (UPDATE_SIZE * max(shape) ** 0.5)
        torch._foreach_sub_(weights, [u.reshape(p.shape) for u, p in zip(updates, weights, strict=True)])
