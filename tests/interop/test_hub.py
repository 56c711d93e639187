"""A prior as a folder: what the card says, the same prior again, and nothing but what the card describes."""

import json

import pytest
import torch

from diffem import InputError, Observations, operators, priors
from diffem.interop import hub
from diffem.linalg import LowRank
from diffem.nn.networks import make_network

EVENT = (2, 3)
SETTINGS = {"kind": "mlp", "hidden": [16, 16], "embedding": 8}


def diffusion(dtype=torch.float32):
    torch.manual_seed(0)
    network = make_network("mlp", EVENT, {"hidden": [16, 16], "embedding": 8}).to(dtype)
    mean = torch.randn(EVENT, dtype=dtype)
    cov = LowRank(torch.randn(2, *EVENT, dtype=dtype), 0.3)
    return priors.DiffusionPrior(network, mean=mean, cov=cov, settings=SETTINGS, sigma_min=0.02, sigma_max=30.0)


def observations():
    mask = torch.rand(5, *EVENT) < 0.5
    A = operators.Compose(operators.Mask(mask), operators.Identity())
    return Observations(torch.randn(5, *EVENT), A, sigma=0.1)


PRIORS = {
    "diffusion": diffusion,
    "diffusion, float64": lambda: diffusion(torch.float64),
    "gaussian, low rank": lambda: priors.GaussianPrior(torch.randn(EVENT), LowRank(torch.randn(2, *EVENT), 0.3)),
    "gaussian, dense": lambda: priors.GaussianPrior(torch.randn(EVENT), torch.eye(6)),
}


@pytest.mark.parametrize("name", PRIORS)
def test_there_and_back(name, tmp_path):
    prior = PRIORS[name]()
    hub.export(prior, tmp_path)
    again = hub.load(tmp_path)
    x_t = torch.randn(3, *EVENT, dtype=prior.mean.dtype)
    assert type(again) is type(prior)
    assert torch.equal(again(x_t, 0.5), prior(x_t, 0.5))
    assert (again.sigma_min, again.sigma_max) == (prior.sigma_min, prior.sigma_max)
    assert torch.equal(again.sample(2, steps=4), prior.sample(2, steps=4))
    assert not any(p.requires_grad for p in again.parameters())


def test_the_card(tmp_path):
    obs = observations()
    prior = diffusion()
    hub.export(prior, tmp_path, obs=obs, range=(-2, 2), lap=7, training={"recipe": "mine"}, notes="A test.")
    card = hub.read_card(tmp_path)
    assert card["prior"]["network"] == SETTINGS
    assert card["prior"]["sigma"] == [0.02, 30.0]
    assert (card["range"], card["lap"], card["dtype"]) == ([-2, 2], 7, "float32")
    assert card["parameters"] == sum(p.numel() for p in prior.parameters())
    assert card["training"]["recipe"] == "mine"
    assert card["training"]["observations"] == 5
    assert card["training"]["noise"]["mean_variance"] == pytest.approx(0.01)
    mask, identity = card["training"]["operators"]["parts"]
    assert (mask["kind"], mask["parameters"]) == ("Mask", {"mask": [5, 2, 3]})
    assert identity["kind"] == "Identity"
    assert len(card["files"]["model.safetensors"]["sha256"]) == 64
    assert "A test." in (tmp_path / "README.md").read_text()


def test_the_hubs_layout_of_links_and_without_our_header(tmp_path):
    """A downloaded snapshot is a folder of links into a store, and other tools may have written the weights again."""
    from safetensors.torch import load_file, save_file

    prior = diffusion()
    hub.export(prior, tmp_path / "made")
    (tmp_path / "blobs").mkdir()
    save_file(load_file(tmp_path / "made" / "model.safetensors"), tmp_path / "blobs" / "a")
    card = json.loads((tmp_path / "made" / "config.json").read_text())
    del card["checksum"]  # as in a card that another program wrote
    card["files"]["model.safetensors"]["sha256"] = hub.digest((tmp_path / "blobs" / "a").read_bytes())
    (tmp_path / "blobs" / "b").write_text(json.dumps(card))
    snapshot = tmp_path / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/a")
    (snapshot / "config.json").symlink_to("../../blobs/b")
    x_t = torch.randn(3, *EVENT)
    assert torch.equal(hub.load(snapshot)(x_t, 0.5), prior(x_t, 0.5))


def changed(folder, change):
    card = json.loads((folder / "config.json").read_text())
    del card["checksum"]  # as in a card that another program wrote
    change(card)
    (folder / "config.json").write_text(json.dumps(card))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "config.json").unlink(), "no exported prior"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "config.json").write_text("[]"), "format 'list'"),
        (lambda f: changed(f, lambda c: c.update(format="other")), "format 'other'"),
        (lambda f: (f / "model.safetensors").unlink(), "cannot be read"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 64), "SHA-256"),
        (lambda f: changed(f, lambda c: c.pop("files")), "no hash"),
        (lambda f: changed(f, lambda c: c["prior"].update(kind="Evil")), "Evil"),
        (lambda f: changed(f, lambda c: c["prior"]["network"].update(hidden=[1 << 20, 1 << 20])), "1048576"),
        (lambda f: changed(f, lambda c: c["prior"]["network"].update(kind="os.system")), "unknown network"),
        (lambda f: changed(f, lambda c: c["prior"].update(event_shape=[6])), "shape"),
        (lambda f: changed(f, lambda c: c["prior"].pop("sigma")), "sigma"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused(damage, words, tmp_path):
    hub.export(diffusion(), tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=words):
        hub.load(tmp_path)


def test_a_run(tmp_path):
    import diffem

    mask = torch.rand(64, *EVENT, generator=torch.Generator().manual_seed(0)) < 0.7
    obs = Observations(torch.randn(64, *EVENT), operators.Mask(mask), sigma=0.1)
    changes = {
        "laps": 1,
        "network.hidden": [8],
        "train.steps": 4,
        "train.first_steps": 4,
        "e_step.steps": 4,
        "watch.held_out": 8,
    }
    run = diffem.fit(obs, "digits", tmp_path / "run", changes=changes, progress=False)
    hub.export_run(run.path, tmp_path / "out", obs=obs, range=(-2, 2))
    card, x_t = hub.read_card(tmp_path / "out"), torch.randn(2, *EVENT)
    assert card["lap"] == 1
    assert card["training"]["recipe"]["network"]["hidden"] == [8]
    assert card["training"]["run_observations"] == card["training"]["fingerprint"]
    assert torch.equal(hub.load(tmp_path / "out")(x_t, 0.5), run.prior(x_t, 0.5))
    with pytest.raises(InputError, match="lap 5"):
        hub.export_run(run.path, tmp_path / "out", lap=5)
