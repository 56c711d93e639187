"""The sections of a recipe, with the type, default and description of each key."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..core.errors import InputError
from ..linalg import SOLVERS
from ..samplers import SAMPLERS
from .schedule import Epochs, Scheduled, Steps, value_at
from .section import MANY, OpenSection, Section

Share = Annotated[float, Field(ge=0, lt=1)]


class Data(OpenSection):
    """Where the observations come from."""

    source: str = Field(
        description="digits, manifold, cifar10, fastmri, mri_images; file: a file written by Observations.save, or a "
        ".npy array with its noise level (data.path, data.sigma); given: observations passed to diffem.fit; "
        "my_module:problem: your function that returns Observations, which is executed"
    )


class Gaussian(Section):
    """The Gaussian start."""

    rank: int | None = Field(
        None,
        ge=1,
        le=MANY,
        description="rank of the covariance, below the number of values of x. Default: full covariance",
    )
    rounds: int | None = Field(
        None,
        ge=1,
        le=MANY,
        description="largest number of EM rounds. Default: until the prediction of held-out observations stops "
        "improving, at most about ten seconds",
    )
    tolerance: float = Field(
        1e-7,
        ge=0,
        description="stop when a round improves the log-likelihood by less than this, in nats per measured value",
    )
    observations: int | None = Field(
        None,
        ge=1,
        le=1 << 40,
        description="number of observations to fit. Default: all if rounds is given, otherwise as many as the time "
        "limit allows",
    )
    final_rounds: int = Field(
        0,
        ge=0,
        le=MANY,
        description="additional rounds on all observations, after the rounds on some of them; full covariance only",
    )

    @model_validator(mode="after")
    def _final(self) -> Gaussian:
        if self.final_rounds and self.rank is not None:
            raise ValueError("final_rounds needs a full covariance: remove rank or final_rounds")
        return self


class Network(OpenSection):
    """The denoiser's network."""

    kind: str = Field(
        "mlp",
        description="mlp for vectors, tables and small images; residual: the same with residual blocks; conv1d for "
        "time series (channels, length); unet for images",
    )


class EStep(Section):
    """The E-step. Its keys form four groups: posterior, sampler, screening, storage."""

    # posterior
    clean: bool = Field(
        False,
        description="the observations are noise-free samples of x: the M-step is trained on them, and nothing is drawn",
    )
    method: str = Field(
        "mmps",
        description="posterior method: mmps works with any network; conditional trains a network whose input includes "
        "the observation",
    )
    solver: str = Field("cg", description=f"solver of the linear systems in mmps: {', '.join(SOLVERS)}")
    iterations: int = Field(
        3,
        ge=1,
        le=100_000,
        description="iterations of the solver; each costs one vector–Jacobian product (bicgstab: two)",
    )
    draws: int = Field(1, ge=1, le=100_000, description="posterior draws per observation")
    fresh: Scheduled = Field(
        1.0,
        description="fraction of the observations that a lap makes new draws for; the other observations keep their "
        "draws. {value, first, last, halve}: only in the laps from first (at least 2) to last, halved after `halve` "
        "laps",
    )
    # sampler
    sampler: str = Field("ddpm2", description=f"one of {', '.join(SAMPLERS)}")
    sampler_options: dict[str, float | int] = Field({}, description="options of the sampler, by name")
    steps: int = Field(64, ge=1, le=1_000_000, description="number of sampling steps")
    precision: Literal["float32", "tf32", "bf16", "fp16"] | None = Field(
        None, description="precision of the network in the E-step on a GPU. Default: the recipe's precision"
    )
    # screening
    chi2: float = Field(3.0, gt=0, description="reject draws whose residual χ² per measured value exceeds this")
    bound: float | None = Field(
        None,
        gt=0,
        description="reject draws in which |x| exceeds this multiple of the data's scale. Default: |mean| + 8 standard "
        "deviations of the Gaussian start",
    )
    plausible: float | None = Field(
        None,
        gt=1,
        description="reject draws whose denoising error exceeds this multiple of the median of their shard. Default: "
        "no such test",
    )
    redraws: int = Field(2, ge=0, le=1000, description="number of times a rejected draw is redrawn")
    # storage
    shard: int = Field(4096, ge=1, le=MANY, description="observations per file of draws")
    batch: int | None = Field(
        None, ge=1, le=MANY, description="draws computed at a time. Default: chosen for the device"
    )
    keep: int | None = Field(
        None, ge=1, le=MANY, description="number of laps whose draws stay on disk. Default: all laps"
    )

    @model_validator(mode="after")
    def _consistent(self) -> EStep:
        if self.fresh == 0:
            raise ValueError("fresh should be greater than 0, got 0")
        if self.clean and self.draws > 1:
            raise ValueError("clean observations are their own draws, one of each: remove draws")
        if self.draws % self.together:
            raise ValueError(
                f"draws must be a multiple of the {self.together} picks from one particle set (sampler_options.picks), "
                f"got {self.draws}"
            )
        return self

    @property
    def together(self) -> int:
        """The number of draws that are picked from one particle set; 1 for samplers without particles."""
        return max(1, int(self.sampler_options.get("picks", 1)))

    def independent(self, draws: int = 1) -> EStep:
        """Return a copy that makes independent draws.

        Several picks from one particle set are correlated, and intervals computed from them are too narrow.
        """
        options = {name: value for name, value in self.sampler_options.items() if name != "picks"}
        return self.model_copy(update={"draws": draws, "sampler_options": options})

    def fresh_at(self, lap: int) -> float:
        """Return the fraction of the observations that get new draws in a lap. Lap 1 has no earlier draws to keep."""
        return 1.0 if self.clean else value_at(self.fresh, lap, outside=1.0, earliest=2)


class Noise(Section):
    """The distribution of the diffusion noise levels in training."""

    law: Literal["beta", "lognormal"] = Field(
        "beta",
        description="Beta(3, 3) over log σ between sigma_min and sigma_max (beta), or log σ normal and restricted to "
        "that range (lognormal)",
    )
    mean: float = Field(-0.5, ge=-100, le=100, description="mean of log σ; lognormal only")
    std: float = Field(1.2, gt=0, le=100, description="standard deviation of log σ; lognormal only")


class Train(Section):
    """The M-step."""

    steps: Steps = Field(
        description="optimizer steps per lap; {epochs, least, most} makes them proportional to the number of "
        "observations"
    )
    first_steps: Steps | None = Field(
        None,
        description="optimizer steps of the first lap, whose network starts from random weights. Default: as in other "
        "laps",
    )
    batch: int = Field(256, ge=1, le=MANY, description="examples per optimizer step")
    optimizer: Literal["adam", "muon"] = Field(
        "adam",
        description="adam, or muon for the weights of layers (Adam for biases): fewer steps for U-Nets, but longer "
        "steps for MLPs with small batches",
    )
    lr: float = Field(1e-3, gt=0, description="learning rate at the start of a lap")
    final_lr: float = Field(0.0, ge=0, description="learning rate at the end of a lap, unless the schedule is constant")
    schedule: Literal["linear", "cosine", "constant"] = Field(
        "linear", description="decay of the learning rate: linear, cosine or constant"
    )
    warmup: int = Field(0, ge=0, le=MANY, description="optimizer steps over which the learning rate rises from 0")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the averaged weights. Default: no averaging")
    betas: tuple[Share, Share] = Field((0.9, 0.999), description="decay rates of Adam's two moments")
    weight_decay: float = Field(0.0, ge=0, description="weight decay: in the loss (adam), or apart from it (muon)")
    augment: list[str] = Field(
        [], description="augmentations of images that leave their distribution unchanged: hflip, crop, hue"
    )
    noise: Noise = Field(
        Noise(),  # type: ignore[call-arg]
        description="distribution of the diffusion noise levels in training",
    )
    measured: Scheduled = Field(
        0.0,
        description="weight of the loss on measured values: 0 is EM, a larger weight needs fewer laps. It is unbiased "
        "only if the operators were chosen independently of x and y, and useful only if they differ: the run sets it "
        "to 0 for Observations(adaptive=True) and for a single A. {value, first, last, halve}: only in the laps from "
        "first to last",
    )
    conditioned: float | None = Field(
        None,
        ge=0,
        le=1,
        description="fraction of the examples that are conditioned on the operator of another observation, for "
        "e_step.method: conditional. Default: 0.5 with that method, 0 otherwise",
    )
    restart: bool = Field(
        True,
        description="start every lap with a new optimizer and the averaged weights; false: the optimizer continues",
    )
    checkpoint_seconds: float = Field(120.0, gt=0, description="seconds between checkpoints of the training")

    @property
    def conditioned_share(self) -> float:
        """The fraction of conditioned examples of a conditional network."""
        return 0.5 if self.conditioned is None else self.conditioned

    def steps_in(self, first: bool) -> int:
        """Return the optimizer steps of the first lap or of a later one. The recipe must be resolved (`steps.py`)."""
        steps = self.first_steps if first and self.first_steps is not None else self.steps
        if isinstance(steps, Epochs):
            raise InputError("train.steps depends on the number of observations, which is unknown here")
        return steps

    def measured_at(self, lap: int) -> float:
        """Return the weight of the loss on measured values in a lap, counted from the start of the run."""
        return value_at(self.measured, lap, outside=0.0)


class Watch(Section):
    """The held-out evaluation after each lap, and its limits for warnings."""

    held_out: int = Field(64, ge=0, le=MANY, description="observations excluded from training, used for evaluation")
    held_out_share: float = Field(
        1.0, gt=0, le=1, description="at most this fraction of the observations is held out, for small sets of them"
    )
    draws: int = Field(
        16, ge=2, le=100_000, description="posterior draws per held-out observation; 8 or more to compare laps reliably"
    )
    hidden: float = Field(
        0.1, gt=0, lt=1, description="fraction of the held-out observations' values that are hidden and predicted"
    )
    samples: int = Field(256, ge=2, le=MANY, description="prior samples per lap")
    worse: float = Field(
        0.05,
        gt=0,
        description="warn if the predictive log-likelihood falls below its best lap by more than this, in nats, and "
        "by more than chance explains",
    )
    rejected: float = Field(0.05, gt=0, description="warn if more than this fraction of the draws is rejected")
