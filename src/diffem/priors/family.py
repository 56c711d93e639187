r"""The operators that a conditional network was trained for, and their description as input of the network.

The description is a function of K = (I + σ²G)⁻¹, the part of the noise of x_t that remains given y
(`posterior/pivot.py`). There are six:

    entries    for masks: the diagonal of I − K and its product with the network's input v
    pixels     the same with one number per pixel, if all channels of a pixel are measured together
    part       for k-space and blurs: (I − K) v for the network's input v
    matrix     for small dense operators: the upper triangle of I − K
    correction for operators of which only products are available: the correction of x_t by y
               (`posterior/correction.py`)
    features   for channels: the standardised features of y, and 1 for examples with a y

All are 0 if nothing is measured, so the network without a description is the prior.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.shapes import per_sample
from ..observations.features import Features
from ..operators.spectrum import DiagonalInformation, Information, Spectrum, determined_share

DESCRIPTIONS = ("entries", "pixels", "part", "matrix", "correction", "features")
MATRIX = 16  # largest size of a sample for the description "matrix"
FAR = 3.0  # root mean square of standardised features above which an observation is unlike those of the training
SLACK = 1.5  # factor by which noise and determined shares may exceed the range of the training


@dataclass(frozen=True)
class Family:
    """Operators and noise that a conditional network was trained with.

    Attributes:
        operator: The operator in words.
        basis: The representation of G, `Information.kind`.
        description: One of `DESCRIPTIONS`.
        shape: The shape of the description of one observation.
        share: The least and the largest share of x that an observation determines at the scale of the data.
        noise: The smallest and the largest noise of a measured coordinate, relative to the scale.
        center: The mean of every channel of the features, for "features".
        spread: Its standard deviation.
    """

    operator: str
    basis: str
    description: str
    shape: tuple[int, ...]
    share: tuple[float, float]
    noise: tuple[float, float]
    center: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()

    @classmethod
    def of_channel(cls, operator: str, parts: Iterable[Features]) -> Self:
        """Make the family of observations of a channel from their features, given in parts."""
        count, first, second, shape = 0, torch.zeros(()), torch.zeros(()), torch.Size()
        for part in parts:
            maps = part.maps.double().cpu()
            shape, values = maps.shape[1:], maps.transpose(0, 1).flatten(1)
            count += values.shape[1]
            first, second = first + values.sum(1), second + values.square().sum(1)
        mean = first / count
        std = (second / count - mean.square()).clamp(min=0).sqrt()
        std = torch.where(std > 1e-6 * mean.abs(), std, 1)  # a constant channel stays at 0
        shown = (shape[0] + 1, *shape[1:])
        ranges = (0.0, 0.0), (0.0, 0.0)
        return cls(operator, Features.kind, "features", shown, *ranges, tuple(mean.tolist()), tuple(std.tolist()))

    @classmethod
    def of(cls, operator: str, parts: Iterable[Information], event_shape: tuple[int, ...]) -> Self:
        """Make the family of observations from their information, given in parts and in units of the prior's scale."""
        kinds, together, shares, noises = set(), True, [], []
        for part in parts:  # one pass; only a few numbers per part are kept
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
        """Reason why such observations cannot be described to the network; None if they can."""
        if isinstance(information, Features) and self.basis != Features.kind:
            return f"the prior was trained for {self.operator}, these observations come from a Channel"
        if information.kind != self.basis and self.basis == Features.kind:
            return f"the prior was trained for a {self.operator}, these observations have another operator"
        if isinstance(information, Features) and (shape := tuple(information.maps.shape[2:])) != self.shape[1:]:
            return f"the prior was trained for features of shape {self.shape[1:]}, these have shape {shape}"
        if isinstance(information, Features) and (channels := information.maps.shape[1]) != len(self.center):
            return (
                f"the prior was trained for features with {count_of(len(self.center), 'channel')}, these have "
                f"{channels}"
            )
        if information.kind != self.basis:
            return (
                f"the prior was trained for {self.operator}, whose AᵀΣ_y⁻¹A is represented by {self.basis}; that of "
                f"these observations is represented by {information.kind}"
            )
        if self.description == "pixels" and not _alike(information):
            return "the prior was trained for masks that delete all channels of a pixel together"
        return None

    def outside(self, information: Information) -> str | None:
        """Reason why observations lie outside the family; None if they lie inside.

        information: in units of the prior's scale.
        """
        if (why := self.impossible(information)) is not None:
            return why
        if isinstance(information, Features):
            size = float(self._standardised(information).square().mean().sqrt())
            far = f"the features of y are {size:.1f} times as large as those that the prior was trained for"
            return far if size > FAR else None
        share, noise = map(_range, information.extent())
        for name, (low, high), (least, most) in (
            ("determined share of x", share, self.share),
            ("noise", noise, self.noise),
        ):
            if low < least / SLACK or high > most * SLACK:
                return f"the {name} is {low:.3g} to {high:.3g}, the prior was trained for {least:.3g} to {most:.3g}"
        return None

    def describe(self, information: Information, x: Tensor, level: Tensor) -> Tensor:
        """Compute the description `(n, *shape)` that accompanies the network's input x `(n, *event)`."""
        if isinstance(information, Features):
            maps = self._standardised(information)
            return torch.cat([maps, torch.ones_like(maps[:, :1])], 1) * per_sample(information.known.to(maps), maps)
        if self.description == "part":
            return information.combine((determined_share(level), x))
        G = cast(DiagonalInformation, information)
        share = determined_share(level)(G.gains)
        if self.description == "pixels":
            return torch.cat([share[:, :1].expand(len(x), 1, *x.shape[2:]), share * x], 1)
        if self.description == "entries":
            return torch.stack([share.expand_as(x), share * x], 1).reshape(len(x), *self.shape)
        rows = G.tensors()["rows"]
        matrix = (rows.mT * share.unsqueeze(1)) @ rows
        upper = torch.triu_indices(matrix.shape[-1], matrix.shape[-1], device=x.device)
        return matrix[:, upper[0], upper[1]].expand(len(x), *self.shape)

    def _standardised(self, features: Features) -> Tensor:
        """The features with mean 0 and variance 1 in every channel, `(n, channels, ...)`."""
        maps = features.maps
        center, spread = (maps.new_tensor(v).reshape(-1, *(1,) * (maps.ndim - 2)) for v in (self.center, self.spread))
        return (maps - center) / spread

    def note(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, note: Any) -> Self:
        """Read the result of `note`, with checks, since it may come from an untrusted file."""
        try:
            ranges = {name: tuple(float(v) for v in note[name]) for name in ("share", "noise")}
            ranges |= {name: tuple(float(v) for v in note.get(name, ())) for name in ("center", "spread")}
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
                raise InputError(
                    f"the description of the prior's operators is damaged: {name} must be a range 0 ≤ low ≤ high, got "
                    f"{low} to {high}"
                )
        good = all(math.isfinite(c) and 0 < s < math.inf for c, s in zip(family.center, family.spread, strict=False))
        if not good or len(family.center) != len(family.spread):
            raise InputError("the description of the prior's features must hold a mean and a deviation per channel")
        return family


def choose_description(kind: str, event_shape: tuple[int, ...], together: bool) -> tuple[str, tuple[int, ...]]:
    """Choose a description and its shape.

    Args:
        kind: The representation of their information, `Information.kind`.
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
