"""Export a prior in the layout of the Hugging Face hub: `model.safetensors`, `config.json` and `README.md`.

`config.json` is the model card. It describes the prior (network, noise levels, range of the data, lap) and its training
(operators, noise, observations, laps, minutes, training examples), and contains the hash of the weights. The weights
may be rounded to 16 bits and split into files of limited size (`files/pieces.py`), so that a run can continue on
another machine from a small folder (`start: FOLDER`). Loading an export downloads and executes nothing: the weights are
tensors, the card is JSON, and the network is one of this library's kinds.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from ..core.errors import InputError, warn
from ..core.version import __version__
from ..files.pieces import is_piece, read_pieces, require_files, shapes_in_pieces, write_pieces
from ..files.reading import read_json
from ..files.tensors import explain, read_header, require_finite
from ..files.writing import write_json, write_text
from ..nn.networks import make_network
from ..observations import Observations
from ..observations.fingerprint import data_fingerprint, fingerprint
from ..observations.lazy import as_lazy
from ..operators import Operator
from ..priors.base import Prior
from ..priors.files import READABLE, load_with_description, pack, rebuild
from ..runs.earlier_keys import translate
from ..runs.recipe import Recipe, load_recipe
from ..runs.rundir import RunDir
from .export_readme import readme
from .totals import Totals, totals
from .verdict import Lap, choose_lap, verdict

CARD = "diffem-card-1"
WEIGHTS, CONFIG = "model", "config.json"
MAX_CARD_BYTES = 1 << 22
DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
# tensors that may be kept in 16 bits; means and variances stay as they are
LARGE = ("network.", "cov.vectors", "cov.factor")


def describe_operator(A: Operator, n: int) -> dict[str, Any]:
    """Describe an operator: its kind, settings, and the shapes of its parameters for n observations."""
    own = A.per_observation()
    shapes = {name: list(tensor.shape) for name, tensor in A.tensors().items()}
    return {
        "kind": type(A).__name__,
        "config": A.config(),
        "parameters": {name: [n, *shape[1:]] if name in own else shape for name, shape in shapes.items()},
        "parts": [describe_operator(child, n) for child in A.children()],
    }


def describe_observations(obs: Observations) -> dict[str, Any]:
    """Describe observations: shapes and operator of the first one, mean noise variance and fingerprint of all."""
    obs = as_lazy(obs)
    one, variance = obs[:1].read(), 0.0
    for part in obs.parts():
        variances = part.cov.diagonal(part.y.shape[1:])
        variance += float(variances.double().mean()) * len(part) / len(obs)
    return {
        "observations": len(obs),
        "measurement_shape": list(one.y.shape[1:]),
        "operators": describe_operator(one.A, len(obs)),
        "noise": {"kind": type(one.cov).__name__, "mean_variance": variance},
        "fingerprint": data_fingerprint(obs),
    }


def export(
    prior: Prior,
    folder: str | os.PathLike[str],
    *,
    obs: Observations | None = None,
    range: tuple[float, float] | None = None,
    lap: int | None = None,
    training: dict[str, Any] | None = None,
    notes: str = "",
    dtype: str | None = None,
    piece: int | None = None,
) -> Path:
    """Write a prior and its model card.

    Args:
        prior: The prior.
        folder: The folder to write; it must not exist, be empty or be an earlier export.
        obs: The training observations; the card describes them but does not contain them.
        range: The smallest and largest value of the data.
        lap: The lap of expectation–maximisation.
        training: Other JSON values about the training.
        notes: Free text.
        dtype: "bfloat16" or "float16" rounds the weights in the files; they are read back as float32. Default: exact.
        piece: The largest size of a file of weights, in bytes. Default: one file.

    Returns:
        The folder.

    Raises:
        InputError: If the folder contains other files.
    """
    folder = Path(folder)
    if range is not None and not range[0] < range[1]:
        raise InputError(f"range must be (low, high) with low < high, got {range}")
    _require_own(folder)
    tensors, description = pack(prior)
    stored = _rounded(tensors, dtype)
    about = dict(training or {}) | ({} if obs is None else describe_observations(obs))
    files = write_pieces(folder, WEIGHTS, stored, {**description, "export": CARD}, piece)
    card = {
        "format": CARD,
        "library_name": "diffem",
        "library_version": __version__,
        "prior": description,
        "parameters": sum(math.prod(t.shape) for name, t in tensors.items() if name.startswith("network.")),
        "dtype": str(prior.mean.dtype).removeprefix("torch."),
        "stored": dtype or str(prior.mean.dtype).removeprefix("torch."),
        "range": None if range is None else [float(v) for v in range],
        "lap": lap,
        "training": about,
        "notes": notes,
        "tensors": fingerprint(_restored(stored)),
        "files": files,
    }
    write_json(folder / CONFIG, card)  # after the weights: a folder with a card is complete
    write_text(folder / "README.md", readme(card))
    for file in folder.iterdir():  # left by an earlier export with more pieces
        if is_piece(file.name, WEIGHTS) and file.name not in files:
            file.unlink()
    return folder


def _rounded(tensors: dict[str, Tensor], dtype: str | None) -> dict[str, Tensor]:
    """The tensors as they are written to the file: rounded to `dtype`, if it is given."""
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    kind = None if dtype is None else DTYPES[dtype]
    if kind is None:
        return tensors
    stored = {
        name: t.to(kind) if t.is_floating_point() and name.startswith(LARGE) else t for name, t in tensors.items()
    }
    for name, tensor in stored.items():
        if tensors[name].is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(f"{name} has values that {dtype} cannot hold; bfloat16 has the range of float32")
    return stored


def _restored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are used after loading: 16-bit tensors are converted to the dtype of the mean."""
    mean, half = tensors.get("mean"), (torch.bfloat16, torch.float16)
    if mean is None or not mean.is_floating_point():
        return tensors  # building the prior from them raises the error
    return {name: t.to(mean.dtype) if t.dtype in half else t for name, t in tensors.items()}


class ExportOptions(TypedDict, total=False):
    """The arguments of `export` that `export_run` and `export_unfinished` pass on."""

    obs: Observations | None
    range: tuple[float, float] | None
    notes: str
    dtype: str | None
    piece: int | None


def export_run(
    run: str | os.PathLike[str], folder: str | os.PathLike[str], *, lap: Lap = None, **options: Unpack[ExportOptions]
) -> Path:
    """Export the prior of a lap of a run.

    The model card contains the recipe, the seed, the hash of the observations, the verdict about the laps, and their
    cost.

    Args:
        run: The run folder.
        folder: The folder to write.
        lap: Number of the lap, "best", or None for the last.
        options: Arguments of `export`: obs, range, notes, dtype and piece.

    Returns:
        The folder.
    """
    directory = RunDir(run)
    recipe, lap = directory.recipe(), choose_lap(directory, lap)
    prior, description = load_with_description(directory.prior_file(lap), directory.origin("prior", lap))
    laps = directory.metrics()
    found, cost = verdict(laps), totals(laps[: lap + 1], recipe)
    if found.best is not None and found.worse and lap != found.best:
        warn(f"{run}: {found.text}; this is the prior of lap {lap}")
    training = describe_run(directory) | {
        "run_lap": lap,
        "minutes": cost.minutes,
        "images": cost.images,
        "best_lap": found.best,
        "verdict": found.text,
    }
    if recipe.final is not None and lap == recipe.last_lap:  # another run can train it longer, see `unfinished.py`
        last = laps[lap]
        training["final"] = {"steps": last["steps"], "seconds": last["m_seconds"], "lap_seconds": last["seconds"]}
    total = description.get("lap", lap)  # with the laps of the runs before
    return export(prior, folder, lap=total, training=training, **options)


def describe_run(run: RunDir) -> dict[str, Any]:
    """Describe a run for the card of its prior."""
    recipe, info = run.recipe(), run.info()
    return {
        "run": info.get("name"),
        "recipe": recipe.model_dump(mode="json"),
        "seed": recipe.seed,
        "run_version": info["version"],
        "run_observations": info["observations"],
    }


def is_export(path: str | os.PathLike[str]) -> bool:
    """Whether a folder contains an exported prior, not a run."""
    folder = Path(path)
    return folder.is_dir() and (folder / CONFIG).is_file() and not (folder / "recipe.yaml").exists()


def cost(card: dict[str, Any], where: str) -> Totals:
    """The training cost in a card: laps, minutes and training examples; where: the folder, for error messages."""
    training = card.get("training")
    values = dict(training) if isinstance(training, dict) else {}
    return Totals.read({**values, "laps": card.get("lap") or 0}, where)


def recipe_of_card(card: dict[str, Any]) -> Recipe | None:
    """The recipe in a card; None if there is none that this version can read. Nothing it names is executed or read."""
    training = card.get("training")
    settings = training.get("recipe") if isinstance(training, dict) else None
    try:
        return load_recipe(translate(settings)) if isinstance(settings, dict) else None
    except InputError:
        return None


def card_range(card: dict[str, Any]) -> tuple[float, float] | None:
    """The smallest and largest value of the data, if the card contains them."""
    limits = card.get("range")
    if not isinstance(limits, list) or len(limits) != 2 or not all(isinstance(v, int | float) for v in limits):
        return None
    return (float(limits[0]), float(limits[1])) if -math.inf < limits[0] < limits[1] < math.inf else None


def read_card(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and validate the card of a folder.

    Raises:
        InputError: If there is no valid card.
    """
    path = Path(folder) / CONFIG
    if not path.exists():
        raise InputError(f"{folder} contains no exported prior: it has no {CONFIG}")
    card = read_json(path, MAX_CARD_BYTES)
    if not isinstance(card, dict) or card.get("format") != CARD:
        given = card.get("format") if isinstance(card, dict) else type(card).__name__
        raise InputError(f"{path} has format {given!r}, this version reads {CARD!r}")
    if not isinstance(card.get("prior"), dict) or card["prior"].get("format") not in READABLE:
        raise InputError(f"{path} must describe a prior of format {' or '.join(READABLE)}")
    return card


def load(folder: str | os.PathLike[str], device: torch.device | str = "cpu") -> Prior:
    """Load an exported prior from its folder, or from a local copy made by the hub.

    Raises:
        InputError: If the folder is not an export, or the weights do not match the card.
    """
    card = read_card(folder)
    try:
        tensors = _read_weights(Path(folder), card)
        prior = rebuild(card["prior"], tensors)
    except InputError as error:
        raise InputError(str(error) if str(folder) in str(error) else f"{folder}: {error}") from None
    except Exception as error:  # an untrusted card can cause any exception
        raise InputError(f"{folder}: the card does not describe its weights: {explain(error)}") from None
    return prior.eval().requires_grad_(False).to(device)


def _read_weights(folder: Path, card: dict[str, Any]) -> dict[str, Tensor]:
    """Read the weights, after comparing their headers and their hashes with the card."""
    files = require_files(card.get("files"), WEIGHTS, str(folder))
    _require_network(card["prior"], shapes_in_pieces(folder, files, "a prior"))
    tensors = read_pieces(folder, files, "a prior")
    require_finite(tensors, folder)
    return _restored(tensors)


def _require_network(description: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Compare the described prior with the shapes of its tensors, before memory is allocated for them."""
    if description["kind"] not in ("GaussianPrior", "DiffusionPrior"):
        raise InputError(f"unknown kind of prior {description['kind']!r}")
    event = tuple(description["event_shape"])
    expected: dict[str, tuple[int, ...] | None] = {"mean": event}
    if description["kind"] == "DiffusionPrior":
        settings = dict(description["network"])
        with torch.device("meta"):
            network = make_network(settings.pop("kind"), event, settings)
        expected |= {f"network.{name}": tuple(t.shape) for name, t in network.state_dict().items()}
    given = {name: shape for name, shape in shapes.items() if not name.startswith("cov.")}
    if expected != given:
        wrong = next(name for name in sorted({*expected, *given}) if expected.get(name) != given.get(name))
        raise InputError(
            f"the card describes {wrong} with shape {expected.get(wrong)}, the weights have {given.get(wrong)}"
        )
    # no tensor of a covariance is larger than a dense matrix over the event
    most = max(math.prod(event), 1) ** 2
    for name, shape in shapes.items():
        if name.startswith("cov.") and math.prod(shape) > most:
            raise InputError(f"{name} is too large for samples of shape {event}: {shape}")


def _require_own(folder: Path) -> None:
    """Raise `InputError` if a folder contains anything but an earlier export; hidden files are ignored."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder")
    try:
        names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror or error}") from None
    if names and not _is_export(folder, names):
        raise InputError(f"{folder} is not empty and contains no exported prior; choose another folder")


def _is_export(folder: Path, names: set[str]) -> bool:
    """Whether a folder with these files was written by `export`, which may have been interrupted before the card."""
    try:
        if all(is_piece(name, WEIGHTS) for name in names):
            return all(read_header(folder / name)[1].get("export") == CARD for name in names)
        return bool(read_card(folder))
    except InputError:
        return False
