"""Recipe values that depend on the lap, and numbers of steps that depend on the number of observations.

    e_step: {fresh: {value: 0.5, first: 6, halve: 4}}
    train: {measured: {value: 0.8, last: 31}, steps: {epochs: 60, least: 1000, most: 20000}}

Both kinds of value may also be given as one number.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag, model_validator

from .section import MANY, Section


class Schedule(Section):
    """A value that applies to some laps only. In the other laps it is 1 for `fresh` and 0 for `measured`."""

    value: float = Field(ge=0, le=1, description="value in lap `first`, and in all laps up to `last` without `halve`")
    first: int | None = Field(None, ge=1, le=MANY, description="first lap with this value. Default: the earliest lap")
    last: int | None = Field(None, ge=1, le=MANY, description="last lap with this value. Default: the last lap")
    halve: float | None = Field(
        None,
        gt=0,
        description="number of laps after which the value has halved; it decreases like 1/lap. Default: never",
    )

    @model_validator(mode="after")
    def _order(self) -> Schedule:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ValueError(f"first {self.first} must not exceed last {self.last}")
        return self

    def at(self, lap: int, outside: float, earliest: int = 1) -> float:
        """Return the value in a lap.

        Args:
            lap: The lap, counted from the start of the run.
            outside: The value before `first` and after `last`.
            earliest: The earliest lap that the schedule can change.
        """
        first = max(self.first or earliest, earliest)
        if lap < first or (self.last is not None and lap > self.last):
            return outside
        # Robbins–Monro step sizes: their sum diverges, so the start is forgotten; the sum of their squares converges,
        # so noise averages out
        return self.value / (1 + (lap - first) / self.halve) if self.halve else self.value


class Epochs(Section):
    """A number of optimizer steps that is proportional to the number of observations (`steps.py`)."""

    epochs: float = Field(gt=0, le=MANY, description="passes over the observations")
    least: int = Field(1, ge=1, le=MANY, description="smallest number of steps")
    most: int = Field(MANY, ge=1, le=MANY, description="largest number of steps")

    @model_validator(mode="after")
    def _limits(self) -> Epochs:
        if self.least > self.most:
            raise ValueError(f"least {self.least} must not exceed most {self.most}")
        return self


# The discriminator decides between number and mapping before either is validated: errors then describe the one that
# the user wrote.
_KIND = Discriminator(lambda value: "mapping" if isinstance(value, dict | Section) else "number")
TAGS = ("number", "mapping")  # they are part of the location of pydantic's errors

Steps = Annotated[Annotated[int, Field(ge=1, le=MANY), Tag("number")] | Annotated[Epochs, Tag("mapping")], _KIND]
Scheduled = Annotated[Annotated[float, Field(ge=0, le=1), Tag("number")] | Annotated[Schedule, Tag("mapping")], _KIND]


def largest(scheduled: float | Schedule) -> float:
    """Return the largest value of a schedule, or the number itself."""
    return scheduled.value if isinstance(scheduled, Schedule) else scheduled


def value_at(scheduled: float | Schedule, lap: int, outside: float, earliest: int = 1) -> float:
    """Return the value of a number or schedule in a lap; see `Schedule.at` for the arguments."""
    schedule = scheduled if isinstance(scheduled, Schedule) else Schedule(value=scheduled)  # type: ignore[call-arg]
    return schedule.at(lap, outside, earliest)
