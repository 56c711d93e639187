"""Training on complete images: the averages, and a tiny benchmark that stops in time and resumes."""

import json

import pytest
import torch

from benchmarks import floor, pages
from diffem.priors.files import load_prior
from diffem.runs.recipe import load_recipe

NETWORK = ["network.hidden=[8,8]", "network.blocks=1", "network.heads=[0,0]", "network.embedding=8"]
TRAIN = ["train.steps=16", "train.batch=2", "train.warmup=2", "precision=float32"]


def words(assets, out, *more):
    options = ["--samples", "12", "--few", "8", "--batch", "4", "--samplers", "ddpm2-2", "heun-2", "--emas", "0.5"]
    options += ["0.9", "--race", "16e-6", "--at", "24e-6", "--assets", str(assets), "--out", str(out / "runs")]
    return [*options, "--results", str(out), "--set", *NETWORK, *TRAIN, *more]


def result(folder):
    return json.loads((folder / "floor.json").read_text())


@pytest.fixture(scope="module")
def whole(assets, tmp_path_factory):
    # blocks of two steps, so that a training of sixteen steps can stop at several points
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffem.em.maximization.BLOCK_BYTES", 2 * 2 * (3072 + 8) * 4)
        patch.setenv("DIFFEM_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("floor")
        floor.main(words(assets, folder))
        yield folder


def test_a_tiny_race_measures_every_setting(whole):
    rows = result(whole)["rows"]
    assert all(len({tuple(row[name] for name in floor.KEY)}) == 1 for row in rows)
    points = {(row["setting"], row["images"]) for row in rows}
    race = {("beta", 16), ("lognormal", 16)}
    assert race < points
    (winner,) = {setting for setting, _ in points - race}
    assert {images for setting, images in points if setting == winner} == {16, 24, 32}
    assert winner == min((row["fid"], row["setting"]) for row in rows if row["images"] == 16)[1]
    # every average with a few samples; later those of the winner, the best of them with all samples; the other sampler
    # only at the end
    assert {(row["ema"], row["samples"]) for row in rows if row["images"] == 16} == {(0.5, 8), (0.9, 8)}
    assert len([row for row in rows if row["samples"] == 12]) == 2
    assert {(row["images"], row["sampler"]) for row in rows if row["sampler"] != "ddpm2-2"} == {(32, "heun-2")}
    figures = result(whole)["figures"]
    assert [figures[f"fid_0.012k_{winner}_3.2e-05m"]] == [
        row["fid"] for row in rows if row["images"] == 32 and row["samples"] == 12
    ]
    prior = load_prior(whole / "runs" / winner / "prior-32.safetensors")
    assert prior.sample(1, steps=2, progress=False).isfinite().all()


def test_a_finished_race_measures_nothing_again(assets, whole, monkeypatch):
    before = result(whole)["rows"]
    monkeypatch.setattr(floor.Floor, "measure", None)
    floor.main(words(assets, whole))
    assert result(whole)["rows"] == before


def test_an_interrupted_race_ends_with_the_same_figures(assets, whole, tmp_path):
    floor.main([*words(assets, tmp_path), "--minutes", "0"])
    assert not (tmp_path / "floor.json").exists()  # stopped before the first measured point
    assert (tmp_path / "runs" / "beta" / "training.safetensors").is_file()
    floor.main(words(assets, tmp_path))
    cut, uncut = (
        {tuple(row[name] for name in floor.KEY): row["fid"] for row in result(folder)["rows"]}
        for folder in (tmp_path, whole)
    )
    assert cut == uncut


def test_averages_exclude_the_initial_weights(tmp_path):
    recipe = load_recipe("cifar10-clean")
    training = floor.Training(recipe, tmp_path, [0.9])
    weights = [torch.randn(3).double() for _ in range(6)]
    for done, w in enumerate(weights, 1):
        training.follow(done, {"weight.0": w})
    shares = torch.tensor([0.9 ** (6 - i) for i in range(1, 7)]).double()
    expected = (shares[:, None] * torch.stack(weights)).sum(0) / shares.sum()
    assert torch.allclose(training.average(0.9)[0], expected, atol=1e-7)


def test_the_page_shows_every_row_with_all_samples(whole):
    text = pages.RENDER["floor"](result(whole))
    assert text.count("log σ ~ N") >= 1
    assert result(whole)["date"][:4] in text
