"""Networks by name, as recipes and saved priors describe them; a new one is a line in `NETWORKS`.

A description may come from an untrusted file: its numbers are checked, and the weights are counted, before any memory
is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import InputError
from ..files import memory
from .conv1d import Conv1d
from .embedding import NoiseEmbedding
from .mlp import MLP
from .padded import PaddedUNet, needs_padding, padded_shape
from .residual import ResidualMLP
from .unet import UNet


def layered(
    network: Callable[..., nn.Module],
    widths: tuple[int, ...],
    event_shape: tuple[int, ...],
    hidden: list[int] | None = None,
    embedding: int = 64,
    dropout: float = 0.0,
    frequencies: list[float] | None = None,
    shown: int = 0,
) -> nn.Module:
    """A network that is described by the widths of its layers; `widths` are the default of `hidden`."""
    low, high = frequencies or (0.25, 16.0)
    hidden = list(widths) if hidden is None else hidden
    return network(event_shape, tuple(hidden), NoiseEmbedding(embedding, low, high), dropout, shown)


def unet(
    event_shape: tuple[int, ...],
    hidden: list[int] | None = None,
    blocks: int | list[int] = 5,
    heads: list[int] | None = None,
    embedding: int = 256,
    dropout: float = 0.0,
    space_to_depth: int = 1,
    frequencies: list[float] | None = None,
    shown: int = 0,
) -> nn.Module:
    low, high = frequencies or (0.25, 16.0)
    hidden = [128, 256, 384] if hidden is None else hidden
    heads = [0] * len(hidden) if heads is None else heads
    noise = NoiseEmbedding(embedding, low, high)
    factor = space_to_depth * 2 ** (len(hidden) - 1)
    if needs_padding(event_shape, factor):
        inner = UNet(padded_shape(event_shape, factor), hidden, blocks, heads, noise, dropout, space_to_depth, shown)
        return PaddedUNet(event_shape, factor, inner)
    return UNet(event_shape, hidden, blocks, heads, noise, dropout, space_to_depth, shown)


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": partial(layered, MLP, (256, 256, 256)),
    "residual": partial(layered, ResidualMLP, (256, 256, 256)),
    "conv1d": partial(layered, Conv1d, (64, 64, 64, 64)),
    "unet": unet,
}

BUILT_IN = frozenset(NETWORKS)

# upper bound of each setting
LARGEST = {"hidden": 1 << 20, "blocks": 64, "heads": 1024, "embedding": 1 << 16, "space_to_depth": 64, "shown": 1 << 20}
LEVELS = 256  # largest number of entries in a setting that is a list


def make_network(kind: str, event_shape: tuple[int, ...], options: dict[str, Any]) -> nn.Module:
    """Make a network h(x, log σ) for samples `(*event)`.

    Args:
        kind: A name of `NETWORKS`: "mlp", "residual", "conv1d" or "unet".
        event_shape: The shape of a sample.
        options: The other keys of the section `network` of a recipe, such as `{"hidden": [256, 256]}`.

    Raises:
        InputError: If the kind is unknown, an option is out of range, or the network does not fit into memory.
    """
    if kind not in NETWORKS:
        raise InputError(
            f"unknown network {kind!r}; known: {', '.join(NETWORKS)}. Register a network of your own under its name "
            "first: diffem.nn.networks.NETWORKS['mine'] = Mine"
        )
    _check(options)
    try:
        with torch.device("meta"):  # shapes only, without memory
            trial = NETWORKS[kind](tuple(event_shape), **options)
        weights = sum(p.numel() for p in trial.parameters())
        memory.require(4 * weights, f"network: {weights} weights ({str(options)[:200]})")
        return NETWORKS[kind](tuple(event_shape), **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"network {kind!r} does not take these settings: {options} ({error}){_about_shown(kind, options)}"
        ) from None


def _about_shown(kind: str, options: dict[str, Any]) -> str:
    """Where the setting `shown` of a network of the user comes from, which is no key of the recipe."""
    if kind in BUILT_IN or "shown" not in options:
        return ""
    return (
        ". `shown` is the number of inputs that describe the observation, which the conditional E-step adds: accept "
        "it, as the built-in networks do, or set e_step.method to mmps"
    )


def require_network(network: nn.Module, kind: str, event_shape: tuple[int, ...]) -> None:
    """Raise an `InputError` unless a network has parameters and maps two samples and their log σ to two samples.

    Layers with statistics of batches are refused, too.
    """
    if not any(p.requires_grad for p in network.parameters()):
        raise InputError(f"network {kind!r} has no parameters to train")
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm) or getattr(module, "track_running_stats", False):
            raise InputError(
                f"network {kind!r} contains {type(module).__name__} ({name}), whose statistics of a batch mix noise "
                "levels, and are neither averaged with the weights nor restored when a run resumes: use GroupNorm or "
                "LayerNorm"
            )
    x, log_sigma = torch.zeros(2, *event_shape), torch.zeros(2)
    try:
        out = network(x, log_sigma)
    except Exception as error:  # any error of the user's code
        raise InputError(
            f"network {kind!r} fails on x of shape {tuple(x.shape)} and log σ of shape (2,): "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(out, torch.Tensor) or out.shape != x.shape:
        found = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise InputError(f"network {kind!r} must return a tensor of the shape of x, {tuple(x.shape)}, got {found}")
    if not out.requires_grad:
        raise InputError(
            f"the result of network {kind!r} does not depend on its parameters: it was detached, or computed in NumPy"
        )


def _check(options: dict[str, Any]) -> None:
    for name, most in LARGEST.items():
        given = options.get(name)
        values = given if isinstance(given, list | tuple) else [] if given is None else [given]
        least = 0 if name in ("heads", "shown") else 1
        if len(values) > LEVELS or not all(type(v) is int and least <= v <= most for v in values):
            raise InputError(
                f"network.{name} must be whole numbers from {least} to {most}, {LEVELS} of them at most, got "
                f"{str(given)[:80]}"
            )
    frequencies = options.get("frequencies") or [0.25, 16.0]
    dropout = options.get("dropout", 0.0)
    if not isinstance(frequencies, list | tuple) or len(frequencies) != 2 or not all(map(_positive, frequencies)):
        raise InputError(f"network.frequencies must be two positive numbers, got {str(frequencies)[:80]}")
    if not (dropout == 0 or (_positive(dropout) and dropout < 1)):
        raise InputError(f"network.dropout must lie in [0, 1), got {str(dropout)[:80]}")


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
