"""The README.md of an exported prior: a description of its card, and how to load the prior."""

from __future__ import annotations

import json
from typing import Any

from ..priors.family import Family


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
    if family.description == "features":
        return [
            "It draws from posteriors with one forward pass per step for observations of the Channel of its training, "
            "which is a function in Python and not part of these files.",
            "",
        ]
    (least, most), (low, high) = family.share, family.noise
    return [
        "It draws from posteriors with one forward pass per step for operators like those of its training: "
        f"{family.operator}, which determine {least:.0%} to {most:.0%} of x, with noise levels of {low:.2g} to "
        f"{high:.2g} times the scale of the data. For other operators, `prior.posterior(obs)` uses another method.",
        "",
    ]


def readme(card: dict[str, Any]) -> str:
    """Return the text of README.md."""
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
