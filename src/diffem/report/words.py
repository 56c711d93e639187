"""Observations in words, for people who look at a run: what was measured of x, with how much noise, in which units."""

from __future__ import annotations

import math

from ..core.errors import InputError
from ..observations import Observations
from ..observations.batches import scanned_together
from ..operators import Blur, Compose, Crop, Dense, Downsample, Fourier, Function, Identity, Mask, Operator, Stack
from ..priors import Prior
from ..priors.levels import with_known_noise

LOOKED_AT = 256  # observations that are counted and measured


def operator_in_words(A: Operator) -> str:
    """What kind of measurement an operator makes."""
    if isinstance(A, Compose):
        return ", then ".join(operator_in_words(part) for part in reversed(A.children()))
    if isinstance(A, Stack):
        return " and ".join(operator_in_words(part) for part in A.children())
    if isinstance(A, Blur):
        height, width = A.tensors()["kernel"].shape[-2:]
        return f"a blur with a kernel of {height}×{width} pixels"
    if isinstance(A, Downsample):
        return f"{A.factor} times lower resolution"
    if isinstance(A, Fourier):
        coils = A.tensors().get("coils")
        return "k-space" if coils is None else f"k-space of {coils.shape[-4]} coils"
    if isinstance(A, Function):
        return "a function of x"
    kinds = {Identity: "x itself", Mask: "some entries of x", Dense: "linear combinations of the entries of x"}
    return {**kinds, Crop: "a window of x"}.get(type(A), f"{type(A).__name__} of x")


def share_measured(obs: Observations) -> str:
    """Which share of its values the observations measure: empty if all."""
    counts = obs.counts().double() / obs.y[0].numel()
    low, high = float(counts.min()), float(counts.max())
    if low == 1:
        return ""
    return f"{low:.0%} of the values" if high - low < 0.01 else f"{low:.0%} to {high:.0%} of the values"


def noise_in_words(obs: Observations) -> str:
    """The standard deviation of the noise, in the units of y."""
    std = obs.cov.diagonal(tuple(obs.y.shape[1:])).sqrt()
    low, high = float(std.min()), float(std.max())
    return f"{low:.3g}" if math.isclose(low, high, rel_tol=1e-3) else f"{low:.3g} to {high:.3g}"


def observation_in_words(obs: Observations) -> str:
    """What observations measure, how much of it, and with how much noise."""
    share = share_measured(obs)
    return f"{operator_in_words(obs.A)}{f', {share}' if share else ''}, noise {noise_in_words(obs)}"


def encoding(obs: Observations | None, prior: Prior, range: tuple[float, float] | None = None) -> list[tuple[str, str]]:
    """How the data are encoded, as rows of a name and a text.

    Args:
        obs: The run's observations; None if they are not at hand.
        prior: The prior of a lap: all of a run have the same scale and noise levels.
        range: The values of x that are pixel 0 and pixel 255, if the data source names them.
    """
    shape = " × ".join(map(str, prior.event_shape))
    rows = [
        (
            "a sample x",
            f"{shape} {'numbers' if math.prod(prior.event_shape) > 1 else 'number'}, in the units of the data",
        )
    ]
    if range is not None:
        rows.append(("black and white", f"x = {range[0]:g} is pixel 0, x = {range[1]:g} is pixel 255"))
    if obs is not None and len(obs):
        try:
            some = obs[: min(len(obs), LOOKED_AT, scanned_together(obs))]
            text = observation_in_words(with_known_noise(some, prior.noise))
            rows.append(("an observation y", text + (" (estimated)" if prior.noise is not None else "")))
        except InputError:  # observations on a disk that is gone: the rest still holds
            pass
    s = prior.scale
    rows.append(("scale", f"the network computes with x / {s:.4g}, the size of x under the start"))
    low, high = prior.sigma_min, prior.sigma_max
    rows.append(
        ("noise levels", f"{low:.3g} to {high:.3g} in the units of x, {low / s:.3g} to {high / s:.3g} times the scale")
    )
    return rows
