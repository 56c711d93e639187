"""Recipes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from ..sound import RECIPE
from .registry import hole, hostile


def recipe(folder: Path, text: str | None = None, **changes: Any) -> Path:
    values = {**RECIPE, **changes}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False) if text is None else text)
    return folder / "recipe.yaml"


@hostile("recipe", "a billion laughs", "aliases .* are not allowed")
def _(folder):
    lines = ["a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12)]
    return recipe(folder, "\n".join([*lines, "network: *a11"]))


@hostile("recipe", "a list that holds itself", "aliases .* are not allowed")
def _(folder):
    return recipe(folder, "network: &me [*me]\n")


@hostile("recipe", "brackets in brackets", "nested more than 16 deep")
def _(folder):
    return recipe(folder, "network: " + "[" * 10_000 + "]" * 10_000)


@hostile("recipe", "indentation without end", "nested more than 16 deep")
def _(folder):
    return recipe(folder, "\n".join(" " * k + "a:" for k in range(200)))


@hostile("recipe", "a file of a gigabyte", "is too large|do not compress this well")
def _(folder):
    return hole(folder / "recipe.yaml", 1 << 30, b"name: x\n")


@hostile("recipe", "a megabyte of keys", "is too large")
def _(folder):
    return recipe(folder, "".join(f"k{k}: 1\n" for k in range(100_000)))


@hostile("recipe", "Python objects", "not valid YAML")
def _(folder):
    return recipe(folder, f"name: !!python/object/apply:os.mkdir ['{folder}/EXECUTED']\n")


@hostile("recipe", "no text at all", "is not text|not valid YAML")
def _(folder):
    (folder / "recipe.yaml").write_bytes(bytes(range(256)) * 4)
    return folder / "recipe.yaml"


@hostile("recipe", "a key given twice", "a key is given twice")
def _(folder):
    return recipe(folder, yaml.safe_dump(RECIPE) + "laps: 2\n")


@hostile("recipe", "a number of 20,000 digits", "not valid YAML")
def _(folder):
    return recipe(folder, yaml.safe_dump({**RECIPE, "laps": 0}).replace("laps: 0", "laps: " + "9" * 20_000))


@hostile("recipe", "values that are dates and bytes", "values must be strings or numbers")
def _(folder):
    return recipe(folder, yaml.safe_dump(RECIPE) + "about: !!binary /////w==\n")


@hostile("recipe", "a noise level of NaN", "numbers must be finite")
def _(folder):
    return recipe(folder, sigma_min=float("nan"))


@hostile("recipe", "10^15 steps", "train.steps: .*less than or equal to")
def _(folder):
    return recipe(folder, train={"steps": 10**15, "batch": 8})


@hostile("recipe", "a shard of a negative number", "e_step.shard: .*greater than or equal to 1")
def _(folder):
    return recipe(folder, e_step={"shard": -16})


@hostile("recipe", "a shard of 10^18 observations", "e_step.shard: .*less than or equal to")
def _(folder):
    return recipe(folder, e_step={"shard": 10**18})


@hostile("recipe", "a network of 10^12 weights", "^diffem: network: .*takes .* of memory")
def _(folder):
    return recipe(folder, network={"kind": "mlp", "hidden": [1_000_000, 1_000_000]})


@hostile("recipe", "10^13 points to simulate", "recipe.yaml: data.n = .*takes .* of memory")
def _(folder):
    return recipe(folder, data={**RECIPE["data"], "n": 10**13})


@hostile("recipe", "a negative number of points", "recipe.yaml: data.n must be a positive integer")
def _(folder):
    return recipe(folder, data={**RECIPE["data"], "n": -32})


@hostile("recipe", "a noise that is negative", "recipe.yaml: sigma must be positive")
def _(folder):
    return recipe(folder, data={**RECIPE["data"], "sigma": -1.0})


@hostile("recipe", "observations in a pipe", "recipe.yaml: data.path: observations file")
def _(folder):
    os.mkfifo(folder / "pipe")
    return recipe(folder, data={"source": "file", "path": str(folder / "pipe")})


@hostile("recipe", "a start that is a device", "is not a run|not a file")
def _(folder):
    return recipe(folder, start="/dev/zero")


@hostile("recipe, no folder", "a name that climbs out of its folder", "contain no slashes")
def _(folder):
    return recipe(folder, name="../../../escaped")
