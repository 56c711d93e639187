"""Priors as safetensors files: tensors, and in the header a JSON description from which the prior is rebuilt. Nothing is executed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..linalg import COVARIANCES, Covariance
from ..nn.networks import make_network
from .base import Prior
from .diffusion import DiffusionPrior
from .gaussian import GaussianPrior

FORMAT = "diffem-prior-1"


def pack(prior: Prior, **notes: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a prior; `notes` are added to the description."""
    description: dict[str, Any] = {
        "format": FORMAT,
        "kind": type(prior).__name__,
        "event_shape": list(prior.event_shape),
        "sigma": [prior.sigma_min, prior.sigma_max],
        **notes,
    }
    tensors = {"mean": prior.mean}
    if isinstance(prior, DiffusionPrior):
        if prior.settings is None:
            raise InputError(
                "to save a DiffusionPrior, say how its network is made: DiffusionPrior(..., settings={'kind': ...})"
            )
        description["network"] = prior.settings
        tensors |= {f"network.{name}": tensor for name, tensor in prior.network.state_dict().items()}
    elif not isinstance(prior, GaussianPrior):
        raise InputError(f"a {type(prior).__name__} cannot be saved; Gaussian and diffusion priors can")
    cov = prior.covariance()
    if cov is not None:
        kind = next(name for name, type_ in COVARIANCES.items() if type_ is type(cov))
        description["cov"] = {"kind": kind, "axes": cov._shared_ndim}
        tensors |= {f"cov.{name}": tensor for name, tensor in cov._tensors.items()}
    return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, description


def load_prior(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Prior:
    """The prior a file describes, in evaluation mode and without gradients on its parameters."""
    prior, _ = load_with_description(path)
    return prior.to(device)


def load_with_description(path: str | os.PathLike[str]) -> tuple[Prior, dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), "pt") as file:
            header = (file.metadata() or {}).get("diffem")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as a prior: {error}") from None
    try:
        description = json.loads(header or "")
        if description["format"] != FORMAT:
            raise InputError(f"{path} has format {description['format']!r}, this version reads {FORMAT!r}")
        prior = _rebuild(description, tensors)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise InputError(f"{path} is not a prior of this library, or is damaged: {error}") from None
    return prior.eval().requires_grad_(False), description


def _rebuild(description: dict[str, Any], tensors: dict[str, Tensor]) -> Prior:
    sigma_min, sigma_max = description["sigma"]
    mean = tensors["mean"]
    if list(mean.shape) != description["event_shape"]:
        raise InputError(f"the mean has shape {tuple(mean.shape)}, the description says {description['event_shape']}")
    cov: Covariance | None = None
    if "cov" in description:
        entry = description["cov"]
        axes = {name: (tensors[f"cov.{name}"], ndim) for name, ndim in entry["axes"].items()}
        cov = COVARIANCES[entry["kind"]]._raw(**axes)
    if description["kind"] == "GaussianPrior":
        assert cov is not None
        return GaussianPrior(mean, cov, sigma_min=sigma_min, sigma_max=sigma_max)
    if description["kind"] != "DiffusionPrior":
        raise InputError(f"unknown kind of prior {description['kind']!r}")
    settings = dict(description["network"])
    network = make_network(settings.pop("kind"), tuple(mean.shape), settings)
    weights = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    network.load_state_dict(weights)
    network.to(mean.dtype)
    return DiffusionPrior(
        network, mean=mean, cov=cov, settings=description["network"], sigma_min=sigma_min, sigma_max=sigma_max
    )


def save_prior(prior: Prior, path: str | os.PathLike[str], **notes: Any) -> None:
    """Write a prior to one file, by way of a temporary name: an interruption never leaves half a file."""
    from ..runs.files import write_tensors

    tensors, description = pack(prior, **notes)
    write_tensors(Path(path), tensors, description)
