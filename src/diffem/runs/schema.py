"""The schema of a recipe: its sections, its stages, and the rules between them."""

from __future__ import annotations

import re
import reprlib
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from ..files.reading import digest
from ..observations import Problem
from .recipe_errors import explain
from .section import Section
from .sections import Data, EStep, Gaussian, Network, Train, Watch
from .sources import make_problem
from .stages import Final, Stage, apply_stages

CHECKSUM = "# sha256 of the lines above: "
RUN = "# run: "


class Recipe(Section):
    """A whole recipe."""

    name: str = Field(description="name of the recipe, and of the run folder if none is given")
    about: str = Field("", description="one line for the list of recipes and the report")
    data: Data = Field(description="where the observations come from; further keys depend on the source")
    start: str = Field(
        "gaussian",
        description="'gaussian', or the path of a run, an exported prior or the file of a prior to start from",
    )
    laps: int = Field(ge=0, le=100_000, description="number of laps, each an E-step and an M-step")
    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of all random numbers")
    sigma_min: float = Field(1e-3, gt=0, description="lowest diffusion noise level, relative to the data's scale")
    sigma_max: float = Field(1e2, gt=0, description="highest diffusion noise level, relative to the data's scale")
    precision: Literal["float32", "tf32", "bf16"] = Field("float32", description="precision of the network on a GPU")
    gaussian: Gaussian = Field(
        Gaussian(),  # type: ignore[call-arg]
        description="the Gaussian start, fitted to the observations by EM",
    )
    network: Network = Field(
        Network(),  # type: ignore[call-arg]
        description="the denoiser's network; further keys depend on its kind",
    )
    e_step: EStep = Field(EStep(), description="the E-step: posterior draws for the observations")  # type: ignore[call-arg]
    train: Train = Field(description="the M-step: the denoiser is trained on the draws")
    watch: Watch = Field(
        Watch(),  # type: ignore[call-arg]
        description="the held-out evaluation after each lap",
    )
    stages: list[Stage] = Field([], description="changes of e_step, train and network from a lap on")
    final: Final | None = Field(
        None,
        description="an additional lap after the others: new draws for all observations and a long training of the "
        "prior alone, with changes of e_step, train and network as in a stage",
    )

    @model_validator(mode="after")
    def _stages(self) -> Recipe:
        if self.last_lap < 1:
            raise ValueError(f"laps: should be greater than or equal to 1 in a recipe without final, got {self.laps}")
        laps = [stage.lap for stage in self.stages]
        if laps != sorted(set(laps)):
            raise ValueError(f"stages: laps must increase, got {laps}")
        for lap in (stage.lap for stage in self.all_stages):  # all stages are validated before anything runs
            where = "final" if self.final is not None and lap > self.laps else f"stages, lap {lap}"
            try:
                e_step = self.at(lap).e_step
            except ValidationError as error:
                section = next(name for name, model in _STAGED.items() if model.__name__ == error.title)
                raise ValueError(f"{where}: {explain(error, _STAGED[section], f'{section}.')}") from None
            if (e_step.shard, e_step.clean) != (self.e_step.shard, self.e_step.clean):
                raise ValueError(f"{where}: e_step.shard and e_step.clean must be the same in all laps")
        return self

    @property
    def last_lap(self) -> int:
        """The number of the last lap, including the lap of `final`."""
        return self.laps + (self.final is not None)

    @property
    def all_stages(self) -> list[Stage]:
        """The stages, including that of `final`, which replaces those of later laps."""
        if self.final is None:
            return self.stages
        return [*(stage for stage in self.stages if stage.lap <= self.laps), self.final.stage(self.last_lap)]

    def at(self, lap: int) -> Recipe:
        """Return the recipe of a lap: with the changes of all stages up to it, and without stages."""
        stages = self.all_stages
        if not stages:
            return self
        sections = {name: getattr(self, name).model_dump() for name in _STAGED}
        apply_stages(sections, stages, lap)
        changed = {name: model.model_validate(sections[name]) for name, model in _STAGED.items()}
        return self.model_copy(update={**changed, "laps": self.last_lap, "stages": [], "final": None})

    def network_from(self, lap: int) -> dict[str, Any] | None:
        """Return the network's settings if a stage that begins with this lap changes them; otherwise None."""
        if not any(stage.lap == lap and stage.network for stage in self.all_stages):
            return None
        return self.at(lap).network.model_dump()

    @property
    def drawing(self) -> EStep:
        """The E-step options for posterior draws of the last prior, also for new observations."""
        return self.at(self.laps + 1).e_step

    @property
    def conditional(self) -> bool:
        """Whether the network is conditional in any lap."""
        stages = [self.at(lap) for lap in (1, *(stage.lap for stage in self.all_stages))]
        return any(stage.train.conditioned or stage.e_step.method == "conditional" for stage in stages)

    @model_validator(mode="after")
    def _sigmas(self) -> Recipe:
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_min {self.sigma_min} must lie below sigma_max {self.sigma_max}")
        return self

    @model_validator(mode="after")
    def _name(self) -> Recipe:
        # it is the default name of the run folder
        if not re.fullmatch(r"[^\W_][^/\\\x00-\x1f\x7f]{0,99}", self.name):
            raise ValueError(
                "name must begin with a letter or digit, contain no slashes and have at most 100 characters, "
                f"got {reprlib.repr(self.name)}"
            )
        return self

    @property
    def drawing_precision(self) -> str:
        """The precision of the network in the E-step on a GPU."""
        return self.e_step.precision or self.precision

    def problem(self) -> Problem:
        """Load or simulate the observations of the recipe's data source, with the true x if it is known."""
        return make_problem(self.data.source, self.seed, self.data.options("source"))

    def to_yaml(self) -> str:
        """Return the recipe as YAML, with all defaults."""
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)

    def to_file(self, run: str = "") -> str:
        """Return the text of a run's `recipe.yaml`: the recipe, the name of the run and a checksum."""
        text = self.to_yaml() + (f"{RUN}{run}\n" if run else "")
        return f"{text}{CHECKSUM}{digest(text.encode())}\n"


_STAGED: dict[str, type[BaseModel]] = {"e_step": EStep, "train": Train, "network": Network}  # what stages can change


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # equal objects are written out each time, without YAML references
        return True
