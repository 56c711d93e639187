"""Recipes: the built-in ones are valid, and errors in others are explained."""

import pytest
import torch

from diffem.files.reading import digest
from diffem.nn.networks import make_network
from diffem.runs.changes import differences
from diffem.runs.earlier_keys import translate
from diffem.runs.recipe import EStep, Train, load_recipe, names, parse_change
from diffem.runs.schema import CHECKSUM
from diffem.runs.sources import make_problem


@pytest.mark.parametrize("name", names())
def test_built_in_recipes_are_valid_and_survive_writing(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.about
    (tmp_path / "r.yaml").write_text(recipe.to_yaml())
    assert load_recipe(str(tmp_path / "r.yaml")) == recipe


def test_the_promised_recipes_are_there():
    assert {
        "digits",
        "manifold",
        "manifold-quick",
        "cifar10",
        "cifar10-fast",
        "cifar10-clean",
        "fastmri",
        "mri-fast",
    } <= set(names())


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("manifold", (5,), 150_789),
        ("cifar10", (3, 32, 32), 57_560_451),
        ("cifar10-fast", (3, 32, 32), None),
        ("cifar10-clean", (3, 32, 32), None),
        ("fastmri", (1, 320, 320), 77_648_912),
        ("mri-fast", (1, 160, 160), None),
    ],
)
def test_networks_of_the_recipes(name, shape, parameters):
    """They can be made for the data they are meant for; the paper's have the paper's size."""
    network = load_recipe(name).network
    with torch.device("meta"):
        made = make_network(network.kind, shape, network.options("kind"))
    assert parameters is None or sum(p.numel() for p in made.parameters()) == parameters


def test_changes_are_parsed_and_applied():
    recipe = load_recipe("digits", dict(map(parse_change, ["train.lr=1e-4", "laps=2", "network.hidden=[8, 8]"])))
    assert recipe.train.lr == 1e-4
    assert recipe.laps == 2
    assert recipe.network.options("kind")["hidden"] == [8, 8]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["train.lrr=1"], r"unknown key 'train.lrr'; known here: steps, .*lr"),
        (["trains.lr=1"], r"unknown key 'trains'; known here: name"),
        (["train.lr=fast"], r"train.lr: .*number.*'fast'"),
        (["train.lr=-1"], r"train.lr: .*greater than 0.*-1"),
        (["laps=0"], "laps: .*greater than or equal to 1.*0"),
        (["laps=2.5"], "laps: .*2.5"),
        (["sigma_min=200"], "sigma_min 200.0 must lie below sigma_max"),
        (["train.schedule=cubic"], "train.schedule: .*linear"),
        (["laps"], "key=value"),
        (["train=[1"], "not a valid value"),
    ],
)
def test_bad_changes_are_rejected(changes, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        load_recipe("digits", dict(map(parse_change, changes)))


def test_bad_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"unknown recipe 'digitz'.*digits, .*manifold"):
        load_recipe("digitz")
    file = tmp_path / "r.yaml"
    file.write_text("name: [")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_recipe(str(file))
    file.write_text("- 1")
    with pytest.raises(ValueError, match="mapping"):
        load_recipe(str(file))
    file.write_text("name: x\nlaps: 1")
    with pytest.raises(ValueError, match="'data' is missing; 'train' is missing"):
        load_recipe(str(file))
    file.write_text("name: !!python/object/apply:os.system ['true']")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_recipe(str(file))


def test_differences_are_listed_by_key():
    a, b = ({"laps": 1, "train": {"lr": 1, "x": 2}}, {"laps": 1, "train": {"lr": 3, "x": 2}, "new": 0})
    assert differences(a, b) == ["train.lr: 1 → 3", "new: None → 0"]


def test_unknown_sources_and_settings_are_rejected():
    with pytest.raises(ValueError, match=r"unknown data source 'mnist'; known: digits"):
        make_problem("mnist", 0, {})
    with pytest.raises(ValueError, match=r"does not accept these settings.*colour.*its options: missing, "):
        make_problem("digits", 0, {"colour": 1})
    with pytest.raises(ValueError, match=r"missing must lie in \[0, 1\), got 1.5"):
        make_problem("digits", 0, {"missing": 1.5})


class TestDigits:
    def test_half_the_pixels_are_missing_and_the_noise_has_the_given_level(self):
        problem = make_problem("digits", 0, {"missing": 0.5, "sigma": 0.1})
        obs, x = problem.obs, problem.reference
        assert obs.y.shape == (1797, 8, 8)
        assert float(x.min()) == -2
        assert float(x.max()) == 2
        assert float(obs.measured.double().mean()) == pytest.approx(0.5, abs=0.006)
        assert float(obs.chi2(x).mean()) == pytest.approx(1.0, abs=0.02)

    def test_every_image_has_a_different_mask(self):
        masks = make_problem("digits", 0, {}).obs.measured.flatten(1)
        assert len(masks.unique(dim=0)) == 1797
        assert not masks.equal(make_problem("digits", 1, {}).obs.measured.flatten(1))


def test_the_manifold_is_measured_with_unit_rows_and_the_stated_noise():
    problem = make_problem("manifold", 0, {"n": 4000})
    x, obs = problem.reference, problem.obs
    assert x.shape == (4000, 5)
    assert float(x.abs().max()) <= 2.0001
    rows = obs.A._tensors["matrix"]
    assert rows.norm(dim=-1).sub(1).abs().max() < 1e-5
    assert float(obs.chi2(x).mean()) == pytest.approx(1.0, abs=0.1)


def test_schedules_halve_like_one_over_the_lap_and_end():
    e_step = EStep(fresh={"value": 0.4, "first": 10, "halve": 8})
    assert [e_step.fresh_at(lap) for lap in (1, 9, 10, 18, 26)] == pytest.approx([1, 1, 0.4, 0.2, 0.4 / 3])
    assert [EStep(fresh=0.4).fresh_at(lap) for lap in (1, 2, 100)] == [1, 0.4, 0.4]  # lap 1 has no earlier draws
    assert EStep(fresh={"value": 0.4, "halve": 2}).fresh_at(4) == pytest.approx(0.2)
    assert EStep(fresh=0.4, clean=True).fresh_at(100) == 1
    train = Train(steps=1, measured={"value": 0.8, "last": 6})
    assert [train.measured_at(lap) for lap in (1, 6, 7, 32)] == [0.8, 0.8, 0, 0]
    assert Train(steps=1, measured=0.8).measured_at(1000) == 0.8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["e_step.fresh=0"], "e_step: fresh should be greater than 0, got 0"),
        (["e_step.fresh={first: 3}"], "'e_step.fresh.value' is missing"),
        (
            ["e_step.fresh={value: 0.5, until: 3}"],
            "unknown key 'e_step.fresh.until'; known here: value, first, last, halve",
        ),
        (["train.measured={value: 0.5, first: 4, last: 3}"], "first 4 must not exceed last 3"),
        (["train.measured=2"], "train.measured: .*less than or equal to 1, got 2"),
        (
            ["e_step.fresh_from=7"],
            r"'e_step.fresh_from' no longer exists; use e_step.fresh: \{value: ..., first: LAP\}",
        ),
        (["e_step.fresh_decay=7"], r"'e_step.fresh_decay' no longer exists; .*halve"),
        (["train.measured_until=7"], r"'train.measured_until' no longer exists; .*last"),
        (
            ["stages=[{lap: 2, e_step: {fresh_from: 3}}]"],
            r"stages, lap 2: the key 'e_step.fresh_from' no longer exists",
        ),
        (["final={train: {stepz: 3}}"], "final: unknown key 'train.stepz'; known here: steps, first_steps"),
    ],
)
def test_bad_schedules_and_keys_of_earlier_versions(changes, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        load_recipe("digits", dict(map(parse_change, changes)))


def test_keys_of_earlier_versions_are_translated_with_the_same_meaning():
    """In earlier versions, a stage that changed one of the keys kept the others, and `final` had its own defaults."""
    base = {"name": "x", "data": {"source": "given"}, "laps": 9}
    e_step, train = (
        {"fresh": 0.5, "fresh_from": 3, "fresh_decay": 2},
        {"steps": 1, "measured": 0.8, "measured_until": 5},
    )
    stages = [{"lap": 5, "e_step": {"fresh": 0.3}}, {"lap": 7, "e_step": {"fresh_decay": None}, "train": {"steps": 2}}]
    old = {**base, "e_step": e_step, "train": train, "stages": stages, "final": {"e_step": {"fresh": 0.6}}}
    recipe = load_recipe(translate(old))
    fresh = [recipe.at(lap).e_step.fresh_at(lap) for lap in range(1, 11)]
    assert fresh == pytest.approx([1, 1, 0.5, 0.5 / 1.5, 0.3 / 2, 0.3 / 2.5, 0.3, 0.3, 0.3, 0.6])
    assert [recipe.at(lap).train.measured_at(lap) for lap in (1, 5, 6, 10)] == [0.8, 0.8, 0, 0]
    assert old["e_step"] == e_step  # the argument is unchanged
    defaults = {**base, "e_step": {"fresh": 1.0, "fresh_from": 2, "fresh_decay": None}, "train": {"steps": 1}}
    assert load_recipe(translate(defaults)) == load_recipe({**base, "train": {"steps": 1}})
    malformed = {**base, "e_step": 3, "train": [1], "stages": {"e_step": {"fresh_from": 2}}, "final": 7}
    assert translate(malformed) == malformed


def test_a_recipe_that_an_earlier_version_wrote_is_read_from_run_folders_only(tmp_path):
    text = (
        load_recipe("digits")
        .to_yaml()
        .replace("  fresh: 1.0\n", "  fresh: 0.5\n  fresh_from: 4\n  fresh_decay: null\n")
    )
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError, match="no longer exists"):
        load_recipe(tmp_path / "mine.yaml")
    (tmp_path / "recipe.yaml").write_text(f"{text}{CHECKSUM}{digest(text.encode())}\n")
    assert load_recipe(tmp_path / "recipe.yaml") == load_recipe("digits", {"e_step.fresh": {"value": 0.5, "first": 4}})
