r"""E[x | x_t, y] in one forward pass of a network that was trained to denoise the pivot.

x_t and y together are equivalent to one noisy observation of x: the pivot m with noise of covariance
C = (I/σ² + AᵀΣ_y⁻¹A)⁻¹ (`pivot.py`). A conditional network is trained to denoise under such noise
(`em/conditioning.py`), so the estimate is

    E[x | x_t, y] = D(m, C),

without a Gaussian approximation of p(x | x_t), a Jacobian or a solver. The only error is that of the network.

If y can only be simulated (`operators/channel.py`), it gives no linear information about x: m is x_t itself, C = σ²I,
and the network receives features of y.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import ClassVar, Self, cast

import torch
from torch import Tensor

from ..core.errors import InputError
from ..observations import Observations
from ..observations.features import Features, is_simulated
from ..observations.information import information_of
from ..observations.krylov import Krylov
from ..operators.spectrum import DiagonalInformation, Information
from ..priors.diffusion import DiffusionPrior
from ..samplers import Sampler
from .base import Posterior
from .correction import Correction
from .evaluation import Evaluation
from .pivot import IdentityPivot, Pivot


@dataclass
class Conditional(Posterior):
    """The method of a prior with a conditional network (`DiffusionPrior.family`).

    It warns if the network was not trained for the operators.

    Attributes:
        check: Whether to compare the observations with the family of operators that the network was trained for.
    """

    method: ClassVar[str] = "conditional"
    needs_linear: ClassVar[bool] = False

    check: bool = True
    # made at the first use, for one batch
    _pivot: Pivot | Correction | IdentityPivot | None = field(init=False, repr=False, default=None)
    _information: Information | None = field(init=False, repr=False, default=None)  # in units of the prior's scale

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, DiffusionPrior) or self.prior.family is None:
            raise InputError(
                "method 'conditional' needs a prior with a conditional network (a run with e_step.method: "
                f"conditional), got {self.prior}; {self._advice()}"
            )
        if not self.check:
            return
        information = self._require_supported().scaled(self.prior.scale)
        if (why := self.prior.family.outside(information)) is not None:
            mmps = "" if is_simulated(self.obs) else "; method 'mmps' does not"
            warnings.warn(f"{why}: the network extrapolates{mmps}", stacklevel=5)

    def observe(self, obs: Observations) -> None:
        super().observe(obs)
        self._pivot = self._information = None

    def _require_supported(self) -> Information:
        """Return AᵀΣ_y⁻¹A, or raise an `InputError` if the network was not trained for such operators."""
        information = information_of(self.obs, exact=True)
        assert isinstance(self.prior, DiffusionPrior)
        assert self.prior.family is not None
        if (why := self.prior.family.impossible(information)) is not None:
            raise InputError(f"method 'conditional' cannot be used here: {why}; {self._advice()}")
        return information

    def _advice(self) -> str:
        """Advice for observations that the network cannot be used for."""
        learn = "learn a prior from observations of this Channel with e_step.method: conditional"
        return learn if is_simulated(self.obs) else "use method 'mmps'"

    def _prepare(self) -> tuple[Pivot | Correction | IdentityPivot, Information]:
        if self._pivot is None or self._information is None:
            information = self._require_supported()
            if isinstance(information, Features):
                self._pivot, self._information = IdentityPivot(), information
            elif isinstance(information, Krylov):
                self._information = information.scaled(self.prior.scale)
                self._pivot = Correction(self.obs, self._information, self.prior.scale)
            else:
                self._pivot = Pivot(self.obs, cast(DiagonalInformation, information))
                self._information = self._pivot.information.scaled(self.prior.scale)
        return self._pivot, self._information

    def for_draw(self, sampler: Sampler, steps: int, last_level: float) -> Self:
        if sampler.needs_likelihood:
            raise InputError(
                f"sampler {sampler.name!r} needs a likelihood, which method 'conditional' does not have; use "
                "method 'mmps'"
            )
        self._prepare()  # before the steps, which may be captured
        return self

    def capturable(self, sampler: Sampler) -> bool:
        # the small eigenvalue problems of `Krylov` are checked on the host
        return super().capturable(sampler) and not isinstance(self._prepare()[1], Krylov)

    @torch.no_grad()
    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        assert isinstance(self.prior, DiffusionPrior)
        pivot, information = self._prepare()
        return Evaluation(self.prior.denoise_pivot(pivot.centre(x_t, sigma), sigma, information))
