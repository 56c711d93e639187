"""A prior as a folder: the content of the card, round trips, and rejection of files that the card does not describe."""

import json
import os

import pytest
import torch

from diffem import InputError, Observations, operators, priors
from diffem.em import exports as hub
from diffem.files.reading import file_digest
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
def test_a_prior_survives_export_and_load(name, tmp_path):
    prior = PRIORS[name]()
    hub.export(prior, tmp_path)
    again = hub.load(tmp_path)
    x_t = torch.randn(3, *EVENT, dtype=prior.mean.dtype)
    assert type(again) is type(prior)
    assert torch.equal(again(x_t, 0.5), prior(x_t, 0.5))
    assert (again.sigma_min, again.sigma_max) == (prior.sigma_min, prior.sigma_max)
    assert torch.equal(again.sample(2, steps=4), prior.sample(2, steps=4))
    assert not any(p.requires_grad for p in again.parameters())


def test_the_card_describes_prior_and_training(tmp_path):
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
    """A downloaded snapshot is a folder of links into a cache, and other tools may have rewritten the weights."""
    from safetensors.torch import load_file, save_file

    prior = diffusion()
    hub.export(prior, tmp_path / "made")
    (tmp_path / "blobs").mkdir()
    save_file(load_file(tmp_path / "made" / "model.safetensors"), tmp_path / "blobs" / "a")
    card = json.loads((tmp_path / "made" / "config.json").read_text())
    del card["checksum"]  # as in a card that another program wrote
    card["files"]["model.safetensors"]["sha256"] = file_digest(tmp_path / "blobs" / "a")
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


def flip_last_bit(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def with_weights(folder, change):
    """Replace the weights, and their hash in the card."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    changed(folder, lambda card: card["files"]["model.safetensors"].update(sha256=file_digest(file)))


def as_pipe(file):
    file.unlink()
    os.mkfifo(file)


def as_link(file, target):
    file.unlink()
    file.symlink_to(target)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "config.json").unlink(), "no exported prior"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "config.json").write_text("[]"), "format 'list'"),
        (lambda f: changed(f, lambda c: c.update(format="other")), "format 'other'"),
        (lambda f: (f / "model.safetensors").unlink(), "cannot be read"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 64), "claims a header of 0 bytes"),
        (lambda f: flip_last_bit(f / "model.safetensors"), "SHA-256"),
        (lambda f: with_weights(f, lambda t: t["network.layers.0.weight"].fill_(torch.nan)), "not finite"),
        (lambda f: with_weights(f, lambda t: t["mean"].fill_(torch.inf)), "not finite"),
        (
            lambda f: with_weights(f, lambda t: t.update({"cov.factor": torch.zeros(50, 2, 3)})),
            "cov.factor is too large",
        ),
        (lambda f: with_weights(f, lambda t: t.update(more=torch.zeros(3))), "the card describes more with shape None"),
        (lambda f: as_pipe(f / "model.safetensors"), "is not a file but a pipe"),
        (lambda f: as_pipe(f / "config.json"), "is not a file but a pipe"),
        (lambda f: as_link(f / "model.safetensors", "/dev/zero"), "is not a file but a device"),
        (lambda f: as_link(f / "config.json", "/dev/zero"), "is not a file but a device"),
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


def test_a_run_is_exported_with_its_lap_and_cost(tmp_path):
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


OTHERS = {
    "a page of somebody's": {"README.md": b"# My thesis"},
    "a model of another library": {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"weights"},
    "weights alone": {"model.safetensors": b"weights"},
    "a card of another format": {"config.json": b'{"format": "diffem-card-9"}', "README.md": b"?"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_that_is_no_export_is_left_alone(name, tmp_path):
    for file, data in OTHERS[name].items():
        (tmp_path / file).write_bytes(data)
    with pytest.raises(InputError, match="is not empty and contains no exported prior"):
        hub.export(diffusion(), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == OTHERS[name]


def test_an_export_may_be_written_again(tmp_path, monkeypatch):
    """Over an earlier export, into an empty folder, beside hidden files, and after an interruption."""
    (tmp_path / ".gitattributes").write_text("*.safetensors filter=lfs")
    with monkeypatch.context() as patch:
        patch.setattr(hub, "write_json", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hub.export(diffusion(), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {".gitattributes", "model.safetensors"}
    for prior in (diffusion(), diffusion(torch.float64)):
        hub.export(prior, tmp_path)
        assert hub.load(tmp_path).mean.dtype == prior.mean.dtype
    with pytest.raises(InputError, match="is a file, not a folder"):
        hub.export(diffusion(), tmp_path / "README.md")
