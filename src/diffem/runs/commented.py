"""A recipe as YAML with a comment above every key, to be edited and run: what `diffem recipes NAME` prints."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import yaml
from pydantic import BaseModel

from ..linalg import SOLVERS
from ..nn.networks import NETWORKS
from ..samplers import SAMPLERS
from .schema import Open, Recipe

WIDTH = 118
# What the fields of `Recipe` leave undescribed, and the keys that belong to a kind of network.
DESCRIPTIONS = {
    "name": "names the run's folder if none is given",
    "about": "a line for the list of recipes and the report",
    "data": "where observations come from; further keys belong to the source",
    "data.path": "the file or folder of the data; with source: file, one of Observations.save",
    "data.folder": "the folder of the data",
    "data.n": "how many observations",
    "data.dimension": "numbers in a sample",
    "data.measured": "numbers that an observation measures",
    "data.missing": "fraction of the values that is missing",
    "data.sigma": "standard deviation of the noise, in the units of the data",
    "data.size": "height and width of the images",
    "data.accel": "how many times less of k-space is measured",
    "data.mode": "simulated or acquired k-space",
    "data.image": "the entry of the files that holds the images",
    "data.slices": "first and last (exclusive) slice of a volume that is used",
    "data.complex": "whether images are complex, as two channels",
    "data.part": "train, heldout or all",
    "laps": "how often draws are made (E) and the network is trained on them (M)",
    "seed": "of every random number",
    "precision": "what the network computes in on a GPU: float32, tf32 or bf16",
    "gaussian": "the Gaussian start, fitted to the observations by EM with exact moments",
    "gaussian.rounds": "rounds of EM at the most",
    "gaussian.tolerance": "stop when a round adds less than so many nats per measured value",
    "network": "the denoiser; further keys belong to its kind",
    "network.kind": "mlp for vectors, tables and small images; unet for images",
    "network.hidden": "width of every layer (mlp), or channels of every level, each at half the resolution of the one before (unet)",
    "network.blocks": "residual blocks per level and side; one number or one per level",
    "network.heads": "attention heads per level, 0 for none",
    "network.embedding": "numbers that describe the noise level to the network",
    "network.dropout": "share of features dropped in training, against learning draws by heart",
    "network.space_to_depth": "fold s×s pixels into channels before, and back after",
    "network.frequencies": "lowest and highest frequency of the noise embedding",
    "network.shown": "further inputs that state what was measured; set by the run for a conditional network",
    "e_step": "E: posterior draws for the observations",
    "e_step.solver": f"of the linear systems in mmps: {', '.join(SOLVERS)}",
    "e_step.iterations": "of the solver; each costs a vector–Jacobian product",
    "e_step.sampler": f"{', '.join(SAMPLERS)} (tds: weighted particles)",
    "e_step.sampler_options": "settings of the sampler, by name",
    "e_step.steps": "noise levels of a draw",
    "train": "M: the denoiser is trained on the draws",
    "train.batch": "examples per step",
    "train.lr": "learning rate of Adam at the beginning of a lap",
    "train.final_lr": "and at its end, where the schedule is not constant",
    "train.schedule": "how the rate falls: linear, cosine or constant",
    "train.warmup": "steps over which the rate rises from 0",
    "train.betas": "decay of Adam's two moments",
    "train.weight_decay": "weight decay of Adam",
    "train.augment": "changes of the draws that leave their law as it is, such as hflip (mirrored images)",
    "train.noise": "the law of the noise levels in training",
    "train.checkpoint_seconds": "an unfinished training is saved this often",
    "watch": "what is measured after every lap, on observations kept from training",
}  # fmt: skip


def describe(key: str, model: type[BaseModel], name: str) -> str:
    """What a key means; key: with its sections, `train.lr`; name: of the field of `model`."""
    field = model.model_fields.get(name)
    return (field.description if field is not None else None) or DESCRIPTIONS.get(key, "")


def commented(recipe: Recipe) -> str:
    """The recipe as YAML; reading it gives the same recipe."""
    lines: list[str] = []
    _section(lines, recipe, "", 0)
    return "\n".join(lines) + "\n"


def _section(lines: list[str], section: BaseModel, prefix: str, depth: int) -> None:
    values = section.model_dump(mode="json")
    for name, value in values.items():
        key, inner = f"{prefix}{name}", getattr(section, name, None)
        nested = isinstance(inner, BaseModel) and name in type(section).model_fields and not _inline(inner)
        if nested and depth == 0:
            lines.append("")
        _comment(lines, describe(key, type(section), name), depth)
        if nested:
            assert isinstance(inner, BaseModel)
            lines.append(f"{'  ' * depth}{name}:")
            _section(lines, inner, f"{key}.", depth + 1)
        else:
            lines.append(f"{'  ' * depth}{name}: {_value(value)}")
    if isinstance(section, Open):
        _unset(lines, prefix, values, depth)


def _unset(lines: list[str], prefix: str, values: dict[str, Any], depth: int) -> None:
    """Keys of an open section that are not set, with their defaults, as comments."""
    options: dict[str, Any] = {"path": "obs.safetensors"} if values.get("source") == "given" else {}
    if values.get("kind") in NETWORKS:
        parameters = inspect.signature(NETWORKS[values["kind"]]).parameters.values()
        options = {
            p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty and p.name != "shown"
        }
    for name, default in options.items():
        if name not in values:
            _comment(lines, DESCRIPTIONS.get(f"{prefix}{name}", ""), depth)
            lines.append(f"{'  ' * depth}# {name}: {_value(default)}")


def _inline(section: BaseModel) -> bool:
    """Small mappings that are values: steps that follow the number of observations."""
    return type(section).__name__ == "Epochs"


def _comment(lines: list[str], text: str, depth: int) -> None:
    margin = "  " * depth
    lines.extend(textwrap.wrap(text, WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}#   "))


def _value(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
