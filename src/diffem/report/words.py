"""Descriptions of observations in words: what they measure of x, the noise level, and the units."""

from __future__ import annotations

import math

from ..core.counting import count_of
from ..core.errors import InputError
from ..observations import Observations
from ..observations.batches import scanned_together
from ..operators import Blur, Compose, Crop, Dense, Downsample, Fourier, Function, Identity, Mask, Operator, Stack
from ..priors import Prior
from ..priors.base import known_observations

DESCRIBED = 256  # largest number of observations from which the description is computed


def operator_in_words(A: Operator) -> str:
    """Describe what an operator measures."""
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
        return "k-space" if coils is None else f"k-space of {count_of(coils.shape[-4], 'coil')}"
    if isinstance(A, Function):
        return "a function of x"
    kinds = {Identity: "x itself", Mask: "some entries of x", Dense: "linear combinations of the entries of x"}
    return {**kinds, Crop: "a window of x"}.get(type(A), f"{type(A).__name__} of x")


def share_measured(obs: Observations) -> str:
    """Describe the fraction of the values of y that are measured; empty if all are."""
    counts = obs.counts().double() / obs.y[0].numel()
    low, high = float(counts.min()), float(counts.max())
    if low == 1:
        return ""
    return f"{low:.0%} of the values" if high - low < 0.01 else f"{low:.0%} to {high:.0%} of the values"


def noise_in_words(obs: Observations) -> str:
    """The noise level, in the units of y."""
    std = obs.cov.diagonal(tuple(obs.y.shape[1:])).sqrt()
    low, high = float(std.min()), float(std.max())
    return f"{low:.3g}" if math.isclose(low, high, rel_tol=1e-3) else f"{low:.3g} to {high:.3g}"


def observation_in_words(obs: Observations) -> str:
    """Describe what observations measure, the measured fraction and the noise level."""
    share = share_measured(obs)
    return f"{operator_in_words(obs.A)}{f', {share}' if share else ''}, noise {noise_in_words(obs)}"


def encoding(obs: Observations | None, prior: Prior, range: tuple[float, float] | None = None) -> list[tuple[str, str]]:
    """Describe the scale and units of the data, as pairs of a name and a text.

    Args:
        obs: The observations of the run, if available.
        prior: The prior of any lap; all laps have the same scale and diffusion noise levels.
        range: The values of x that are pixel 0 and pixel 255, if the data source specifies them.
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
            some = obs[: min(len(obs), DESCRIBED, scanned_together(obs))]
            text = observation_in_words(known_observations(prior, some))
            rows.append(("an observation y", text + (" (estimated)" if prior.noise is not None else "")))
        except InputError:  # the file of the observations no longer exists; the other rows do not need it
            pass
    s = prior.scale
    rows.append(("scale", f"the network input is x / {s:.4g}; this is the size of x under the Gaussian start"))
    low, high = prior.sigma_min, prior.sigma_max
    rows.append(
        (
            "diffusion noise levels",
            f"{low:.3g} to {high:.3g} in the units of x, {low / s:.3g} to {high / s:.3g} times the scale",
        )
    )
    return rows
