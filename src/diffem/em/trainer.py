r"""One optimizer step of denoising score matching, and the state of the training.

With x_t = x + σz, loss weight λ = 1/σ² + 1 and the preconditioning of `priors/diffusion.py`, the weighted error of the
denoiser is

    λ ‖d(x_t, σ) − x‖² = ‖h(x_t/√(σ²+1), log σ) − (σx − z)/√(σ²+1)‖².

The right-hand side is computed: it has no large weights and no cancellation at small σ. Examples with an operator have
anisotropic noise, and the same formula holds in every direction (`priors/preconditioning.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..core.compile import fast_products
from ..core.interruption import Interruption
from ..core.processes import ALONE, Processes
from ..priors import DiffusionPrior
from ..priors.preconditioning import preconditioning
from ..runs.recipe import Train
from .conditioning import Conditioning
from .measured_loss import MeasuredLoss
from .muon import Muon


def learning_rates(options: Train, steps: int, first: int = 0) -> Tensor:
    """Return the learning rate of every step, `(steps,)`.

    Args:
        steps: The number of optimizer steps.
        first: The step at which the optimizer is new, and the learning rate rises from 0.
    """
    progress = torch.arange(steps, dtype=torch.float64) / max(1, steps)
    shape = {
        "constant": torch.ones_like(progress),
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + torch.cos(math.pi * progress)),
    }[options.schedule]
    rates = options.final_lr + (options.lr - options.final_lr) * shape
    if options.warmup:
        rates[first:] = rates[first:] * ((torch.arange(steps - first) + 1) / options.warmup).clamp(max=1)
    return rates


class Trainer:
    """A network with its optimizers and averaged weights.

    Args:
        prior: The prior whose network is trained in place.
        options: The M-step options of the recipe.
        steps: The number of optimizer steps.
        precision: The precision of the network on a GPU.
        processes: This process among those that train together.
        measured: The loss on measured values; None without it.
        interruption: A request to stop this process.
        conditioning: The operators for a conditional network.
        lap: The lap in the addresses of simulated measurements.
        first_step: The step at which the optimizer is new.

    Attributes:
        stop: Whether any process had received a request to stop at the last step.
        parts: The number of pieces that a batch is processed in.
    """

    def __init__(
        self,
        prior: DiffusionPrior,
        options: Train,
        steps: int,
        precision: str = "float32",
        processes: Processes = ALONE,
        measured: MeasuredLoss | None = None,
        interruption: Interruption | None = None,
        conditioning: Conditioning | None = None,
        lap: int = 0,
        first_step: int = 0,
    ) -> None:
        self.network: nn.Module = prior.network
        self.scale = prior.scale
        self.measured = measured
        self.conditioning, self.lap = conditioning, lap
        self.processes = processes
        self.interruption = interruption or Interruption()
        self.stop = False  # the processes agree on it, see `_sum_gradients`
        self._has_retried = False
        self.parts = 1  # more after out-of-memory errors
        self.options, self.device = options, prior.mean.device
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.rates = learning_rates(options, steps, first_step).to(device=self.device, dtype=torch.float32)
        self.rate = torch.zeros((), device=self.device) if self.device.type == "cuda" else options.lr
        muon = options.optimizer == "muon"
        self.kinds = ["muon" if muon and p.ndim >= 2 else "adam" for p in self.parameters]  # the optimizer of each
        self.optimizers = self._make_optimizers()
        self.average = [p.detach().clone() for p in self.parameters] if options.ema is not None else []
        self.autocast, self.fast = precision == "bf16", precision != "float32"

    def _make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers by name: Adam, and Muon for matrices and convolutions if the recipe has it."""
        options, optimizers = self.options, dict[str, torch.optim.Optimizer]()
        owned = list(zip(self.parameters, self.kinds, strict=True))
        by_muon, by_adam = ([p for p, kind in owned if kind == name] for name in ("muon", "adam"))
        if by_muon:
            optimizers["muon"] = Muon(by_muon, self.rate, weight_decay=options.weight_decay)
        if by_adam:
            optimizers["adam"] = torch.optim.Adam(
                by_adam,
                lr=self.rate,
                betas=options.betas,
                weight_decay=options.weight_decay,
                fused=self.device.type in ("cpu", "cuda"),
                capturable=self.device.type == "cuda",
            )
        return optimizers

    def step(self, i: Tensor | int, x: Tensor, log_sigma: Tensor, z: Tensor, *source: Tensor) -> Tensor:
        """Take one optimizer step and return the loss, `()`, without synchronising with the device.

        Args:
            x: (n, *event). The augmented draws.
            log_sigma: (n,). Their noise levels relative to the scale.
            z: (n, *event). Their noise.
            source: The rows of the draws `(n,)`, the uniform numbers of their augmentation, the observations whose
                operators they receive `(n,)`, and the positions of the examples `(n,)`. The loss on measured values and
                a conditional network need them.
        """
        with fast_products(self.fast):
            return self._step(i, x, log_sigma, z, *source)

    def _step(self, i: Tensor | int, *examples: Tensor) -> Tensor:
        if isinstance(self.rate, Tensor):
            self.rate.copy_(self.rates[i].reshape(()))
        else:
            for optimizer in self.optimizers.values():
                for group in optimizer.param_groups:
                    group["lr"] = float(self.rates[i])
        for p in self.parameters:
            p.grad = None
        x = examples[0]
        loss = x.new_zeros(())
        share = 1 / (self.options.batch * x[0].numel())
        for piece in zip(*(t.tensor_split(self.parts) for t in examples), strict=True):
            part = self._loss(*piece) * share
            part.backward()
            loss = loss + part.detach()
        if self.processes.count > 1:
            loss = self._sum_gradients(loss)
        elif self.device.type == "cpu":
            self.stop = self.interruption.should_stop
        nn.utils.clip_grad_norm_(self.parameters, self.options.clip, foreach=True)
        for optimizer in self.optimizers.values():
            optimizer.step()
        if self.average:
            assert self.options.ema is not None
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - self.options.ema)
        return loss

    def _loss(self, x: Tensor, log_sigma: Tensor, z: Tensor, *source: Tensor) -> Tensor:
        """Return the sum of the squared errors of some examples, in units of the prior's scale."""
        x = x / self.scale
        error = (
            self._error(x, log_sigma, z)
            if self.conditioning is None
            else self._conditional_error(x, log_sigma, z, *source[2:])
        )
        return error.square().sum() if self.measured is None else self.measured(error, *source[:2])

    def _error(self, x: Tensor, log_sigma: Tensor, z: Tensor) -> Tensor:
        """Return √λ (d(x_t, σ) − x), `(n, *event)`."""
        sigma = log_sigma.exp().reshape(-1, *(1,) * (x.ndim - 1))
        scale = torch.rsqrt(sigma**2 + 1)
        return self._h(scale * (x + sigma * z), log_sigma) - scale * (sigma * x - z)

    def _conditional_error(self, x: Tensor, log_sigma: Tensor, z: Tensor, others: Tensor, position: Tensor) -> Tensor:
        """Return √λ (D(m, C) − x), `(n, *event)`, with the operators of the observations `others` `(n,)`."""
        assert self.conditioning is not None
        noise = preconditioning(self.conditioning.information(x, others, position, self.lap), log_sigma.exp())
        m = noise.corrupt(x, z)
        v, description = noise.inputs(m, self.conditioning.family)
        return noise.error(self._h(v, log_sigma, description.contiguous()), m, x, z)

    def _h(self, *inputs: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return self.network(*inputs).to(inputs[0].dtype)

    def _sum_gradients(self, loss: Tensor) -> Tensor:
        """Sum gradients, loss and requests to stop over all processes, in one message."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        head = torch.stack([loss, torch.full_like(loss, float(self.interruption.should_stop))])
        message = torch.cat([head, *(g.flatten() for g in gradients)])
        self.processes.all_reduce_(message)
        head, *sums = message.split([2, *(g.numel() for g in gradients)])
        for gradient, summed in zip(gradients, sums, strict=True):
            gradient.copy_(summed.reshape(gradient.shape))
        if self.device.type == "cpu":  # reading it from a GPU at every step would stall the GPU
            self.stop = bool(head[1] > 0)
        return head[0]

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        return bool(torch.isfinite(torch.stack(torch._foreach_norm([p.detach() for p in self.parameters]))).all())

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed training needs."""
        tensors: dict[str, Tensor] = {}
        for k, p in enumerate(self.parameters):
            tensors[f"weight.{k}"] = p.detach()
            if self.average:
                tensors[f"average.{k}"] = self.average[k]
            kind = self.kinds[k]
            for name, value in self.optimizers[kind].state[p].items():
                tensors[f"{kind}.{k}.{name}"] = value
        return tensors

    @torch.no_grad()
    def reset(self, state: dict[str, Tensor]) -> None:
        """Return to an earlier state, in place: a captured step refers to its tensors. Missing tensors become 0."""
        for name, t in self.state().items():
            if name in state:
                t.copy_(state[name])
            else:
                t.zero_()

    def make_room(self, batch: int) -> bool:
        """Reduce the memory use after an out-of-memory error; return False if that is impossible.

        The first call frees cached memory, later calls process batches in more pieces.
        """
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if not self._has_retried:  # another process may have used the memory for a moment
            self._has_retried = True
            return True
        self.parts *= 2
        return self.parts <= batch

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load a state that was read from a file."""
        for k, p in enumerate(self.parameters):
            p.copy_(tensors[f"weight.{k}"])
            if self.average:
                # a state that was saved without averaging contains no average: it begins with the weights
                self.average[k].copy_(tensors.get(f"average.{k}", p))
            prefix = f"{self.kinds[k]}.{k}."
            entries = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            # Moments must have the memory layout of their parameter (channels last on a GPU, contiguous in a file):
            # fused Adam ignores strides. The step counter of a captured optimizer is on the device.
            self.optimizers[self.kinds[k]].state[p] = {
                n: t.to(self.device, copy=True) if n == "step" else torch.empty_like(p).copy_(t)
                for n, t in entries.items()
            }

    @torch.no_grad()
    def finish(self) -> None:
        """Copy the averaged weights into the network."""
        for p, average in zip(self.parameters, self.average, strict=False):
            p.copy_(average)
