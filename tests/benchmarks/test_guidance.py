"""The benchmark of guided samples in small."""

import json

import torch

from benchmarks import guidance
from diffem.em.exports import export
from diffem.nn.networks import make_network
from diffem.priors import DiffusionPrior

NETWORK = {"hidden": [8, 8], "blocks": 1, "heads": [0, 0], "embedding": 8}


def write(folder, seed: int) -> None:
    torch.manual_seed(seed)
    network = make_network("unet", (3, 32, 32), NETWORK)
    export(DiffusionPrior(network, mean=torch.zeros(3, 32, 32), settings={"kind": "unet", **NETWORK}), folder)


def test_every_weight_has_a_row_and_its_own_samples(assets, tmp_path):
    write(tmp_path / "prior", 0)
    write(tmp_path / "weaker", 1)
    words = ["--prior", tmp_path / "prior", "--weaker", tmp_path / "weaker", "--weights", "1", "3", "--samples", "6"]
    words += ["--steps", "2", "--batch", "4", "--real", "12", "--assets", assets]
    words = [str(word) for word in [*words, "--results", tmp_path]]
    guidance.main(words)
    result = json.loads((tmp_path / "guidance.json").read_text())
    assert [row["weight"] for row in result["rows"]] == [1.0, 3.0]
    assert result["figures"]["kid_1"] != result["figures"]["kid_3"]
    assert not any("fid" in key for key in result["figures"])  # too few samples
