"""Files of another lap, seed or run in place of the run's own: `fit` recomputes the own files, bit for bit; commands
that only read refuse the run."""

import json
import shutil
from unittest import mock

import pytest
import torch

import diffem
from diffem import InputError
from diffem.core.errors import ForeignFileError
from diffem.em import exports as hub
from diffem.em.checkpoint import write_checkpoint
from diffem.em.evaluation import evaluate
from diffem.files.writing import write_json
from diffem.observations.fingerprint import fingerprint
from diffem.report.page import write_report
from diffem.runs.recipe import load_recipe
from diffem.runs.rundir import RunDir

from .small import RECIPE, observations
from .test_resume import contents, same

SHORT = {
    **RECIPE,
    "train": {**RECIPE["train"], "steps": 260, "checkpoint_seconds": 1e-6},
    "watch": {"held_out": 16, "draws": 2, "samples": 16},
}


def fit(out, seed=0, data=0, **options):
    torch.set_num_threads(1)
    return diffem.fit(observations(seed=data), SHORT, out, seed=seed, progress=False, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three finished runs: one, the same with another seed, the same on other observations; and a checkpoint of each
    one's lap 2."""
    home = tmp_path_factory.mktemp("foreign")

    def write_and_copy(path, *arguments):
        write_checkpoint(path, *arguments)
        if path.parent.name == "002":
            shutil.copy(path, home / f"{path.parents[2].name}.safetensors")

    with mock.patch("diffem.em.m_step.write_checkpoint", write_and_copy):
        for name, options in {"own": {}, "seed": {"seed": 1}, "data": {"data": 1}}.items():
            fit(home / name, **options)
    return home


SHARD = ("draws/00001.npy", "draws/00001.json")
# what is put where: the run and lap it comes from, the files, and other names for them
FOREIGN = {
    "draws of another lap": ("own", "001", SHARD, {}),
    "draws of other observations": ("own", "002", ("draws/00000.npy", "draws/00000.json"), SHARD),
    "draws of another seed": ("seed", "002", SHARD, {}),
    "draws of another run": ("data", "002", SHARD, {}),
    "a prior of another lap": ("own", "001", ("prior.safetensors",), {}),
    "a prior of another seed": ("seed", "002", ("prior.safetensors",), {}),
    "a prior of another run": ("data", "002", ("prior.safetensors",), {}),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_fit_recomputes_files_of_another_run(case, runs, tmp_path, capsys):
    name, lap, sources, targets = FOREIGN[case]
    out = tmp_path / "run"
    shutil.copytree(runs / "own", out)
    (out / "laps/002/metrics.json").unlink()
    if sources == SHARD or targets:
        (out / "laps/002/prior.safetensors").unlink()
    for source, target in zip(sources, targets or sources, strict=True):
        shutil.copy(runs / name / "laps" / lap / source, out / "laps/002" / target)
    fit(out)
    assert "does not belong here: it has" in capsys.readouterr().err
    aside = {file.relative_to(out / "laps/002").as_posix() for file in out.rglob("*.foreign")}
    assert aside == {f"{target}.foreign" for target in targets or sources}
    assert same(contents(out), contents(runs / "own"))


@pytest.mark.parametrize("name", ["another lap", "seed", "data"])
def test_the_checkpoint_of_another_run_is_not_resumed(name, runs, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(runs / "own", out)
    lap = "001" if name == "another lap" else "002"
    for file in ("metrics.json", "prior.safetensors"):
        (out / "laps" / lap / file).unlink()
    shutil.copy(runs / f"{'own' if lap == '001' else name}.safetensors", out / "laps" / lap / "training.safetensors")
    fit(out)
    assert "training.safetensors does not belong here" in capsys.readouterr().err
    assert same(contents(out), contents(runs / "own"))


def test_a_checkpoint_of_the_run_itself_is_resumed(runs, tmp_path, monkeypatch):
    out, read = tmp_path / "run", []
    shutil.copytree(runs / "own", out)
    for file in ("metrics.json", "prior.safetensors"):
        (out / "laps/002" / file).unlink()
    shutil.copy(runs / "own.safetensors", out / "laps/002/training.safetensors")
    monkeypatch.setattr("diffem.em.m_step.maximization", _counting(read))
    fit(out)
    assert read == [256]  # of 260 steps
    assert same(contents(out), contents(runs / "own"))


def _counting(read):
    from diffem.em.maximization import maximization

    def counted(*arguments, resume, **options):
        read.append(resume[0])
        return maximization(*arguments, resume=resume, **options)

    return counted


@pytest.mark.parametrize(
    ("lap", "file"),
    [
        ("000", "prior.safetensors"),
        ("000", "metrics.json"),
        ("001", "prior.safetensors"),
        ("001", "metrics.json"),
        ("002", "metrics.json"),
    ],
)
def test_a_finished_run_recomputes_files_of_another_run(lap, file, runs, tmp_path, capsys):
    """The lap is computed again; the laps after it are unchanged."""
    out = tmp_path / "run"
    shutil.copytree(runs / "own", out)
    shutil.copy(runs / "seed/laps" / lap / file, out / "laps" / lap / file)
    before = {path: path.stat().st_mtime_ns for path in out.glob("laps/*/prior.safetensors") if path.parent.name != lap}
    fit(out)
    assert "does not belong here: it has seed 1, needed: seed 0" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert same(contents(out), contents(runs / "own"))
    assert [m["lap"] for m in diffem.Run(out).laps] == [0, 1, 2]
    log = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["lap"] for m in log] == [0, 1, 2]


def test_missing_draws_that_a_later_lap_keeps_are_recomputed(runs, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(runs / "own", out)
    shutil.rmtree(out / "laps/002")
    for file in SHARD:
        shutil.copy(runs / "data/laps/001" / file, out / "laps/001" / file)
    fit(out)
    assert "00001.json does not belong here" in capsys.readouterr().err
    assert same(contents(out), contents(runs / "own"))


READERS = {
    "load": diffem.load,
    "Run.prior": lambda out: diffem.Run(out).prior,
    "evaluate": lambda out: evaluate(out, samples=4, steps=2),
    "export": lambda out: hub.export_run(out, out.parent / "export"),
}


@pytest.mark.parametrize(("name", "lap"), [("own", "001"), ("seed", "002"), ("data", "002")])
def test_readers_reject_the_prior_of_another_run(name, lap, runs, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(runs / "own", out)
    shutil.copy(runs / name / "laps" / lap / "prior.safetensors", out / "laps/002/prior.safetensors")
    for read in READERS.values():
        with pytest.raises(ForeignFileError, match=r"002/prior.safetensors does not belong here"):
            read(out)


@pytest.mark.parametrize(
    ("file", "readers"),
    [
        ("recipe.yaml", [*READERS, "report"]),
        ("run.json", [*READERS, "report"]),
        ("laps/001/metrics.json", ["evaluate", "report"]),
    ],
)
def test_readers_reject_the_description_of_another_run(file, readers, runs, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(runs / "own", out)
    shutil.copy(runs / "data" / file, out / file)
    named = rf"{file}.*(does not belong here: it has run|belong to different runs)"  # the file that was replaced
    for reader in readers:
        with pytest.raises(InputError, match=named):
            {**READERS, "report": write_report}[reader](out)


def test_a_start_passed_from_python_is_part_of_the_run(tmp_path):
    """The prior to start from is part of the run's identity; once lap 0 is finished, the folder contains it."""
    from diffem.linalg import Isotropic

    first, other = (diffem.priors.GaussianPrior(torch.zeros(4), Isotropic(torch.tensor(v))) for v in (1.0, 2.0))
    recipe = {**SHORT, "laps": 1, "train": {**SHORT["train"], "steps": 4}}
    run = diffem.fit(observations(), recipe, tmp_path / "a", start=first, progress=False)
    diffem.fit(observations(), recipe, tmp_path / "b", start=other, progress=False)
    assert RunDir(tmp_path / "a").info()["name"] != RunDir(tmp_path / "b").info()["name"]
    with pytest.raises(InputError, match="starts from another prior"):
        diffem.fit(observations(), recipe, run.path, start=other, progress=False)
    diffem.fit(observations(), recipe, run.path, progress=False)
    (run.path / "laps/000/metrics.json").unlink()
    with pytest.raises(InputError, match="passed from Python; pass the same prior again as start"):
        diffem.fit(observations(), recipe, run.path, progress=False)
    diffem.fit(observations(), recipe, run.path, start=first, progress=False)


def test_a_folder_of_format_2_is_read_and_continued_in_its_format(runs, tmp_path):
    """The files of format 2 contain no name of a run: they are accepted, and new laps have the same format."""
    out = tmp_path / "run"
    diffem.fit(observations(), {**SHORT, "laps": 1}, out, progress=False)
    run = RunDir(out)
    info = run.info() | {"format": 2, "observations": fingerprint(observations().tensors())}
    write_json(out / "run.json", {name: value for name, value in info.items() if name not in ("name", "start")})
    (out / "recipe.yaml").write_text(load_recipe({**SHORT, "laps": 1}).to_file())
    shutil.copy(runs / "seed/laps/001/prior.safetensors", out / "laps/001/prior.safetensors")
    x_t = torch.ones(1, 4)
    assert torch.equal(diffem.load(out)(x_t, 0.5), diffem.load(runs / "seed", lap=1)(x_t, 0.5))
    diffem.fit(observations(), SHORT, out, progress=False)
    assert RunDir(out).info()["format"] == 2
    assert "origin" not in RunDir(out).metrics()[2]
    with pytest.raises(InputError, match="other observations"):
        diffem.fit(observations(seed=1), SHORT, out, progress=False)
