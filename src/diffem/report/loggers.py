"""Log metrics, losses and pictures to TensorBoard or Weights & Biases after each lap.

Both packages are optional and imported only if they are requested. The run folder records which laps were logged, so a
resumed run, or a finished run that is fitted again with a logger, logs the missing laps. If a logger fails, the run
prints a warning and continues without it.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..core.errors import InputError, warn
from ..files.reading import read_json
from ..files.writing import write_json
from ..runs.lap_arrays import read_lap_array, read_losses
from ..runs.lap_metrics import METRICS, with_parameters
from ..runs.rundir import RunDir
from . import pictures

LOGGED = "logged.json"  # in the run folder: the last logged lap of each logger
HIDDEN = {metric.key for metric in METRICS if not metric.logged}


class Logger(Protocol):
    """Interface of a logger."""

    def measures(self, lap: int, values: dict[str, float]) -> None:
        """Log the metrics of a lap."""

    def losses(self, steps: list[int], losses: list[float]) -> None:
        """Log the training loss at optimizer steps, counted over all laps."""

    def picture(self, lap: int, name: str, image: np.ndarray) -> None:
        """Log a picture, uint8 `(height, width, 3)`."""

    def close(self) -> None:
        """Write buffered data and close the logger."""


class TensorBoard:
    """Event files in the folder `tensorboard` of the run: `tensorboard --logdir runs/mine`."""

    def __init__(self, run: RunDir) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        self.writer = module.SummaryWriter(str(run.path / "tensorboard"))

    def measures(self, lap: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"lap/{name}", value, lap)

    def losses(self, steps: list[int], losses: list[float]) -> None:
        for step, loss in zip(steps, losses, strict=True):
            self.writer.add_scalar("training/loss", loss, step)

    def picture(self, lap: int, name: str, image: np.ndarray) -> None:
        self.writer.add_image(name, image, lap, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of the project WANDB_PROJECT, by default `diffem`, with the recipe as its configuration.

    A resumed diffem run resumes the same run in Weights & Biases.
    """

    def __init__(self, run: RunDir) -> None:
        self.wandb = importlib.import_module("wandb")
        name = hashlib.sha256(f"{run.info().get('name', '')} {run.path.absolute()}".encode()).hexdigest()[:16]
        recipe = run.recipe()
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "diffem"),
            name=run.path.absolute().name,
            id=name,
            resume="allow",
            dir=str(run.path),
            config=recipe.model_dump(mode="json"),
        )
        # two axes: laps, and optimizer steps over all laps
        self.run.define_metric("lap")
        self.run.define_metric("step")
        self.run.define_metric("lap/*", step_metric="lap")
        self.run.define_metric("training/*", step_metric="step")

    def measures(self, lap: int, values: dict[str, float]) -> None:
        self.run.log({"lap": lap, **{f"lap/{name}": value for name, value in values.items()}})

    def losses(self, steps: list[int], losses: list[float]) -> None:
        for step, loss in zip(steps, losses, strict=True):
            self.run.log({"step": step, "training/loss": loss})

    def picture(self, lap: int, name: str, image: np.ndarray) -> None:
        self.run.log({"lap": lap, f"lap/{name}": self.wandb.Image(image)})

    def close(self) -> None:
        self.run.finish()


# name: class, the module it needs, the extra that installs it
LOGGERS: dict[str, tuple[Callable[[RunDir], Logger], str, str]] = {
    "tensorboard": (TensorBoard, "torch.utils.tensorboard", "tensorboard"),
    "wandb": (WeightsAndBiases, "wandb", "wandb"),
}


def require_loggers(names: Iterable[str]) -> list[str]:
    """Validate names of loggers and remove duplicates.

    Raises:
        InputError: If a name is unknown or its package is not installed.
    """
    chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    for name in chosen:
        if name not in LOGGERS:
            raise InputError(f"unknown logger {name!r}; known: {', '.join(LOGGERS)}")
        _, module, extra = LOGGERS[name]
        try:
            importlib.import_module(module)
        except ImportError:
            raise InputError(f"the logger {name} is not installed: pip install 'diffem[{extra}]'") from None
    return chosen


class RunLoggers:
    """Log the laps of a run.

    Args:
        names: Names of loggers, validated by `require_loggers`.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.run, self.names = RunDir(folder), names
        self._open: dict[str, Logger] = {}

    def write(self) -> None:
        """Log every finished lap that has not been logged."""
        for name in list(self.names):
            try:
                self._write(name)
            except Exception as error:  # errors of other packages, or of the network, must not end the run
                self.names.remove(name)
                warn(f"the logger {name} failed: {type(error).__name__}: {error}; the run continues without it")

    def _write(self, name: str) -> None:
        last = self.run.laps_done()
        laps = range(self._logged().get(name, -1) + 1, last + 1)
        if not laps:
            return
        if name not in self._open:
            self._open[name] = LOGGERS[name][0](self.run)
        logger = self._open[name]
        for lap in laps:
            logger.measures(lap, _numbers(self.run.lap_metrics(lap)))
            done, losses = read_losses(self.run, [lap])
            before, _ = read_losses(self.run, range(1, lap))
            logger.losses([int(step + (before[-1] if before else 0)) for step in done], losses)
            for picture, png in _pictures(self.run, lap).items():
                logger.picture(lap, picture, _pixels(png))
            write_json(self.run.path / LOGGED, {**self._logged(), name: lap})

    def _logged(self) -> dict[str, int]:
        file = self.run.inside(self.run.path / LOGGED)
        try:
            logged = read_json(file) if file.is_file() else {}
        except InputError:  # damaged: all laps are logged again
            logged = {}
        return {k: v for k, v in logged.items() if isinstance(v, int)} if isinstance(logged, dict) else {}

    def close(self) -> None:
        """Close all loggers."""
        for name, logger in self._open.items():
            try:
                logger.close()
            except Exception as error:
                warn(f"the logger {name} could not be closed: {type(error).__name__}: {error}")
        self._open.clear()


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics of a lap that are numbers."""
    numbers = {k: v for k, v in with_parameters(metrics).items() if _is_number(v)}
    return {k: float(v) for k, v in numbers.items() if k not in HIDDEN and math.isfinite(v)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pictures(run: RunDir, lap: int) -> dict[str, bytes]:
    """Pictures of prior samples and posterior draws, as in the report; PNG files by name."""
    samples, draws = (read_lap_array(run, lap, f"{name}.npy") for name in ("samples", "posterior"))
    if pictures.is_image(samples[0]):
        return {"samples": pictures.grid(samples[:64], columns=8), "posterior": pictures.posterior(None, draws)}
    return {"samples": pictures.marginals({f"lap {lap}": samples}), "posterior": pictures.intervals(draws)}


def _pixels(png: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
