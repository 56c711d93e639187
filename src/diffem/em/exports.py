"""Export a prior in the layout of the Hugging Face hub: `model.safetensors`, `config.json` and `README.md`.

`config.json` is the model card. It describes the prior (network, noise levels, range of the data, lap) and its training
data (operators, noise, observations), and contains the hash of the weights. Loading an export downloads and executes
nothing: the weights are tensors, the card is JSON, and the network is one of this library's kinds.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.version import __version__
from ..files.tensors import explain, read_header, read_tensors, require_finite
from ..files.writing import file_digest, read_json, write_json, write_tensors, write_text
from ..nn.networks import make_network
from ..observations import Observations
from ..observations.fingerprint import data_fingerprint, fingerprint
from ..observations.lazy import stored
from ..operators import Operator
from ..priors.base import Prior
from ..priors.family import Family
from ..priors.files import READABLE, _rebuild, load_with_description, pack
from ..runs.recipe import Recipe, load_recipe
from ..runs.rundir import RunDir
from .table import warn
from .verdict import Lap, choose_lap, verdict

CARD = "diffem-card-1"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
MAX_CARD_BYTES = 1 << 22


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
    obs = stored(obs)
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
    about = dict(training or {}) | ({} if obs is None else describe_observations(obs))
    write_tensors(folder / WEIGHTS, tensors, {**description, "export": CARD})
    card = {
        "format": CARD,
        "library_name": "diffem",
        "library_version": __version__,
        "prior": description,
        "parameters": sum(math.prod(t.shape) for name, t in tensors.items() if name.startswith("network.")),
        "dtype": str(prior.mean.dtype).removeprefix("torch."),
        "range": None if range is None else [float(v) for v in range],
        "lap": lap,
        "training": about,
        "notes": notes,
        "tensors": fingerprint(tensors),
        "files": {WEIGHTS: {"sha256": file_digest(folder / WEIGHTS), "bytes": (folder / WEIGHTS).stat().st_size}},
    }
    write_json(folder / CONFIG, card)  # after the weights: a folder with a card is complete
    write_text(folder / "README.md", _readme(card))
    return folder


def export_run(
    run: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    lap: Lap = None,
    obs: Observations | None = None,
    range: tuple[float, float] | None = None,
    notes: str = "",
) -> Path:
    """Export the prior of a lap of a run, with its recipe, seed, hash of observations and verdict in the card.

    Args:
        run: The run folder.
        folder: The folder to write.
        lap: Number of the lap, "best", or None for the last.
        obs: See `export`.
        range: See `export`.
        notes: See `export`.

    Returns:
        The folder.
    """
    directory = RunDir(run)
    recipe, info, lap = directory.recipe(), directory.info(), choose_lap(directory, lap)
    prior, description = load_with_description(directory.prior_file(lap), directory.origin("prior", lap))
    found = verdict(directory.metrics())
    if found.best is not None and found.worse and lap != found.best:
        warn(f"{run}: {found.text}; this is the prior of lap {lap}")
    training = {
        "run_lap": lap,
        "best_lap": found.best,
        "verdict": found.text,
        "recipe": recipe.model_dump(mode="json"),
        "seed": recipe.seed,
        "run_version": info["version"],
        "run_observations": info["observations"],
    }
    return export(prior, folder, obs=obs, range=range, lap=description.get("lap", lap), training=training, notes=notes)


def is_export(path: str | os.PathLike[str]) -> bool:
    """Whether a folder contains an exported prior, not a run."""
    folder = Path(path)
    return folder.is_dir() and (folder / CONFIG).is_file() and not (folder / "recipe.yaml").exists()


def kept_recipe(card: dict[str, Any]) -> Recipe | None:
    """The recipe in a card; None if there is none that this version can read. Nothing it names is executed or read."""
    training = card.get("training")
    kept = training.get("recipe") if isinstance(training, dict) else None
    try:
        return load_recipe(kept) if isinstance(kept, dict) else None
    except InputError:
        return None


def card_range(card: dict[str, Any]) -> tuple[float, float] | None:
    """The smallest and largest value of the data, if the card contains them."""
    given = card.get("range")
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(v, int | float) for v in given):
        return None
    return (float(given[0]), float(given[1])) if -math.inf < given[0] < given[1] < math.inf else None


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
    card, path = read_card(folder), Path(folder) / WEIGHTS
    try:
        tensors = _read_weights(path, card)
        prior = _rebuild(card["prior"], tensors)
    except InputError as error:
        raise InputError(str(error) if str(folder) in str(error) else f"{folder}: {error}") from None
    except Exception as error:  # an untrusted card can cause any exception
        raise InputError(f"{folder}: the card does not describe its weights: {explain(error)}") from None
    return prior.eval().requires_grad_(False).to(device)


def _read_weights(path: Path, card: dict[str, Any]) -> dict[str, Tensor]:
    """Read the weights, after comparing their header and their hash with the card."""
    files = card.get("files")
    entry = files.get(WEIGHTS) if isinstance(files, dict) else None
    if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
        raise InputError(f"{path.parent}: the card contains no hash of {WEIGHTS}")
    shapes, _ = read_header(path, "a prior")
    _require_network(card["prior"], shapes)
    if file_digest(path) != entry["sha256"]:
        raise InputError(f"{path} does not match the card: its SHA-256 differs from {entry['sha256'][:16]}…")
    tensors, _ = read_tensors(path, "a prior")
    require_finite(tensors, path)
    return tensors


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
        if names == {WEIGHTS}:
            return read_header(folder / WEIGHTS)[1].get("export") == CARD
        return bool(read_card(folder))
    except InputError:
        return False


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _training(card: dict[str, Any]) -> str:
    """How the prior was trained: clean samples of x need no expectation–maximisation."""
    recipe = card["training"].get("recipe")
    e_step = recipe.get("e_step") if isinstance(recipe, dict) else None
    clean = isinstance(e_step, dict) and e_step.get("clean") is True
    return "training on clean samples of x" if clean else "expectation–maximisation"


def _family(prior: dict[str, Any]) -> list[str]:
    """Sentences about the operators a conditional network was trained for."""
    if "family" not in prior:
        return []
    family = Family.read(prior["family"])
    (least, most), (low, high) = family.share, family.noise
    return [
        "It draws from posteriors with one forward pass per step for operators like those of its training: "
        f"{family.operator}, which determine {least:.0%} to {most:.0%} of x, with noise levels of {low:.2g} to "
        f"{high:.2g} times the scale of the data. For other operators, `prior.posterior(obs)` uses another method.",
        "",
    ]


def _readme(card: dict[str, Any]) -> str:
    prior = card["prior"]
    lines = [
        "---",
        "library_name: diffem",
        "tags: [diffusion, inverse-problems]",
        "---",
        "",
        f"A {prior['kind']} over samples of shape {tuple(prior['event_shape'])}, scale {prior.get('scale', 1.0):g}, "
        f"diffusion noise levels {prior['sigma'][0]:g} to {prior['sigma'][1]:g}.",
        "",
        *([f"Data take values in {card['range']}.", ""] if card["range"] else []),
        *_family(prior),
        *([f"From lap {card['lap']} of {_training(card)}.", ""] if card["lap"] is not None else []),
        *([_sentence(card["training"]["verdict"]), ""] if card["training"].get("verdict") else []),
        *([card["notes"], ""] if card["notes"] else []),
        "```python",
        "import diffem",
        "",
        'prior = diffem.load(".")  # the folder of this file',
        "samples = prior.sample(16)",
        "```",
        "",
        "`config.json` describes the training data and contains the hash of the weights:",
        "",
        "```json",
        json.dumps({name: card[name] for name in ("training", "tensors", "files")}, indent=1),
        "```",
        "",
    ]
    return "\n".join(lines)
