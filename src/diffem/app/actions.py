"""What the page does, apart from the page: plain functions of a run, its laps and its observations.

Everything a request can ask for passes through here and is checked here: how many, how long, which lap, which observation. No function takes
a path from a request; the one file a visitor can hand in arrives as its content.
"""

from __future__ import annotations

import io
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Observations
from ..data.sources import Problem
from ..em.expectation import condition_like
from ..em.fit import load
from ..em.watch import split
from ..errors import InputError
from ..operators import Blur, Downsample, Mask, Operator
from ..priors import GaussianPrior, Prior
from ..randomness import Stream
from ..report import pictures
from ..runs.arrays import array_of
from ..runs.files import read_array, read_json
from ..runs.rundir import RunDir

# The most one request may ask for: the page answers one at a time.
LIMITS = {"samples": 256, "draws": 64, "steps": 1024, "seed": (1 << 31) - 1}
UPLOAD_PIXELS = 1 << 26  # beyond this a picture is not even decoded
BATCH = 64  # samples drawn at a time


class Viewer:
    """A run as it is looked at: finished laps, their priors, the observations behind it.

    path: the run's folder. observations: a file written by `Observations.save`, for runs whose observations came from Python; such a run
    does not keep them.
    """

    def __init__(
        self, path: str | os.PathLike[str], observations: Path | None = None, device: torch.device | str | None = None
    ) -> None:
        self.run = RunDir(path)
        self.recipe = self.run.recipe()
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._file = observations
        self._problem: Problem | None = None
        self.prior: Callable[[int], Prior] = lru_cache(maxsize=4)(self._load)

    @property
    def last(self) -> int:
        """The last finished lap, −1 while there is none."""
        return self.run.laps_done()

    def _load(self, lap: int) -> Prior:
        return load(self.run.path, lap, self.device)

    def check_lap(self, lap: Any) -> int:
        last = self.last
        if last < 0:
            raise InputError("no lap of this run is finished yet; look again in a while")
        return whole(lap, "lap", 0, last)

    @property
    def problem(self) -> Problem | None:
        """The observations, from the file or the recipe's source; None where the run was given them and they are not here."""
        if self._problem is None and self._file is not None:
            self._problem = Problem(Observations.load(self._file))
        elif self._problem is None and self.recipe.data.source != "given":
            self._problem = self.recipe.problem()
        return self._problem

    def shown(self) -> list[int]:
        """Observations to choose from: the held-out ones first, which training never saw."""
        if self.problem is None:
            return []
        train, held = split(len(self.problem.obs), min(self.recipe.watch.held_out, len(self.problem.obs) - 1))
        return [*held.tolist(), *train[: 256 - len(held)].tolist()]

    @property
    def event_shape(self) -> tuple[int, ...]:
        if self.problem is not None:
            return self.problem.obs.x_shape
        return tuple(self.stored(0, "samples").shape[1:])

    @property
    def range(self) -> tuple[float, float]:
        """The values of x that are black and white."""
        if self._file is None and self.problem is not None and self.problem.range is not None:
            return self.problem.range
        return pictures.limits(self.stored(max(self.last, 0), "samples"))

    def stored(self, lap: int, name: str) -> np.ndarray:
        """What the run itself drew after a lap: `samples` `(n, *event)` or `posterior` `(draws, observations, *event)`."""
        if name not in ("samples", "posterior"):
            raise InputError(f"a lap keeps samples and posterior, not {name!r}")
        return read_array(self.run.lap(self.check_lap(lap)) / f"{name}.npy")


def whole(value: Any, name: str, low: int, high: int) -> int:
    """An integer between `low` and `high`, or a readable refusal."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if number != number or number != int(number) or not low <= number <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
    return int(number)


def real(value: Any, name: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise InputError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
    return number


# prior ---------------------------------------------------------------------------------------------------------------


def prior_samples(viewer: Viewer, lap: Any, n: Any = 36, steps: Any = 64, seed: Any = 0) -> Tensor:
    """Samples of a lap's prior, `(n, *event)`; those of the Gaussian start need no steps."""
    n, steps = whole(n, "samples", 1, LIMITS["samples"]), whole(steps, "steps", 1, LIMITS["steps"])
    seed = whole(seed, "seed", 0, LIMITS["seed"])
    prior = viewer.prior(viewer.check_lap(lap))
    if isinstance(prior, GaussianPrior):
        z = Stream(seed, "app gaussian").normal(torch.arange(n), prior.event_shape, dtype=prior.mean.dtype)
        return prior.exact_sample(z.to(prior.mean)).cpu()
    return prior.sample(n, steps=steps, seed=seed, batch_size=BATCH, progress=False).cpu()


# observations --------------------------------------------------------------------------------------------------------


@dataclass
class Observed:
    """One observation, with the truth behind it where it is known, `(*event)`."""

    obs: Observations
    truth: Tensor | None = None


def observation(viewer: Viewer, index: Any) -> Observed:
    """Observation `index` of the run."""
    problem = viewer.problem
    if problem is None:
        raise InputError(
            "this run was given its observations from Python and does not keep them; "
            "save them with obs.save('obs.safetensors') and start the app with --observations obs.safetensors"
        )
    k = whole(index, "observation", 0, len(problem.obs) - 1)
    return Observed(problem.obs[k : k + 1], None if problem.reference is None else problem.reference[k])


def image_shape(event_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of a sample that is an image."""
    if len(event_shape) == 2 and min(event_shape) >= 4:
        return 1, *event_shape
    if len(event_shape) == 3 and event_shape[0] in (1, 2, 3) and min(event_shape[1:]) >= 4:
        return event_shape[0], event_shape[1], event_shape[2]
    raise InputError(
        f"the samples of this run have shape {event_shape}: they are no images, so no picture can stand for one"
    )


def read_upload(
    data: bytes | None, event_shape: tuple[int, ...], levels: tuple[float, float], invert: bool = False
) -> Tensor:
    """A picture's file (PNG, JPEG, …) or a `.npy` array as a sample, `(*event)`.

    A picture is cut to the sample's proportions about its centre, resized, made grey or coloured as samples are, and black and white become
    `levels`. An array must have the sample's shape and is taken as it is.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not data:
        raise InputError("choose a file first: a picture, or a .npy array of the shape of a sample")
    channels, height, width = image_shape(event_shape)
    if data[:6] == b"\x93NUMPY":
        return _array(data, event_shape)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # sizes are judged below
            opened = Image.open(io.BytesIO(data))
        with opened as file:
            if file.width * file.height > UPLOAD_PIXELS:
                raise InputError(
                    f"the picture has {file.width}×{file.height} pixels; at most {UPLOAD_PIXELS >> 20} million are read"
                )
            image = ImageOps.exif_transpose(file).convert("RGB" if channels == 3 else "L")
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError("this file is no picture that can be read; PNG, JPEG, WebP or a .npy array, please") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"the picture is damaged: {error}") from None
    image = ImageOps.fit(
        image, (width, height), Image.Resampling.BOX if image.width >= width else Image.Resampling.BICUBIC
    )
    grey = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
    grey = 1 - grey if invert else grey
    low, high = levels
    if channels == 2:  # a complex image without phase: black is zero
        return torch.stack([high * grey, torch.zeros_like(grey)])
    x = low + (high - low) * grey
    return (x.movedim(-1, 0) if channels == 3 else x).reshape(event_shape)


def _array(data: bytes, event_shape: tuple[int, ...]) -> Tensor:
    array = array_of(data, "the uploaded file")
    if array.dtype.kind not in "fiu" or tuple(array.shape) != event_shape:
        raise InputError(
            f"a sample is an array of real numbers of shape {event_shape}, got {array.dtype} of shape {array.shape}"
        )
    x = torch.from_numpy(array.astype(np.float32))
    if not torch.isfinite(x).all():
        raise InputError("the array holds values that are not finite")
    return x


OPERATORS = ("mask", "blur", "downsample")


def factors(event_shape: tuple[int, ...]) -> list[int]:
    """By how much images of this shape can be made smaller."""
    _, height, width = image_shape(event_shape)
    return [f for f in (2, 4, 8) if height % f == 0 and width % f == 0 and min(height, width) // f >= 2]


def make_operator(
    kind: str, event_shape: tuple[int, ...], *, missing: Any = 0.5, width: Any = 1.0, factor: Any = 2, seed: Any = 0
) -> Operator:
    """mask: a fraction `missing` of the pixels; blur: a Gaussian of standard deviation `width` pixels; downsample: by `factor`."""
    _, height, columns = image_shape(event_shape)
    if kind == "mask":
        stream = Stream(whole(seed, "seed", 0, LIMITS["seed"]), "app mask")
        mask = stream.uniform(torch.zeros(1, dtype=torch.int64), (height, columns)) >= real(
            missing, "the fraction missing", 0, 1
        )
        if not mask.any():
            raise InputError("no pixel is left: choose a smaller fraction")
        return Mask(mask.reshape(1, *(1,) * (len(event_shape) - 2), height, columns))
    if kind == "blur":
        std = real(width, "the width of the blur", 0.1, min(height, columns) / 4)
        reach = min(math.ceil(3 * std), (min(height, columns) - 1) // 2)
        profile = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / std) ** 2)
        kernel = torch.outer(profile, profile)
        return Blur(kernel / kernel.sum(), "reflect")
    if kind == "downsample":
        allowed = factors(event_shape)
        if factor not in allowed:
            raise InputError(
                f"images of {height}×{columns} can be reduced by {', '.join(map(str, allowed)) or 'nothing'}, got {factor!r}"
            )
        return Downsample(int(factor), "mean")
    raise InputError(f"unknown operator {kind!r}; known: {', '.join(OPERATORS)}")


def corrupt(x: Tensor, A: Operator, sigma: Any = 0.1, seed: Any = 0) -> Observed:
    """y = A x + noise for one sample x `(*event)`."""
    sigma = real(sigma, "the noise", 1e-4, 10)
    y = A(x[None])
    z = Stream(whole(seed, "seed", 0, LIMITS["seed"]), "app noise").normal(
        torch.zeros(1, dtype=torch.int64), tuple(y.shape[1:])
    )
    return Observed(Observations(y + sigma * z, A, sigma=sigma), x)


# posterior -----------------------------------------------------------------------------------------------------------


@dataclass
class Conditioned:
    """Posterior draws of one observation and what they amount to."""

    seen: Tensor  # (*event) or (*measurement), NaN where nothing was measured
    draws: Tensor  # (draws, *event)
    residual: Tensor  # (*measurement): y − A mean in standard deviations of the noise, NaN where nothing was measured
    chi2: Tensor  # (draws,) residual of each draw per measured value
    truth: Tensor | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def std(self) -> Tensor:
        return self.draws.std(0, correction=0)


def condition(
    viewer: Viewer, lap: Any, observed: Observed, draws: Any = 16, steps: Any = 64, seed: Any = 0
) -> Conditioned:
    """Draw x given one observation under a lap's prior, by the recipe's own posterior method."""
    draws, steps = whole(draws, "draws", 2, LIMITS["draws"]), whole(steps, "steps", 1, LIMITS["steps"])
    seed = whole(seed, "seed", 0, LIMITS["seed"])
    prior = viewer.prior(viewer.check_lap(lap))
    obs = observed.obs.to(prior.mean)
    if obs.x_shape != prior.event_shape:
        raise InputError(f"the observation is of {obs.x_shape}, the samples of this run have shape {prior.event_shape}")
    if isinstance(prior, GaussianPrior):
        x = torch.stack([prior.draw_posterior(obs, seed=seed, draw=d) for d in range(draws)])
    else:
        posterior = condition_like(prior, obs, viewer.recipe.e_step)
        x = posterior.sample(draws, steps=steps, seed=seed, batch_size=BATCH, progress=False)
    chi2 = torch.cat([obs.chi2(d) for d in x])
    scale = obs.cov.diagonal(tuple(obs.y.shape[1:])).sqrt()
    residual = (obs.residual(x.mean(0)) / scale)[0]
    measured = obs.measured
    if measured is not None:
        residual = torch.where(measured.expand_as(obs.y)[0], residual, torch.nan)
    notes = []
    if float(chi2.median()) > 2:
        notes.append(
            "The draws miss the observation: try more steps, or a noise level nearer to what the prior was trained with."
        )
    truth = None if observed.truth is None else observed.truth.cpu()
    return Conditioned(seen(obs).cpu(), x[:, 0].cpu(), residual.cpu(), chi2.cpu(), truth, notes)


def seen(obs: Observations) -> Tensor:
    """One observation as a picture: y itself where it is an image, else Aᵀy; NaN where nothing was measured."""
    y = obs.y[0]
    return y if obs.measured is None and pictures.is_image(y.cpu().numpy()) else obs.backprojected()[0]


# the run as it goes --------------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """Where a run stands."""

    status: str  # running, finished
    last: int  # last finished lap
    laps: int  # that the recipe asks for
    stage: str  # what the lap in progress is doing
    quiet: float  # seconds since a file was written
    metrics: list[dict[str, Any]]
    warnings: list[tuple[int, str]]


def progress(viewer: Viewer) -> Progress:
    """Read how far the run is, from its files alone."""
    run = viewer.run
    info, metrics = run.info(), run.metrics()
    last = len(metrics) - 1
    recipe = run.recipe()  # read again: a run may have been asked for more laps
    newest = max((f.stat().st_mtime for f in _files(run, last + 1)), default=time.time())
    found = [(m["lap"], text) for m in metrics for text in m.get("warnings", [])]
    stage = "" if last >= recipe.laps else _stage(viewer, last + 1)
    return Progress(info.get("status", "?"), last, recipe.laps, stage, max(0.0, time.time() - newest), metrics, found)


def _files(run: RunDir, lap: int) -> list[Path]:
    folders = [run.path, run.lap(lap), run.lap(lap) / "draws", run.lap(max(lap - 1, 0))]
    return [f for folder in folders if folder.is_dir() for f in folder.iterdir() if f.is_file() and f.name != ".lock"]


def _stage(viewer: Viewer, lap: int) -> str:
    """What a lap in progress is doing, by the files it has written so far."""
    run, recipe = viewer.run, viewer.recipe
    if lap == 0:
        return "lap 0: fitting the Gaussian start"
    if run.prior_file(lap).is_file():
        return f"lap {lap}: measuring the prior"
    written = len(list((run.lap(lap) / "draws").glob("*.json"))) if (run.lap(lap) / "draws").is_dir() else 0
    shards = None
    if viewer.problem is not None:
        shards = -(-(len(viewer.problem.obs) - recipe.watch.held_out) // recipe.e_step.shard)
    state = run.lap(lap) / "training.safetensors"
    if state.is_file() or written == shards:
        done = _training_steps(state) if state.is_file() else None
        first = lap == 1 and recipe.start == "gaussian"
        steps = (recipe.train.first_steps or recipe.train.steps) if first else recipe.train.steps
        return f"lap {lap}: training the denoiser" + (
            f", {done} of {steps} steps at the last checkpoint" if done else ""
        )
    return f"lap {lap}: posterior draws, {written} {f'of {shards} ' if shards else ''}shards written"


def _training_steps(path: Path) -> int | None:
    import json

    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), "pt") as file:
            return int(json.loads((file.metadata() or {})["diffem"])["done"])
    except (SafetensorError, OSError, ValueError, KeyError):  # replaced or finished while it was read
        return None


def losses(viewer: Viewer) -> tuple[list[float], list[float]]:
    """The training loss over all finished laps: optimizer steps, losses."""
    steps: list[float] = []
    values: list[float] = []
    offset = 0.0
    for lap in range(1, viewer.last + 1):
        file = viewer.run.lap(lap) / "losses.json"
        if file.is_file():
            entries = read_json(file)
            steps += [offset + step for step, _ in entries]
            values += [loss for _, loss in entries]
            offset += entries[-1][0]
    return steps, values
