"""A recipe as YAML with a comment above every key, ready to be edited: the output of `diffem recipes NAME`."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import yaml
from pydantic import BaseModel

from ..nn.networks import NETWORKS
from .schedule import Epochs, Schedule
from .schema import Recipe
from .section import OpenSection

WIDTH = 118
# The first key of each group of a long section, and the title of the group.
GROUPS = {
    "e_step.clean": "posterior",
    "e_step.sampler": "sampler",
    "e_step.chi2": "screening of draws",
    "e_step.shard": "storage and memory",
    "train.steps": "optimizer",
    "train.augment": "examples and loss",
    "train.restart": "between laps",
}
# Keys of the sections `data` and `network` that depend on the source and the kind.
OPEN_KEYS = {
    "data.path": "file or folder of the data; with source: file, a file written by Observations.save, or a .npy array "
    "with NaN for values that were not measured",
    "data.folder": "folder of the data",
    "data.n": "number of observations",
    "data.dimension": "number of entries of x",
    "data.measured": "number of measured values per observation",
    "data.missing": "fraction of the values that are missing",
    "data.sigma": "noise level, in the units of the data; with source: file, only for a .npy array",
    "data.size": "height and width of the images, in pixels",
    "data.accel": "acceleration factor R: 1/R of k-space is measured",
    "data.mode": "simulated or acquired k-space",
    "data.image": "name of the HDF5 dataset with the images",
    "data.slices": "first and last (exclusive) slice of a volume that is used",
    "data.complex": "whether images are complex, stored as two channels",
    "data.part": "train, heldout or all",
    "data.heldout": "fraction of the images of each folder that is held out",
    "data.gap": "number of images before the held-out ones that belong to neither part",
    "data.resemblance": "largest correlation of a training slice with a held-out slice",
    "data.scale": "pixel value that counts as the maximum. Default: depends on the type of the pixels",
    "data.files": "first and last (exclusive) volume of the folder that is used",
    "data.coils": "estimate, a file or folder of coil maps, or dataset NAME. Default: a single coil",
    "data.calibration": "width of the central k-space from which coil maps are estimated",
    "data.cache": "folder of the cache of k-space. Default: in memory if it is small, otherwise DIFFEM_CACHE",
    "data.split": "train or test images",
    "network.hidden": "width of every layer (mlp), features of every block (residual, conv1d), or channels of every "
    "resolution level, each half as fine as the one before (unet)",
    "network.blocks": "residual blocks per level, on each side of the U-Net; one number or one per level",
    "network.heads": "attention heads per level, 0 for none. Default: no attention",
    "network.embedding": "size of the embedding of the diffusion noise level",
    "network.dropout": "fraction of the features dropped in training, against overfitting",
    "network.space_to_depth": "side of the blocks of pixels that are folded into channels before the network, and "
    "unfolded after it",
    "network.frequencies": "lowest and highest frequency of the noise embedding. Default: 0.25 and 16",
    "network.shown": "number of additional inputs of a conditional network; set by the run",
}


def describe(key: str, model: type[BaseModel], name: str) -> str:
    """Return the description of a key.

    Args:
        key: The key with its section, such as `train.lr`.
        model: The section that contains the key.
        name: The name of the key in that section.
    """
    field = model.model_fields.get(name)
    return (field.description if field is not None else None) or OPEN_KEYS.get(key, "")


def commented(recipe: Recipe) -> str:
    """Return the recipe as YAML with comments. Reading the text gives the same recipe."""
    lines: list[str] = []
    _section(lines, recipe, "", 0)
    return "\n".join(lines) + "\n"


def _section(lines: list[str], section: BaseModel, prefix: str, depth: int) -> None:
    values = section.model_dump(mode="json")
    for name, value in values.items():
        key, inner = f"{prefix}{name}", getattr(section, name, None)
        nested = isinstance(inner, BaseModel) and name in type(section).model_fields
        inline = isinstance(inner, Epochs | Schedule)  # small mappings in place of a number
        if nested and not inline and depth == 0:
            lines.append("")
        if key in GROUPS:
            lines.append(f"{'  ' * depth}# --- {GROUPS[key]} ---")
        _comment(lines, describe(key, type(section), name), depth)
        if isinstance(inner, BaseModel) and nested and not inline:
            lines.append(f"{'  ' * depth}{name}:")
            _section(lines, inner, f"{key}.", depth + 1)
        else:
            plain = inner.model_dump(mode="json", exclude_none=True) if isinstance(inner, Schedule) else value
            lines.append(f"{'  ' * depth}{name}: {_value(plain)}")
    if isinstance(section, OpenSection):
        _unset(lines, prefix, values, depth)


def _unset(lines: list[str], prefix: str, values: dict[str, Any], depth: int) -> None:
    """Append the keys of an open section that are not set, with their defaults, as comments."""
    options: dict[str, Any] = {"path": "obs.safetensors", "sigma": 0.1} if values.get("source") == "given" else {}
    if values.get("kind") in NETWORKS:
        parameters = inspect.signature(NETWORKS[values["kind"]]).parameters.values()
        options = {
            p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty and p.name != "shown"
        }
    for name, default in options.items():
        if name not in values:
            _comment(lines, OPEN_KEYS.get(f"{prefix}{name}", ""), depth)
            lines.append(f"{'  ' * depth}# {name}: {_value(default)}")


def _comment(lines: list[str], text: str, depth: int) -> None:
    margin = "  " * depth
    lines.extend(textwrap.wrap(text, WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}#   "))


def _value(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
