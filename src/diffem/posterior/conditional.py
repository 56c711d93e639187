r"""E[x | x_t, y] in one forward pass of a network that was trained to denoise the pivot.

x_t and y together are one noisy look at x: the pivot m with noise of covariance C = (I/σ² + AᵀΣ_y⁻¹A)⁻¹ (`pivot.py`). A conditional network is
trained to denoise under such noise (`em/conditioning.py`), so the estimate is

    E[x | x_t, y] = D(m, C),

with no Gaussian approximation of p(x | x_t), no Jacobian and no solver in the loop: what is left is what the network has not learned.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import Tensor

from ..data.information import information_of
from ..errors import InputError
from ..operators.spectrum import Information
from ..priors.diffusion import DiffusionPrior
from ..samplers import TDS, Sampler
from .base import Evaluation, Posterior
from .pivot import Pivot


@dataclass
class Conditional(Posterior):
    """For a prior with a conditional network (`DiffusionPrior.family`); it warns about operators the network was not trained for.

    Options: check, whether to compare the observations with the family of operators the network was trained for.
    """

    method: ClassVar[str] = "conditional"

    check: bool = True
    _pivot: Pivot = field(init=False, repr=False)
    _information: Information = field(init=False, repr=False)  # in units of the prior's scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, DiffusionPrior) or self.prior.family is None:
            raise InputError(
                f"method 'conditional' needs a prior with a conditional network (a run with e_step.method: conditional), got {self.prior}; "
                "use method 'mmps'"
            )
        self._condition()
        if self.check and (why := self.prior.family.outside(self._information)) is not None:
            warnings.warn(f"{why}: the network extrapolates; method 'mmps' does not", stacklevel=5)

    def _condition(self) -> None:
        information = information_of(self.obs)
        if information is None:
            raise InputError(
                f"method 'conditional' needs AᵀΣ_y⁻¹A in a basis where it is diagonal, or samples of few numbers; got {self.obs.A} with "
                f"{self.obs.cov}; use method 'mmps'"
            )
        self._pivot = Pivot(self.obs, information)
        self._information = information.scaled(self.prior.scale)

    def __getitem__(self, index: Any) -> Self:
        new = super().__getitem__(index)
        new._condition()
        return new

    def for_draw(self, sampler: Sampler, steps: int) -> Self:
        if isinstance(sampler, TDS):
            raise InputError(
                "method 'conditional' has no likelihood to weigh particles by; use method 'mmps' with sampler 'tds'"
            )
        return self

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        assert isinstance(self.prior, DiffusionPrior)
        return Evaluation(self.prior.denoise_pivot(self._pivot.centre(x_t, sigma), sigma, self._information))
