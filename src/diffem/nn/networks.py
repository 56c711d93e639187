"""Networks by name, as recipes and saved priors describe them; a new one is a line in `NETWORKS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..errors import InputError
from .embedding import NoiseEmbedding
from .mlp import MLP


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


NETWORKS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp}


def make_network(kind: str, event_shape: tuple[int, ...], options: dict[str, Any]) -> nn.Module:
    if kind not in NETWORKS:
        raise InputError(f"unknown network {kind!r}; known: {', '.join(NETWORKS)}")
    try:
        return NETWORKS[kind](tuple(event_shape), **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"network {kind!r} does not take these settings: {options} ({error})") from None
