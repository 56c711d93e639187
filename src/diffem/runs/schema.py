"""The keys of a recipe: every choice of a run, with its type, default and description."""

from __future__ import annotations

import re
import reprlib
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from ..core.errors import InputError
from ..files.reading import digest
from ..observations import Problem
from .sources import make_problem
from .stages import Final, Stage, apply_stages

MANY = 10_000_000  # more steps, draws or observations at a time than any machine takes: a slip of the pen, or malice
CHECKSUM = "# sha256 of the lines above: "
RUN = "# run: "


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Open(BaseModel):
    """A section whose further keys belong to what `kind` or `source` names, and are checked there."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    def options(self, *known: str) -> dict[str, Any]:
        return {name: value for name, value in self.model_dump().items() if name not in known}


class Data(Open):
    source: str = Field(
        description="digits, manifold, cifar10, fastmri, mri_images; file: a file of Observations.save (path); given: observations passed "
        "from Python; my_module:problem: a function of yours that returns Observations, executed"
    )


class Gaussian(Section):
    rank: int | None = Field(None, ge=1, le=MANY, description="rank of the covariance; full when absent")
    rounds: int | None = Field(
        None,
        ge=1,
        le=MANY,
        description="at most; when absent, until observations set aside are predicted no better, in about ten seconds",
    )
    tolerance: float = Field(1e-7, ge=0)
    observations: int | None = Field(
        None,
        ge=1,
        le=1 << 40,
        description="fit to so many; all, or with rounds absent as many as it takes, when absent",
    )
    final_rounds: int = Field(
        0, ge=0, le=MANY, description="further rounds on all observations, after those on some; full covariance only"
    )

    @model_validator(mode="after")
    def _final(self) -> Gaussian:
        if self.final_rounds and self.rank is not None:
            raise ValueError("final_rounds go with a full covariance: leave rank out, or final_rounds")
        return self


Share = Annotated[float, Field(ge=0, lt=1)]


class Network(Open):
    kind: str = "mlp"


class EStep(Section):
    clean: bool = Field(
        False,
        description="the observations are samples of x themselves: nothing is drawn, M is trained on them as they are",
    )
    method: str = Field(
        "mmps",
        description="how draws are conditioned: mmps with any network; conditional with one that is trained to be told what was measured",
    )
    solver: str = "cg"
    iterations: int = Field(3, ge=1, le=100_000)
    sampler: str = "ddpm2"
    sampler_options: dict[str, float | int] = {}
    steps: int = Field(64, ge=1, le=1_000_000)
    draws: int = Field(1, ge=1, le=100_000, description="posterior draws per observation")
    fresh: float = Field(
        1.0,
        gt=0,
        le=1,
        description="fraction of the observations a lap draws for; the others keep the last lap's draws",
    )
    fresh_from: int = Field(2, ge=2, le=MANY, description="the first lap that draws for that fraction only")
    fresh_decay: float | None = Field(
        None, gt=0, description="laps after which the fraction has halved, falling like 1/lap; it stays when absent"
    )
    shard: int = Field(4096, ge=1, le=MANY, description="observations per file of draws")
    batch: int | None = Field(
        None, ge=1, le=MANY, description="draws made at a time; chosen for the device when absent"
    )
    keep: int | None = Field(None, ge=1, le=MANY, description="laps whose draws stay on disk; all when absent")
    precision: Literal["float32", "tf32", "bf16", "fp16"] | None = Field(
        None, description="of the network while drawing on a GPU; the recipe's when absent"
    )
    redraws: int = Field(2, ge=0, le=1000, description="further tries for a draw that was rejected")
    chi2: float = Field(3.0, gt=0, description="reject above this residual per measured value")
    bound: float | None = Field(
        None,
        gt=0,
        description="reject where |x| exceeds this multiple of the data's scale; |mean| + 8 standard deviations when absent",
    )
    plausible: float | None = Field(
        None,
        gt=1,
        description="reject where the prior's error of denoising the draw exceeds this many medians of its shard; not asked when absent",
    )

    @model_validator(mode="after")
    def _one(self) -> EStep:
        if self.clean and self.draws > 1:
            raise ValueError("with clean observations there is one draw of each, the observation: leave draws out")
        if self.draws % self.together:
            raise ValueError(
                f"draws must be a multiple of the {self.together} picks from one set of particles, got {self.draws}"
            )
        return self

    @property
    def together(self) -> int:
        """Draws that are made in one: picks from one set of particles."""
        return max(1, int(self.sampler_options.get("picks", 1))) if self.sampler == "tds" else 1

    def independent(self, draws: int = 1) -> EStep:
        """The same for so many draws that know nothing of each other: picks from one set of particles would seem too sure."""
        options = {name: value for name, value in self.sampler_options.items() if name != "picks"}
        return self.model_copy(update={"draws": draws, "sampler_options": options})

    def fresh_at(self, lap: int) -> float:
        """The fraction of observations lap draws for."""
        if self.clean or lap < self.fresh_from:
            return 1.0
        # Stochastic approximation: the fractions' sum has no bound, so the start is forgotten; that of their squares has, so noise averages out.
        return self.fresh / (1 + (lap - self.fresh_from) / self.fresh_decay) if self.fresh_decay else self.fresh


class Noise(Section):
    law: Literal["beta", "lognormal"] = Field(
        "beta",
        description="noise levels in training: Beta(3, 3) over log σ from sigma_min to sigma_max, or log σ normal in that range",
    )
    mean: float = Field(-0.5, ge=-100, le=100, description="mean of log σ; lognormal only")
    std: float = Field(1.2, gt=0, le=100, description="standard deviation of log σ; lognormal only")


class Epochs(Section):
    """A number of steps that follows the number of observations (`steps.py`)."""

    epochs: float = Field(gt=0, le=MANY, description="passes over the observations")
    least: int = Field(1, ge=1, le=MANY, description="steps at the least")
    most: int = Field(MANY, ge=1, le=MANY, description="steps at the most")

    @model_validator(mode="after")
    def _limits(self) -> Epochs:
        if self.least > self.most:
            raise ValueError(f"least {self.least} must not exceed most {self.most}")
        return self


# a number or a mapping, told apart before either is checked: errors are then about the one that was meant
Steps = Annotated[
    Annotated[int, Field(ge=1, le=MANY), Tag("number")] | Annotated[Epochs, Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, dict | Epochs) else "number"),
]


class Train(Section):
    steps: Steps = Field(
        description="optimizer steps per lap; {epochs, least, most} lets them follow the number of observations"
    )
    first_steps: Steps | None = Field(
        None, description="steps of the first lap, whose network starts from nothing; as in the others when absent"
    )
    batch: int = Field(256, ge=1, le=MANY)
    lr: float = Field(1e-3, gt=0)
    final_lr: float = Field(0.0, ge=0)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup: int = Field(0, ge=0, le=MANY)
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the averaged weights; none when absent")
    betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    augment: list[str] = []
    noise: Noise = Noise()  # type: ignore[call-arg]
    measured: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the loss on measured values alone: 0 is EM, more needs fewer laps. Right only if operators were "
        "chosen without looking at x or y, and of use only if they differ: left out for Observations(adaptive=True) and for one A",
    )
    measured_until: int | None = Field(
        None, ge=1, le=MANY, description="the last lap with that share; later ones are EM; all have it when absent"
    )
    conditioned: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the examples that is shown with the operator of another observation, for e_step.method: conditional; "
        "0.5 with that method and 0 with others when absent",
    )
    restart: bool = Field(
        True,
        description="whether the optimizer begins anew in every lap, from the averaged weights; otherwise it lives on",
    )
    checkpoint_seconds: float = Field(120.0, gt=0)

    @property
    def conditioned_share(self) -> float:
        """The share of conditioned examples where the network is conditional."""
        return 0.5 if self.conditioned is None else self.conditioned

    def steps_in(self, first: bool) -> int:
        """The steps of a lap, of the first or of another; those of a recipe that a run has resolved (`steps.py`)."""
        steps = self.first_steps if first and self.first_steps is not None else self.steps
        if isinstance(steps, Epochs):
            raise InputError("train.steps follow the number of observations, which is not known here")
        return steps

    def measured_at(self, lap: int) -> float:
        """The share of the loss on measured values in a lap of the run, counted from its own start."""
        return 0.0 if self.measured_until is not None and lap > self.measured_until else self.measured


class Watch(Section):
    held_out: int = Field(64, ge=0, le=MANY, description="observations kept from training, to watch the run with")
    draws: int = Field(16, ge=2, le=100_000, description="posterior draws per held-out observation")
    hidden: float = Field(
        0.1, gt=0, lt=1, description="fraction of the held-out observations' values hidden and predicted"
    )
    samples: int = Field(256, ge=2, le=MANY, description="prior samples per lap")
    worse: float = Field(
        0.05,
        gt=0,
        description="warn when the predictive log-likelihood falls this far, in nats, and further than by chance below its best",
    )
    rejected: float = Field(0.05, gt=0, description="warn when more than this fraction of draws is rejected")


class Recipe(Section):
    name: str
    about: str = ""
    data: Data
    start: str = Field("gaussian", description="'gaussian', or the path of a prior or run to start from")
    laps: int = Field(ge=0, le=100_000)
    seed: int = Field(0, ge=0, lt=1 << 63)
    sigma_min: float = Field(
        1e-3, gt=0, description="lowest noise level of the diffusion, relative to the data's scale"
    )
    sigma_max: float = Field(
        1e2, gt=0, description="highest noise level of the diffusion, relative to the data's scale"
    )
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    gaussian: Gaussian = Gaussian()  # type: ignore[call-arg]
    network: Network = Network()
    e_step: EStep = EStep()  # type: ignore[call-arg]
    train: Train
    watch: Watch = Watch()  # type: ignore[call-arg]
    stages: list[Stage] = Field([], description="changes of e_step, train and network from a lap on")
    final: Final | None = Field(
        None,
        description="after the laps, one more: new draws of all observations and a long training of the prior alone, with changes of e_step, "
        "train and network like those of a stage",
    )

    @model_validator(mode="after")
    def _stages(self) -> Recipe:
        if self.last_lap < 1:
            raise ValueError(f"laps: should be greater than or equal to 1 in a recipe without final, got {self.laps}")
        laps = [stage.lap for stage in self.all_stages]
        if laps != sorted(set(laps)):
            raise ValueError(f"stages: laps must increase, got {laps}")
        for lap in laps:  # the values are checked here, before anything runs
            e_step = self.at(lap).e_step
            if (e_step.shard, e_step.clean) != (self.e_step.shard, self.e_step.clean):
                raise ValueError(f"stages, lap {lap}: e_step.shard and e_step.clean are the same in all laps")
        return self

    @property
    def last_lap(self) -> int:
        """The number of the last lap: that of the final prior if there is one."""
        return self.laps + (self.final is not None)

    @property
    def all_stages(self) -> list[Stage]:
        """The stages, the final one included."""
        return self.stages if self.final is None else [*self.stages, self.final.stage(self.last_lap)]

    def at(self, lap: int) -> Recipe:
        """The recipe as it holds in a lap: with the changes of all stages up to it, and no stages."""
        stages = self.all_stages
        if not stages:
            return self
        kinds: dict[str, type[BaseModel]] = {"e_step": EStep, "train": Train, "network": Network}
        sections = {name: getattr(self, name).model_dump() for name in kinds}
        apply_stages(sections, stages, lap)
        changed = {name: kind.model_validate(sections[name]) for name, kind in kinds.items()}
        return self.model_copy(update={**changed, "laps": self.last_lap, "stages": [], "final": None})

    def network_from(self, lap: int) -> dict[str, Any] | None:
        """The settings of the network that a stage asks for from this lap on; None if none begins here or it asks for none."""
        if not any(stage.lap == lap and stage.network for stage in self.all_stages):
            return None
        return self.at(lap).network.model_dump()

    @property
    def drawing(self) -> EStep:
        """How the last prior is drawn from, for new observations too."""
        return self.at(self.laps + 1).e_step

    @property
    def conditional(self) -> bool:
        """Whether the network is told what was measured, in any lap."""
        stages = [self.at(lap) for lap in (1, *(stage.lap for stage in self.all_stages))]
        return any(stage.train.conditioned or stage.e_step.method == "conditional" for stage in stages)

    @model_validator(mode="after")
    def _sigmas(self) -> Recipe:
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_min {self.sigma_min} must lie below sigma_max {self.sigma_max}")
        return self

    @model_validator(mode="after")
    def _name(self) -> Recipe:
        # it names the folder of a run that is not told where to go
        if not re.fullmatch(r"[^\W_][^/\\\x00-\x1f\x7f]{0,99}", self.name):
            raise ValueError(
                "name must begin with a letter or digit, hold no slashes and have up to 100 characters, "
                f"got {reprlib.repr(self.name)}"
            )
        return self

    @property
    def drawing_precision(self) -> str:
        """What the network computes in while drawing on a GPU."""
        return self.e_step.precision or self.precision

    def problem(self) -> Problem:
        """The observations of the recipe's own data source, and the truth behind them where it is known."""
        return make_problem(self.data.source, self.seed, self.data.options("source"))

    def to_yaml(self) -> str:
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)

    def to_file(self, run: str = "") -> str:
        """The recipe as a run keeps it: with the run's name, and a last line that tells whether the others are still what was written."""
        text = self.to_yaml() + (f"{RUN}{run}\n" if run else "")
        return f"{text}{CHECKSUM}{digest(text.encode())}\n"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # values that happen to be one object are written out each time
        return True
