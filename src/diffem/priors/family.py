r"""The operators a conditional network was trained for, and how one of them is described to the network.

The network is told K = (I + σ²G)⁻¹, the part of the noise of x_t that y leaves (`posterior/pivot.py`), by what lies between 0, nothing measured, and 1:

    entries    the diagonal of I − K and its product with the network's input v, for masks: what was measured, and the values
    pixels     the same with one number per pixel, where all channels of a pixel are measured together
    part       (I − K) v of the network's input v: an image of what was measured, for k-space and blurs
    matrix     the upper triangle of I − K, for small dense operators
    correction the correction of x_t by the measurement (`posterior/correction.py`), where G is known by products with A only

All are 0 where nothing is measured, so that the network without them is the prior.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor

from ..core.errors import InputError
from ..operators.spectrum import Diagonalised, Information, Spectrum, determined

DESCRIPTIONS = ("entries", "pixels", "part", "matrix", "correction")
MATRIX = 16  # numbers in a sample up to which all entries of I − K are shown
SLACK = 1.5  # noise and measured shares beyond the training's by less than this factor are within the family


@dataclass(frozen=True)
class Family:
    """Operators and noise that a conditional network was trained with.

    Attributes:
        operator: The operator in words, for people.
        basis: Where G is diagonal, or that it is known by products only, `Information.kind`.
        description: How the network is told about the observation, one of `DESCRIPTIONS`.
        shape: The shape of the description of one observation.
        share: The least and the largest share of x that an observation determines at the scale of the data.
        noise: The smallest and the largest noise of a measured coordinate, relative to the scale.
    """

    operator: str
    basis: str
    description: str
    shape: tuple[int, ...]
    share: tuple[float, float]
    noise: tuple[float, float]

    @classmethod
    def of(cls, operator: str, parts: Iterable[Information], event_shape: tuple[int, ...]) -> Self:
        """The family of observations whose information comes in parts, in units of the prior's scale."""
        kinds, together, shares, noises = set(), True, [], []
        for part in parts:  # once, and only a few numbers of each are kept
            kinds.add(part.kind)
            together = together and _alike(part)
            share, noise = part.extent()
            shares.append(share)
            noises.append(noise)
        if len(kinds) > 1:
            raise InputError(f"observations of different kinds cannot train one conditional network: {sorted(kinds)}")
        kind = kinds.pop()
        description, shape = choose_description(kind, event_shape, together)
        return cls(operator, kind, description, shape, _range(torch.cat(shares)), _range(torch.cat(noises)))

    def impossible(self, information: Information) -> str | None:
        """Why the network cannot be told about such observations; None if it can."""
        if information.kind != self.basis:
            return f"the prior was trained for {self.operator}, whose AᵀΣ_y⁻¹A is known by {self.basis}, not by {information.kind}"
        if self.description == "pixels" and not _alike(information):
            return "the prior was trained for masks that delete all channels of a pixel together"
        return None

    def outside(self, information: Information) -> str | None:
        """Why observations lie outside the family, in units of the prior's scale; None if they do not."""
        if (why := self.impossible(information)) is not None:
            return why
        share, noise = map(_range, information.extent())
        for name, (low, high), (least, most) in (
            ("determined share of x", share, self.share),
            ("noise", noise, self.noise),
        ):
            if low < least / SLACK or high > most * SLACK:
                return f"the {name} is {low:.3g} to {high:.3g}, the prior was trained for {least:.3g} to {most:.3g}"
        return None

    def describe(self, information: Information, x: Tensor, level: Tensor) -> Tensor:
        """What the network is shown beside its input x `(n, *event)`: `(n, *shape)`."""
        if self.description == "part":
            return information.combine((determined(level), x))
        G = cast(Diagonalised, information)
        share = determined(level)(G.gains)
        if self.description == "pixels":
            return torch.cat([share[:, :1].expand(len(x), 1, *x.shape[2:]), share * x], 1)
        if self.description == "entries":
            return torch.stack([share.expand_as(x), share * x], 1).reshape(len(x), *self.shape)
        rows = G.tensors()["rows"]
        matrix = (rows.mT * share.unsqueeze(1)) @ rows
        upper = torch.triu_indices(matrix.shape[-1], matrix.shape[-1], device=x.device)
        return matrix[:, upper[0], upper[1]].expand(len(x), *self.shape)

    def note(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, note: Any) -> Self:
        """What `note` wrote, checked: it may come from an untrusted file."""
        try:
            ranges = {name: tuple(float(v) for v in note[name]) for name in ("share", "noise")}
            family = cls(**{**note, **ranges, "shape": tuple(int(v) for v in note["shape"])})
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(f"the description of the prior's operators is damaged: {error}") from None
        texts = (family.operator, family.basis, family.description)
        if (
            not all(isinstance(text, str) and len(text) <= 1000 for text in texts)
            or family.description not in DESCRIPTIONS
        ):
            raise InputError(f"the description of the prior's operators is damaged: {str(texts)[:200]}")
        for name, (low, high) in (("share", family.share), ("noise", family.noise)):
            if not 0 <= low <= high < math.inf:
                raise InputError(f"the description of the prior's operators says {name} = {low} to {high}")
        return family


def choose_description(kind: str, event_shape: tuple[int, ...], together: bool) -> tuple[str, tuple[int, ...]]:
    """How observations are described, and the shape of that.

    Args:
        kind: The basis of their information, `Information.kind`.
        together: Whether all channels of a pixel are measured together.
    """
    size = math.prod(event_shape)
    if kind == "entries":
        if together and len(event_shape) > 2:
            return "pixels", (1 + event_shape[0], *event_shape[1:])
        return "entries", (2 * event_shape[0], *event_shape[1:])
    if kind == "rows" and size <= MATRIX:
        return "matrix", (size * (size + 1) // 2,)
    return ("part" if kind in ("rows", "frequencies") else "correction"), event_shape


def _alike(information: Information) -> bool:
    """Whether all channels of a pixel are measured together, with the same noise."""
    if not isinstance(information, Spectrum):
        return False
    gains = information.gains
    return gains.ndim > 3 and bool((gains == gains[:, :1]).all())


def _range(values: Tensor) -> tuple[float, float]:
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
