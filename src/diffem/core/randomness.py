r"""Random numbers with an address instead of a sequence.

Every draw is a function of (seed, lap, purpose, sample index, draw, step): no generator is advanced, so the number of
processes, the micro-batch, the order of work and an interruption change nothing, and any single draw can be made again.

The function is Philox4x32-10 (Salmon et al., 2011), a counter-based generator, written in torch integer arithmetic so
that one call fills a batch on any device with the same bits; normals follow by Box–Muller. The 64-bit key is a hash of
(seed, lap, purpose); the four counter words are (block of four numbers, sample index, step, draw).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .compile import fused
from .errors import InputError

MASK32 = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
CPU_NUMBERS = 1 << 18  # normal numbers made at a time on a CPU


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int | Tensor, int | Tensor]
) -> tuple[Tensor, ...]:
    """Ten rounds of Philox4x32; words are int64 tensors (that broadcast) holding values below 2³²."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap modulo 2⁶⁴, which leaves both 32-bit halves right
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        hi0, lo0 = (p0 >> 32) & MASK32, p0 & MASK32
        hi1, lo1 = (p1 >> 32) & MASK32, p1 & MASK32
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK32, (k1 + KEY_STEPS[1]) & MASK32
    return c0, c1, c2, c3


def _words(index: Tensor, draw: Tensor, step: Tensor, block: Tensor, key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four tensors `(n, blocks)` of 32-bit words; index, draw: `(n,)`, block: `(blocks,)`, step and keys: `()`."""
    return philox((block[None, :], index[:, None], step, draw[:, None]), key)


def open_interval(words: Tensor, dtype: torch.dtype) -> Tensor:
    """32-bit words as numbers strictly inside (0, 1), from their upper 24 bits."""
    # half a step above a multiple of 2⁻²⁴; in float32 the highest of these would round to 1
    return (((words >> 8).to(dtype) + 0.5) * 2.0**-24).clamp(max=1 - torch.finfo(dtype).eps / 2)


@fused
def _normals(
    index: Tensor, draw: Tensor, step: Tensor, block: Tensor, low: Tensor, high: Tensor, dtype: torch.dtype
) -> Tensor:
    """`(n, 4·blocks)` standard normals by Box–Muller, two from every pair of words."""
    words = _words(index, draw, step, block, (low, high))
    normals = []
    for w_radius, w_angle in (words[:2], words[2:]):
        radius = torch.sqrt(-2 * torch.log((w_radius.to(dtype) + 0.5) * 2.0**-32))
        angle = w_angle.to(dtype) * (2 * math.pi * 2.0**-32)
        normals += [radius * torch.cos(angle), radius * torch.sin(angle)]
    return torch.stack(normals, -1).flatten(1)


def _on_device(value: Tensor | int, device: torch.device) -> Tensor:
    """Make a tensor `()` from an integer on the device. A copy from the host would synchronise and not be captured."""
    return value.to(device).reshape(()) if isinstance(value, Tensor) else torch.full((), value, device=device)


@dataclass(frozen=True)
class Stream:
    """All random numbers of one purpose in one lap of one run."""

    seed: int
    purpose: str
    lap: int = 0

    def __post_init__(self) -> None:
        # another type would be another address: 1.0 other numbers than 1, and None the same numbers every time
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer):
            raise InputError(f"seed must be an integer, got {self.seed!r}")

    @property
    def key(self) -> tuple[int, int]:
        text = f"diffem/{self.seed}/{self.lap}/{self.purpose}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def _words(self, index: Tensor, draw: Tensor, step: Tensor | int, blocks: int) -> tuple[Tensor, ...]:
        """Four tensors `(n, blocks)` of 32-bit words."""
        block = torch.arange(blocks, device=index.device)
        return _words(index, draw, _on_device(step, index.device), block, self._key_on(index.device))

    def _key_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        low, high = self.key
        return _on_device(low, device), _on_device(high, device)

    def uniform(
        self,
        index: Tensor,
        shape: tuple[int, ...],
        *,
        step: Tensor | int = 0,
        draw: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Uniform numbers strictly inside (0, 1), `(n, *shape)`, one row per entry of index `(n,)`."""
        size = math.prod(shape)
        draw = torch.zeros_like(index) if draw is None else draw
        words = torch.stack(self._words(index, draw, step, -(-size // 4)), -1).flatten(1)[:, :size]
        return open_interval(words, dtype).reshape(len(index), *shape)

    def normal(
        self,
        index: Tensor,
        shape: tuple[int, ...],
        *,
        step: Tensor | int = 0,
        draw: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Standard normal numbers, `(n, *shape)`, one row per entry of index `(n,)`."""
        size = math.prod(shape)
        draw = torch.zeros_like(index) if draw is None else draw
        step, key = _on_device(step, index.device), self._key_on(index.device)
        # The blocks come in as a tensor: a compiled arange would count in 32 bits, and overflow in the products. At
        # least two, and strides of 1: compilation would distinguish one block and strides of 0 from other values.
        block = torch.arange(max(2, -(-size // 4)), device=index.device)
        index, draw = index.contiguous(), draw.contiguous()
        if index.device.type != "cpu" or len(index) * size <= CPU_NUMBERS:
            with torch.no_grad():  # compilation would distinguish whether gradients are recorded
                flat = _normals(index, draw, step, block, *key, dtype)[:, :size]
            return flat.reshape(len(index), *shape)
        # on a CPU every word is a separate tensor: in parts, they take little memory and stay in the cache
        flat, rows = torch.empty(len(index), size, dtype=dtype), max(1, CPU_NUMBERS // size)
        for part in torch.arange(len(index)).split(rows):
            some = slice(int(part[0]), int(part[-1]) + 1)
            flat[some] = _normals(index[some], draw[some], step, block, *key, dtype)[:, :size]
        return flat.reshape(len(index), *shape)

    def permutation(self, n: int, step: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """A permutation of 0 … n−1, the same on every device."""
        index = torch.arange(n, device=device)
        words = [word.flatten() for word in self._words(index, torch.zeros_like(index), step, 1)]
        # sort keys of 63 bits: ties are practically impossible, and a stable sort resolves them
        return torch.argsort(words[0] << 31 | words[1] >> 1, stable=True)

    def integer(self, step: int = 0) -> int:
        """One number below 2³², as the seed of another library."""
        zero = torch.zeros(1, dtype=torch.int64)
        return int(self._words(zero, zero, step, 1)[0][0, 0])
