"""The prior in place of a posterior, for priors that cannot be conditioned on the observations yet.

A prior that was given as the start of a run on observations of a channel has no network that receives their features.
The first lap draws from the prior itself, and trains the network on these samples and measurements simulated from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Posterior
from .evaluation import Evaluation


@dataclass
class Unconditional(Posterior):
    """E[x | x_t], independent of y."""

    method: ClassVar[str] = "prior"
    needs_linear: ClassVar[bool] = False

    @torch.no_grad()
    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        return Evaluation(self.prior.denoise(x_t, sigma))
