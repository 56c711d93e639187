r"""A network as a prior, preconditioned so that it receives and returns numbers of unit size.

This is the preconditioning of Karras et al. (2022) with σ_data = 1. With s the scale of the data and τ = σ/s the noise
level relative to it,

    d(x_t, σ) = 1/(τ²+1) x_t + σ/√(τ²+1) h(x_t/(s√(τ²+1)), log τ).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..core.compile import compile_network, compiling_pays, fast_products
from ..core.errors import InputError
from ..core.shapes import per_sample, require_precision
from ..linalg import Covariance
from ..nn.networks import make_network
from ..observations import Observations
from ..observations.information import information_of
from ..operators import Channel
from ..operators.spectrum import Information
from .base import Prior
from .batching import choose_batch
from .family import Family
from .preconditioning import preconditioning

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}  # dtype of matrix products and convolutions


class DiffusionPrior(Prior):
    """A prior whose denoiser is a network.

    Args:
        network: h(x `(n, *event)`, log_sigma `(n,)`) → `(n, *event)`, for samples of about unit size.
        event_shape: Shape of a sample. Default: that of `mean` or `network.event_shape`.
        mean: (*event). μ_x, the mean of the starting noise. Default: zero.
        cov: Σ_x, for the heuristic `sigma_x`.
        settings: Configuration of the network, `{"kind": "mlp", ...}` as in a recipe. Needed to save the prior.
        scale: s, the size of the data. Samples and noise levels are divided by s before they enter the network.
        sigma_min: See `Prior`.
        sigma_max: See `Prior`.
        trained_min: Lowest noise level of the training. Below it the network is evaluated at that level, where x̂
            differs from x_t by less than the level itself. Default: `sigma_min`.
        family: The operators that a conditional network, h(x, log_sigma, shown), was trained for. Without `shown` it is
            an ordinary prior.
    """

    def __init__(
        self,
        network: nn.Module,
        event_shape: tuple[int, ...] | None = None,
        *,
        mean: Tensor | None = None,
        cov: Covariance | None = None,
        settings: dict[str, Any] | None = None,
        scale: float = 1.0,
        sigma_min: float | None = None,
        sigma_max: float | None = None,
        trained_min: float | None = None,
        family: Family | None = None,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise InputError(f"DiffusionPrior needs a torch.nn.Module h(x, log_sigma), got {type(network).__name__}")
        for name, weight in network.named_parameters():
            if weight.is_floating_point():
                require_precision(weight.dtype, f"DiffusionPrior: the network's {name}")
        if mean is None:
            event_shape = event_shape if event_shape is not None else getattr(network, "event_shape", None)
            if event_shape is None:
                raise InputError("DiffusionPrior: pass event_shape=..., the shape of one sample, or mean=...")
            parameter = next(iter(network.parameters()), torch.zeros(()))
            mean = torch.zeros(tuple(event_shape), dtype=parameter.dtype, device=parameter.device)
        elif event_shape is not None and tuple(event_shape) != tuple(mean.shape):
            raise InputError(f"DiffusionPrior: event_shape {tuple(event_shape)} and mean {tuple(mean.shape)} differ")
        super().__init__(mean, sigma_min, sigma_max, scale=scale)
        self.trained_min = self.sigma_min if trained_min is None else float(trained_min)
        if not 0 < self.trained_min < self.sigma_max:
            raise InputError(f"trained_min must lie between 0 and {self.sigma_max}, got {trained_min}")
        self.network = network
        self._batch: int | None = None
        self._half: torch.dtype | None = None
        self._sampling = self._fast = False
        self._cov = cov
        self.settings = settings
        self.family = family

    def accelerate(self, batch: int, *, precision: str | None = None, sampling: bool = False) -> Self:
        """Compile the network for fast evaluations on a GPU; returns the prior itself.

        The network is compiled for one batch size (smaller batches are padded to it, which is cheaper than compiling
        again) and computes in `precision`, if it is given. Only evaluations that will be differentiated, as posteriors
        do, are compiled unless `sampling`: compiling takes longer than a few prior samples.
        """
        if precision is not None:
            self.compute_in(precision)
        self._batch, self._sampling = batch, sampling
        if self.mean.is_cuda:
            compile_network(self.network)
        return self

    def compute_in(self, precision: str) -> Self:
        """Set the precision of the network: 'float32', 'tf32', 'bf16' or 'fp16'.

        The preconditioning stays in float32.
        """
        if precision not in ("float32", "tf32", *HALF):
            raise InputError(f"precision must be float32, tf32, {' or '.join(HALF)}, got {precision!r}")
        self._half, self._fast = HALF.get(precision), precision != "float32"
        return self

    def batch_for(self, most: int) -> int:
        return choose_batch(self, most) if self._batch is None else min(self._batch, most)

    def prepare(self, batch: int, evaluations: int) -> None:
        if self.mean.is_cuda and compiling_pays(evaluations):
            self.accelerate(batch)

    def supports(self, obs: Observations) -> bool:
        # a blur with hidden values is not diagonal in Fourier space, so a network for blurs does not support it
        return self.family is not None and self.family.impossible(information_of(obs)) is None

    def choose_method(self, obs: Observations) -> tuple[str, str]:
        if isinstance(obs.A, Channel):
            return "conditional", "the observations come from a Channel, which has no likelihood"
        if (known := obs.information()) is not None and known.isotropic() is not None:
            return "exact", "every entry is measured equally well, so one denoising is exact"
        if self.family is None:
            return "mmps", "the prior has no conditional network"
        if (why := self.family.outside(information_of(obs).scaled(self.scale))) is not None:
            return "mmps", why
        return "conditional", f"the prior was trained for such operators ({self.family.operator})"

    def arithmetic(self) -> AbstractContextManager[None]:
        return fast_products() if self._fast else nullcontext()

    def _autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        return nullcontext() if self._half is None else torch.autocast(device.type, self._half)

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        level = sigma / self.scale
        shrink = torch.rsqrt(level**2 + 1)
        h = self._h(per_sample(shrink / self.scale, x_t) * x_t, self._log_level(level, len(x_t)))
        return per_sample(shrink**2, x_t) * x_t + per_sample(sigma * shrink, x_t) * h

    def denoise_pivot(self, m: Tensor, sigma: Tensor, information: Information) -> Tensor:
        """E[x | x + w = m] for noise w of covariance (I/σ² + G)⁻¹, `(n, *event)`: one evaluation of the network.

        Args:
            m: `(n, *event)`, the pivot; or `(n, 2, *event)`, x_t and its correction, if only products with G are
                available (`posterior/correction.py`).
            sigma: `()` or `(n,)`.
            information: G in units of the prior's scale, that is multiplied by scale².
        """
        if self.family is None:
            raise InputError("this prior has no conditional network: it was not trained with train.conditioned")
        noise, m = preconditioning(information, sigma / self.scale), m / self.scale
        v, shown = noise.inputs(m, self.family)
        h = self._h(v, self._log_level(noise.level, len(m)), shown)
        return self.scale * noise.output(m, h)

    def _log_level(self, level: Tensor, n: int) -> Tensor:
        return level.clamp(min=self.trained_min / self.scale).log().expand(n)

    def _h(self, x: Tensor, log_sigma: Tensor, shown: Tensor | None = None) -> Tensor:
        inputs: tuple[Tensor, ...] = (x, log_sigma) if shown is None else (x, log_sigma, shown.to(x.dtype).contiguous())
        with self.arithmetic(), self._autocast(x.device):
            if self._batch is None:
                return _like(self.network(*inputs), x)
            if shown is None and not torch.is_grad_enabled() and not self._sampling:
                return _like(self.network.forward(*inputs), x)
            if shown is None and self.family is not None and not torch.is_grad_enabled():
                # one compilation serves prior and posterior
                inputs = (x, log_sigma, x.new_zeros(len(x), *self.family.shape))
            n, missing = len(x), max(0, self._batch - len(x))
            if missing:
                inputs = tuple(torch.cat([t, t.new_zeros(missing, *t.shape[1:])]) for t in inputs)
            return _like(self.network(*inputs)[:n], x)

    def ordinary(self) -> DiffusionPrior:
        """Copy the prior without the inputs that describe an observation.

        The network must have been created by name (`settings`).
        """
        if self.settings is None or not self.settings.get("shown"):
            return self
        options = {name: value for name, value in self.settings.items() if name not in ("kind", "shown")}
        network = make_network(self.settings["kind"], self.event_shape, options).to(self.mean)
        state = self.network.state_dict()
        network.load_state_dict({name: w for name, w in state.items() if name.rpartition(".")[2] != "shown"})
        return DiffusionPrior(
            network.eval().requires_grad_(False),
            mean=self.mean,
            cov=self._cov,
            settings={"kind": self.settings["kind"], **options},
            scale=self.scale,
            sigma_min=self.sigma_min,
            sigma_max=self.sigma_max,
            trained_min=self.trained_min,
        )

    def extra_repr(self) -> str:
        return (
            f"event_shape={self.event_shape}, scale={self.scale:g}, sigma in [{self.sigma_min:g}, {self.sigma_max:g}]"
        )


def _like(h: Tensor, x: Tensor) -> Tensor:
    """The output of a network in the dtype of x; another shape than that of x would be broadcast without an error."""
    if not isinstance(h, Tensor) or h.shape != x.shape:
        given = f"a tensor of shape {tuple(h.shape)}" if isinstance(h, Tensor) else type(h).__name__
        raise InputError(f"the network must return a tensor of the shape of its input, {tuple(x.shape)}, got {given}")
    return h.to(x.dtype)
