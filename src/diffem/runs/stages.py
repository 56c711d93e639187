"""What changes during a run: `stages` set keys of the recipe from a lap on, `final` trains the last prior after the laps.

    stages: [{lap: 12, train: {steps: 6000}}]
    final: {e_step: {draws: 4}, train: {steps: 40000, ema: 0.9999}, network: {hidden: [128, 256, 384]}}

The final prior is one more lap, number `laps + 1`: new draws for every observation, by the prior of the laps, and one long training of the
prior alone. Draws carry what was learned from lap to lap, so its network may be another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# Keys of the final stage that differ from the laps' unless it sets them.
FINAL_E_STEP = {"fresh": 1.0, "fresh_decay": None}
FINAL_TRAIN = {"conditioned": 0.0, "measured": 0.0, "schedule": "linear", "restart": True}

EStepChanges = Annotated[dict[str, Any], Field(description="keys of e_step and their values in this stage")]
TrainChanges = Annotated[dict[str, Any], Field(description="keys of train and their values in this stage")]
NetworkChanges = Annotated[
    dict[str, Any],
    Field(
        description="keys of network and their values in this stage; a network of another size starts from random weights"
    ),
]


class Stage(BaseModel):
    """Changes from a lap on, `{lap: 12, train: {steps: 6000}}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    lap: int = Field(ge=1, le=10_000_000, description="the first lap they hold for")
    e_step: EStepChanges = {}
    train: TrainChanges = {}
    network: NetworkChanges = {}


class Final(BaseModel):
    """The last prior: all draws anew, then the prior alone (`conditioned: 0`, `measured: 0`) with a rate that falls to `final_lr`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    e_step: EStepChanges = {}
    train: TrainChanges = {}
    network: NetworkChanges = {}

    def stage(self, lap: int) -> Stage:
        """The same as a stage that begins with `lap`."""
        e_step, train = {**FINAL_E_STEP, **self.e_step}, {**FINAL_TRAIN, **self.train}
        return Stage(lap=lap, e_step=e_step, train=train, network=self.network)


def apply_stages(sections: dict[str, dict[str, Any]], stages: Sequence[Stage], lap: int) -> None:
    """Change the sections `e_step`, `train` and `network` of a recipe, in place, as the stages up to `lap` ask."""
    for stage in (stage for stage in stages if stage.lap <= lap):
        if stage.network.get("kind", sections["network"]["kind"]) != sections["network"]["kind"]:
            sections["network"] = {}  # the keys of one kind of network mean nothing to another
        for section, changes in (("e_step", stage.e_step), ("train", stage.train), ("network", stage.network)):
            for key, value in changes.items():
                set_key(sections, f"{section}.{key}", value)


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key with its sections, like `train.lr`."""
    *path, last = key.split(".")
    for part in path:
        inner = values.get(part)
        values[part] = inner = dict(inner) if isinstance(inner, dict) else {}
        values = inner
    values[last] = value
