"""Changes during a run: `stages` change recipe keys from a lap on, `final` trains the last prior after the laps.

    stages: [{lap: 12, train: {steps: 6000}}]
    final: {e_step: {draws: 4}, train: {steps: 40000, ema: 0.9999}, network: {hidden: [128, 256, 384]}}

The final prior is one more lap, number `laps + 1`. It makes new draws for every observation with the prior of the last
lap, and then one long training of the prior alone. The draws carry all information from lap to lap, so the final
network may differ from the network of the laps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from .section import MANY, Section

# defaults of the final lap that differ from those of the other laps
FINAL_E_STEP = {"fresh": 1.0}
FINAL_TRAIN = {"conditioned": 0.0, "measured": 0.0, "schedule": "linear", "restart": True}

EStepChanges = Annotated[
    dict[str, Any], Field(default_factory=dict, description="keys of e_step and their values in this stage")
]
TrainChanges = Annotated[
    dict[str, Any], Field(default_factory=dict, description="keys of train and their values in this stage")
]
NetworkChanges = Annotated[
    dict[str, Any],
    Field(
        default_factory=dict,
        description="keys of network and their values in this stage; a network of another size starts from random "
        "weights",
    ),
]


class Stage(Section):
    """Changes from a lap on, `{lap: 12, train: {steps: 6000}}`."""

    lap: int = Field(ge=1, le=MANY, description="the first lap of the stage")
    e_step: EStepChanges
    train: TrainChanges
    network: NetworkChanges


class Final(Section):
    """The final lap: new draws for all observations, then a training of the prior alone.

    It sets `conditioned: 0` and `measured: 0`, and the learning rate falls to `final_lr`.
    """

    e_step: EStepChanges
    train: TrainChanges
    network: NetworkChanges
    start: str | None = Field(
        None,
        description="folder written by `diffem export --unfinished`: the training of the final prior continues after "
        "its steps. Default: the training begins at step 0",
    )

    def stage(self, lap: int) -> Stage:
        """Return the stage of the final lap, number `lap`."""
        e_step, train = {**FINAL_E_STEP, **self.e_step}, {**FINAL_TRAIN, **self.train}
        return Stage(lap=lap, e_step=e_step, train=train, network=self.network)


def apply_stages(sections: dict[str, dict[str, Any]], stages: Sequence[Stage], lap: int) -> None:
    """Apply the changes of all stages up to `lap` to the sections `e_step`, `train` and `network`, in place."""
    for stage in (stage for stage in stages if stage.lap <= lap):
        if stage.network.get("kind", sections["network"]["kind"]) != sections["network"]["kind"]:
            sections["network"] = {}  # another kind of network has other keys
        for section, changes in (("e_step", stage.e_step), ("train", stage.train), ("network", stage.network)):
            for key, value in changes.items():
                set_key(sections, f"{section}.{key}", value)


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key such as `train.lr` in nested mappings, in place."""
    *path, last = key.split(".")
    for part in path:
        inner = values.get(part)
        values[part] = inner = dict(inner) if isinstance(inner, dict) else {}
        values = inner
    values[last] = value
