"""Networks by name, as recipes and saved priors describe them; a new one is a line in `NETWORKS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..errors import InputError
from .embedding import NoiseEmbedding
from .mlp import MLP
from .unet import UNet


def mlp(
    event_shape: tuple[int, ...],
    hidden: list[int] | None = None,
    embedding: int = 64,
    dropout: float = 0.0,
    frequencies: list[float] | None = None,
) -> nn.Module:
    low, high = frequencies or (0.25, 16.0)
    hidden = [256, 256, 256] if hidden is None else hidden
    return MLP(event_shape, tuple(hidden), NoiseEmbedding(embedding, low, high), dropout)


def unet(
    event_shape: tuple[int, ...],
    hidden: list[int] | None = None,
    blocks: int | list[int] = 5,
    heads: list[int] | None = None,
    embedding: int = 256,
    dropout: float = 0.0,
    space_to_depth: int = 1,
    frequencies: list[float] | None = None,
) -> nn.Module:
    low, high = frequencies or (0.25, 16.0)
    hidden = [128, 256, 384] if hidden is None else hidden
    heads = [0] * len(hidden) if heads is None else heads
    return UNet(event_shape, hidden, blocks, heads, NoiseEmbedding(embedding, low, high), dropout, space_to_depth)


NETWORKS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "unet": unet}


def make_network(kind: str, event_shape: tuple[int, ...], options: dict[str, Any]) -> nn.Module:
    if kind not in NETWORKS:
        raise InputError(f"unknown network {kind!r}; known: {', '.join(NETWORKS)}")
    try:
        return NETWORKS[kind](tuple(event_shape), **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"network {kind!r} does not take these settings: {options} ({error})") from None
