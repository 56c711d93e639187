"""Small valid inputs, from which the hostile ones are made. They are accepted, so the change causes a rejection."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from diffem import Observations, operators, priors
from diffem.em import exports as hub
from diffem.files.writing import write_array, write_json
from diffem.linalg import Isotropic
from diffem.nn.networks import make_network
from diffem.priors.files import pack, save_prior
from diffem.runs.draws import DrawStore
from diffem.runs.lap_arrays import write_lap_arrays, write_losses
from diffem.runs.recipe import load_recipe
from diffem.runs.rundir import RunDir

from ..mri.volumes import write_volume

EVENT = (4,)
NETWORK = {"kind": "mlp", "hidden": [8], "embedding": 4}
RECIPE: dict[str, Any] = {
    "name": "sound",
    "data": {"source": "manifold", "n": 32, "dimension": 4, "measured": 2, "sigma": 0.1},
    "laps": 1,
    "sigma_min": 0.02,
    "sigma_max": 20.0,
    "gaussian": {"rounds": 2},
    "network": NETWORK,
    "e_step": {"steps": 2, "iterations": 1, "shard": 14},
    "train": {"steps": 4, "batch": 8},
    "watch": {"held_out": 4, "draws": 2, "samples": 8},
}


TRAINED, SHARD = 28, 14  # training observations of the recipe, and observations per shard


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def prior(kind: str = "network") -> priors.Prior:
    mean = numbers(*EVENT)
    if kind == "gaussian":
        return priors.GaussianPrior(mean, Isotropic(torch.tensor(2.0)))
    torch.manual_seed(0)
    options = {name: value for name, value in NETWORK.items() if name != "kind"}
    network = make_network("mlp", EVENT, options)
    return priors.DiffusionPrior(network, mean=mean, cov=Isotropic(torch.tensor(2.0)), settings=NETWORK)


def packed_prior(kind: str = "network") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return pack(prior(kind), lap=1, training={"loss": 1.0})


def observations(n: int = 3) -> Observations:
    return Observations(numbers(n, *EVENT), operators.Mask(numbers(n, *EVENT, seed=1) > -1), sigma=0.1)


def write_run(folder: Path, **changes: Any) -> Path:
    """Write a run with a finished start and the draws of lap 1, enough for `sample`, `evaluate` and `report`."""

    recipe = load_recipe({**RECIPE, **changes})
    run = RunDir(folder)
    run.open(recipe, recipe.problem().obs)
    save_prior(prior("gaussian"), run.prior_file(0), run.origin("prior", 0), lap=0)
    arrays = {"samples.npy": numbers(8, *EVENT).numpy(), "posterior.npy": numbers(2, 4, *EVENT).numpy()}
    files = write_lap_arrays(run, 0, arrays)
    write_losses(run, 0, [(1, 0.5), (2, 0.25)])
    run.finish_lap(0, {"lap": 0, "seconds": 0.1, "heldout_chi2": 1.0, "warnings": [], "files": files})
    store = DrawStore.of_lap(run, 1, TRAINED, SHARD)
    for k in range(len(store)):
        first, end = store.range(k)
        store.write(k, numbers(1, end - first, *EVENT, seed=k), {"draws": end - first})
    run.unlock()
    return folder


def write_sound(folder: Path) -> None:
    """Write all valid inputs that the commands of the corpus need."""
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder / "run")
    hub.export(prior(), folder / "shared")
    save_prior(prior(), folder / "prior.safetensors", lap=1)
    observations().save(folder / "obs.safetensors")
    (folder / "recipe.yaml").write_text(load_recipe(RECIPE).to_yaml())
    write_array(folder / "reference.npy", numbers(16, *EVENT).numpy())
    (folder / "images").mkdir()
    for k in range(3):
        Image.fromarray(np.full((8, 8), 40 * k, np.uint8)).save(folder / "images" / f"{k}.png")
    with tarfile.open(folder / "images.tar.gz", "w:gz") as archive:
        archive.add(folder / "images", "images")
    (folder / "volumes").mkdir()
    write_volume(folder / "volumes" / "0.h5", slices=2, kspace=(16, 16), size=(16, 16))
    np.save(folder / "maps.npy", np.ones((2, 16, 16), np.complex64))
    (folder / "cifar").mkdir()
    np.savez(folder / "cifar" / "train.npz", images=np.zeros((3, 3, 32, 32), np.uint8))
    own = [("host", "127.0.0.1:7860"), ("origin", "http://127.0.0.1:7860")]
    write_json(folder / "request.json", {"method": "POST", "path": "/gradio_api/upload", "headers": own})
