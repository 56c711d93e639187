"""Priors as safetensors files: tensors, and a JSON description in the header. Loading executes no code."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..files.origin import Origin, require_origin, stamped
from ..files.tensors import explain, read_tensors, require_finite
from ..files.writing import write_tensors
from ..linalg import Covariance
from ..linalg.saved import describe_covariance, rebuild_covariance
from ..nn.networks import make_network
from .base import Prior
from .diffusion import DiffusionPrior
from .family import Family
from .gaussian import GaussianPrior
from .levels import NoiseLevels
from .parameters import OperatorParameters

FORMAT = "diffem-prior-2"
READABLE = (FORMAT, "diffem-prior-1")  # the first format had no scale: its networks take unscaled samples
SAME_SCALE = 1e-3  # largest relative difference of the scale of a Gaussian prior from that of its covariance


def pack(prior: Prior, **notes: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description of a prior; `notes` are added to the description."""
    description: dict[str, Any] = {
        "format": FORMAT,
        "kind": type(prior).__name__,
        "event_shape": list(prior.event_shape),
        "sigma": [prior.sigma_min, prior.sigma_max],
        "scale": prior.scale,
        **notes,
    }
    if prior.noise is not None:
        description["noise"] = prior.noise.note()
    if prior.operator_parameters is not None:
        description["operator_parameters"] = prior.operator_parameters.note()
    tensors = {"mean": prior.mean}
    if isinstance(prior, DiffusionPrior):
        if prior.settings is None:
            raise InputError(
                "to save a DiffusionPrior, pass the configuration of its network: DiffusionPrior(..., "
                "settings={'kind': ...})"
            )
        description["network"] = prior.settings
        description["trained_min"] = prior.trained_min
        if prior.family is not None:
            description["family"] = prior.family.note()
        tensors |= {f"network.{name}": tensor for name, tensor in prior.network.state_dict().items()}
    elif not isinstance(prior, GaussianPrior):
        raise InputError(f"a {type(prior).__name__} cannot be saved; Gaussian and diffusion priors can")
    cov = prior.covariance()
    if cov is not None:
        description["cov"], parts = describe_covariance(cov)
        tensors |= parts
    return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, description


def load_prior(path: str | os.PathLike[str], device: torch.device | str = "cpu", origin: Origin | None = None) -> Prior:
    """Load a prior, in evaluation mode and without gradients of its parameters."""
    prior, _ = load_with_description(path, origin)
    return prior.to(device)


def load_with_description(path: str | os.PathLike[str], origin: Origin | None = None) -> tuple[Prior, dict[str, Any]]:
    """Load a prior and its description. If `origin` is given, the file must have that origin."""
    tensors, description = read_tensors(path, "a prior")
    if description.get("format") not in READABLE:
        raise InputError(
            f"{path} is not a prior of this library: it has format {description.get('format')!r}, "
            f"this version reads {' and '.join(READABLE)}"
        )
    require_origin(description, origin, path)
    require_finite(tensors, path)
    try:
        prior = rebuild(description, tensors)
    except Exception as error:  # any error from an untrusted description is an error of the file
        raise InputError(f"{path} is not a prior of this library, or is damaged: {explain(error)}") from error
    return prior.eval().requires_grad_(False), description


def rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> Prior:
    """Rebuild a prior from its description, with its estimated noise levels and operator parameters."""
    prior = _rebuild_prior(description, tensors)
    if "noise" in description:
        prior.noise = NoiseLevels.read(description["noise"])
    if "operator_parameters" in description:
        prior.operator_parameters = OperatorParameters.read(description["operator_parameters"])
    return prior


def _with_scale(prior: GaussianPrior, description: dict[str, Any]) -> GaussianPrior:
    """Set the scale of the description, whose last digits differ if it was computed before a change of precision."""
    if description["format"] == FORMAT:
        scale = float(description["scale"])
        if not abs(scale / prior.scale - 1) < SAME_SCALE:
            raise InputError(f"the scale {scale:.3g} does not fit the covariance, which has {prior.scale:.3g}")
        prior.scale = scale
    return prior


def _rebuild_prior(description: dict[str, Any], tensors: dict[str, Tensor]) -> Prior:
    sigma_min, sigma_max = (float(sigma) for sigma in description["sigma"])
    scale = float(description["scale"]) if description["format"] == FORMAT else 1.0
    for name in ("lap", "laps_before"):
        if not isinstance(lap := description.get(name, 0), int) or not 0 <= lap < 1 << 20:
            raise InputError(f"{name} in the description must be a whole number from 0 to {(1 << 20) - 1}, got {lap!r}")
    mean = tensors["mean"]
    if not mean.is_floating_point() or list(mean.shape) != description["event_shape"]:
        raise InputError(
            f"the mean must be floating point of shape {description['event_shape']}, as in the description, got "
            f"{mean.dtype} of shape {tuple(mean.shape)}"
        )
    kind = description["kind"]
    cov = _rebuild_covariance(description["cov"], tensors, mean) if "cov" in description else None
    known = {"mean", *(name for name in tensors if name.startswith("cov.") and cov is not None)}
    if kind == "GaussianPrior":
        _require_names(tensors, known)
        if cov is None:
            raise InputError("the description of a Gaussian prior must contain its covariance")
        return _with_scale(GaussianPrior(mean, cov, sigma_min=sigma_min, sigma_max=sigma_max), description)
    if kind != "DiffusionPrior":
        raise InputError(f"unknown kind of prior {kind!r}")
    settings = dict(description["network"])
    family = Family.read(description["family"]) if "family" in description else None
    return DiffusionPrior(
        _rebuild_network(settings, tensors, mean, known),
        mean=mean,
        cov=cov,
        settings=settings,
        scale=scale,
        sigma_min=sigma_min,
        sigma_max=sigma_max,
        trained_min=float(description.get("trained_min", sigma_min)),
        family=family,
    )


def _rebuild_covariance(entry: Any, tensors: dict[str, Tensor], mean: Tensor) -> Covariance:
    """Rebuild the covariance that belongs to a mean `(*event)`; `entry` is its description."""
    cov = rebuild_covariance(entry, tensors).bind(mean.ndim)
    # one product with zeros checks the shape; a dense covariance is a matrix over the flattened event
    if cov.batch is not None or cov.matvec(mean.unsqueeze(0) * 0).shape[1:] != mean.shape:
        raise InputError(f"the covariance {cov} does not fit samples of shape {tuple(mean.shape)}")
    if math.prod(cov.diagonal(tuple(mean.shape)).shape) != mean.numel():
        raise InputError(f"the covariance {cov} does not fit samples of shape {tuple(mean.shape)}")
    return cov


def _rebuild_network(settings: dict[str, Any], tensors: dict[str, Tensor], mean: Tensor, known: set[str]) -> nn.Module:
    """Rebuild the network of a prior with its weights.

    Args:
        settings: The configuration of the network.
        tensors: All tensors of the file.
        mean: `(*event)`. The mean of the prior, whose dtype the weights must have.
        known: The names of the tensors that are not weights.
    """
    options = {name: value for name, value in settings.items() if name != "kind"}
    with torch.device("meta"):  # without memory: only weights that are in the file are allocated
        expected = make_network(settings["kind"], tuple(mean.shape), options).state_dict()
    _require_names(tensors, known | {f"network.{name}" for name in expected})
    weights = {name: tensors[f"network.{name}"] for name in expected}
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape or weights[name].dtype != mean.dtype:
            raise InputError(
                f"network.{name} must be {mean.dtype}, like the mean, of shape {tuple(tensor.shape)}, got "
                f"{weights[name].dtype} of shape {tuple(weights[name].shape)}"
            )
    network = make_network(settings["kind"], tuple(mean.shape), options).to(mean.dtype)
    network.load_state_dict(weights)
    return network


def _require_names(tensors: dict[str, Tensor], expected: set[str]) -> None:
    if tensors.keys() != expected:
        missing, further = sorted(expected - tensors.keys())[:4], sorted(tensors.keys() - expected)[:4]
        raise InputError(f"missing tensors: {missing or 'none'}; unknown tensors: {further or 'none'}")


def save_prior(prior: Prior, path: str | os.PathLike[str], origin: Origin | None = None, **notes: Any) -> None:
    """Write a prior to one file. An interruption never leaves a partial file."""
    tensors, description = pack(prior, **stamped(notes, origin))
    write_tensors(Path(path), tensors, description)
