"""A damaged file is rejected with its name, or its content is read correctly; it is never read as something else.

The damage is a flipped bit or a truncation at seeded random positions, a few hundred per kind of file.
"""

import json
import random
import shutil

import numpy as np
import pytest
import torch

import diffem
from diffem import InputError, Observations
from diffem.files.writing import write_json
from diffem.priors.files import load_with_description, save_prior
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import load_recipe
from diffem.runs.rundir import RunDir

from ..em.test_resume import contents as contents_of
from ..em.test_resume import same as same_arrays
from .sound import EVENT, numbers, observations, prior, write_run
from .test_storage import fit

TRIES = 250


def prior_contents(path):
    loaded, description = load_with_description(path)
    return [loaded.state_dict(), loaded.covariance()._tensors, known(description)]


def observations_contents(path):
    obs = Observations.load(path)
    return [obs.tensors(), obs.x_shape, repr(obs.A)]


def run_contents(path):
    run = RunDir(path.parent)
    return [run.recipe().model_dump(), known(run.info()), run.metrics()]


def lap_contents(path):
    return [known(metrics) for metrics in RunDir(path.parents[2]).metrics()]


def known(values):
    """The mapping without a checksum whose own name was damaged, since nothing reads it."""
    return {name: value for name, value in values.items() if not (isinstance(value, str) and len(value) == 64)}


def store_of(path):
    return DrawStore(path.parent, 6, 4)


def shard_contents(path):
    return [store_of(path).read(0), known(store_of(path).report(0)), store_of(path).read(1)]


def write_prior(folder):
    save_prior(prior(), folder / "prior.safetensors", lap=3, training={"loss": 0.5})
    return folder / "prior.safetensors"


def write_observations(folder):
    observations().save(folder / "obs.safetensors")
    return folder / "obs.safetensors"


def write_shards(folder):
    store = DrawStore(folder / "lap" / "draws", 6, 4)
    for k, n in enumerate((4, 2)):
        store.write(k, numbers(2, n, *EVENT, seed=k), {"draws": 2 * n, "rejected": k, "chi2": 1.25})
    return folder / "lap" / "draws"


FILES = {
    "prior": (write_prior, prior_contents),
    "observations": (write_observations, observations_contents),
    "draws": (lambda folder: write_shards(folder) / "00000.npy", shard_contents),
    "report of draws": (lambda folder: write_shards(folder) / "00000.json", shard_contents),
    "metrics.json": (lambda folder: write_run(folder / "run") / "laps" / "000" / "metrics.json", lap_contents),
    "run.json": (lambda folder: write_run(folder / "run") / "run.json", run_contents),
    "recipe.yaml": (lambda folder: write_run(folder / "run") / "recipe.yaml", run_contents),
}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("kind", FILES)
def test_damage_is_detected_or_harmless(kind, tmp_path):
    make, contents = FILES[kind]
    file = make(tmp_path)
    whole, expected = file.read_bytes(), contents(file)
    rng = random.Random(kind)
    outcome = {"refused": 0, "harmless": 0}
    for k in range(TRIES if kind != "recipe.yaml" else TRIES // 5):  # YAML is slow
        data, bit = bytearray(whole), rng.randrange(8 * len(whole))
        if k % 4:
            data[bit // 8] ^= 1 << bit % 8
        else:
            del data[bit // 8 :]
        file.write_bytes(bytes(data))
        try:
            read, message = contents(file), None
        except InputError as error:
            message = str(error)
        if message is not None:
            assert file.name in message, message
            outcome["refused"] += 1
        else:
            place = f"cut at {bit // 8}" if k % 4 == 0 else f"bit {bit} of byte {whole[bit // 8 : bit // 8 + 1]!r}"
            assert same(read, expected), f"{kind}: {place} was read as something else"
            outcome["harmless"] += 1
    assert outcome["refused"] > 0.8 * sum(outcome.values()), outcome


def test_files_without_a_checksum_are_read(tmp_path):
    """Files of other programs, and of older versions."""
    write_json(tmp_path / "x.json", {"a": 1})
    value = json.loads((tmp_path / "x.json").read_text())
    assert value.pop("checksum")
    from diffem.files.reading import read_json

    (tmp_path / "x.json").write_text(json.dumps(value))
    assert read_json(tmp_path / "x.json") == {"a": 1}
    assert load_recipe("digits").to_file().splitlines()[-1].startswith("# sha256")


def test_values_survive_writing(tmp_path):
    """Floating-point numbers, letters beyond ASCII and NaN survive, and the checksum matches."""
    from diffem.files.reading import read_json

    value = {"a": [0.1, 1e-300, -0.0, float("inf")], "b": {"χ²": None, "": True}, "3": 2**60}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    write_json(tmp_path / "x.json", {"a": float("nan")})
    assert np.isnan(read_json(tmp_path / "x.json")["a"])


class TestShards:
    def test_a_damaged_shard_counts_as_missing_and_is_named(self, tmp_path, capsys):
        folder = write_shards(tmp_path)
        whole = {file.name: file.read_bytes() for file in folder.iterdir()}
        for name, damage in (
            ("00001.npy", lambda d: d[:-3]),
            ("00001.npy", lambda d: d[:-1] + b"\x7f"),
            ("00001.json", lambda d: d[:9]),
        ):
            (folder / name).write_bytes(damage(whole[name]))
            store = store_of(folder / name)
            assert [store.has(k) for k in range(2)] == [True, False]
            said = capsys.readouterr().err
            assert name in said
            assert "observations 4 to 5 are recomputed" in said
            with pytest.raises(InputError, match=name):
                store.all()
            (folder / name).write_bytes(whole[name])

    def test_shards_of_different_shapes(self, tmp_path):
        folder = write_shards(tmp_path)
        store = store_of(folder / "x")
        store.write(1, numbers(2, 2, 5), {})
        with pytest.raises(InputError, match=r"00001.npy contains draws of another shape"):
            store.all()

    def test_links_that_leave_the_folder_are_rejected(self, tmp_path):
        folder = write_shards(tmp_path)
        (folder / "00001.npy").rename(tmp_path / "elsewhere.npy")
        (folder / "00001.npy").symlink_to(tmp_path / "elsewhere.npy")
        with pytest.raises(InputError, match="leads out of"):
            store_of(folder / "x").has(1)


class TestRuns:
    def test_a_damaged_file_of_the_last_lap_is_renamed(self, tmp_path, capsys):
        run = write_run(tmp_path / "run")
        recipe = RunDir(run).recipe()
        file = run / "laps/000/prior.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        again = RunDir(run)
        again.open(recipe, recipe.problem().obs)
        again.unlock()
        assert "prior.safetensors cannot be read" in capsys.readouterr().err
        assert (run / "laps/000/prior.safetensors.damaged").exists()
        assert again.laps_done() == -1  # the lap is repeated

    def test_a_folder_that_is_a_link(self, tmp_path):
        run = write_run(tmp_path / "run")
        (tmp_path / "link").symlink_to(run)
        (tmp_path / "chain").symlink_to("link")
        assert RunDir(tmp_path / "chain").metrics() == RunDir(run).metrics()
        (tmp_path / "inner").symlink_to(run / "laps")
        assert RunDir(tmp_path / "inner" / "..").laps_done() == 0

    def test_a_link_that_stays_inside_is_followed(self, tmp_path):
        run = write_run(tmp_path / "run")
        (run / "laps/000/prior.safetensors").rename(run / "kept.safetensors")
        (run / "laps/000/prior.safetensors").symlink_to("../../kept.safetensors")
        assert RunDir(run).laps_done() == 0

    def test_older_folders_are_read(self, tmp_path):
        """Before format 2, files had no checksum."""
        run = write_run(tmp_path / "run")
        info = RunDir(run).info()
        info.pop("format")
        (run / "run.json").write_text(json.dumps(info))
        recipe = RunDir(run).recipe()
        (run / "recipe.yaml").write_text(recipe.to_yaml())
        assert RunDir(run).recipe() == recipe

    def test_a_run_stopped_during_its_start_resumes(self, tmp_path):
        run = write_run(tmp_path / "run")
        recipe = RunDir(run).recipe()
        for name in ("recipe.yaml", "metrics.jsonl", "laps"):
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
        (run / ".recipe.yaml.77.partial").write_text("name: so")
        again = RunDir(run)
        again.open(recipe, recipe.problem().obs)
        assert again.recipe() == recipe
        again.unlock()
        assert not list(run.glob(".*.partial"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("damage") / "run"
    fit(out)
    return out, contents_of(out)


class TestResuming:
    """A run whose files were damaged before it was resumed ends with the same results.

    Only the damaged files are recomputed.
    """

    @pytest.fixture
    def stopped(self, finished, tmp_path):
        """The finished run in the state before its last lap was complete."""
        out = tmp_path / "run"
        shutil.copytree(finished[0], out)
        (out / "laps/001/metrics.json").unlink()
        return out, finished[1]

    @pytest.mark.parametrize("damage", [lambda d: d[:-7], lambda d: d[:-1] + bytes([d[-1] ^ 1])], ids=["cut", "bit"])
    def test_only_the_damaged_shard_is_redrawn(self, stopped, damage, capsys):
        out, expected = stopped
        draws = out / "laps/001/draws"
        (draws / "00001.npy").write_bytes(damage((draws / "00001.npy").read_bytes()))
        before = {file.name: file.stat().st_mtime_ns for file in draws.iterdir()}
        fit(out)
        changed = {file.name for file in draws.iterdir() if file.stat().st_mtime_ns != before[file.name]}
        assert changed == {"00001.npy", "00001.json"}
        assert "00001.npy is damaged" in capsys.readouterr().err
        assert same_arrays(contents_of(out), expected)

    def test_a_damaged_prior_is_trained_again(self, stopped, capsys):
        out, expected = stopped
        file = out / "laps/001/prior.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        (out / "laps/001/training.safetensors").write_bytes(b"half a checkpoi")
        fit(out)
        said = capsys.readouterr().err
        assert "prior.safetensors cannot be read" in said
        assert "training.safetensors cannot be read" in said
        assert same_arrays(contents_of(out), expected)

    def test_damage_that_cannot_be_repaired_is_named(self, finished, tmp_path):
        out = tmp_path / "run"
        shutil.copytree(finished[0], out)
        (out / "laps/000/metrics.json").write_text("{")
        with pytest.raises(InputError, match=r"laps/000/metrics.json cannot be read"):
            diffem.Run(out).laps  # noqa: B018
