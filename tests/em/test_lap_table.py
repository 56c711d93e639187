"""The output and the warnings of `diffem.fit`, which are the same from Python and from the command line."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import diffem
from diffem import Observations, RunWarning
from diffem.core.interruption import Interruption, Preempted
from diffem.em import e_step, loop
from diffem.em.lap_table import COLUMNS, LapTable
from diffem.em.trainer import Trainer
from diffem.runs.rundir import RunDir

from ..command import diffem as command
from .small import RECIPE, observations
from .test_resume import contents, same

FEW = {**RECIPE, "laps": 1, "train": {**RECIPE["train"], "steps": 20}}


def without_times(text):
    """The lines of a table, less the columns of seconds and the paths."""
    lines = [line for line in text.splitlines() if not line.startswith(("start:", "run ", "report "))]
    width = sum(column.width for column in COLUMNS[:-3])
    return [line[:width] if line.lstrip()[:1].isdigit() and "observations" not in line else line for line in lines]


def test_python_and_the_command_line_print_the_same(tmp_path, capsys):
    observations().save(tmp_path / "obs.safetensors")
    recipe = {**FEW, "data": {"source": "file", "path": str(tmp_path / "obs.safetensors")}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    result = command("fit", tmp_path / "recipe.yaml", "-o", tmp_path / "command")
    assert result.returncode == 0, result.stderr
    diffem.fit(None, tmp_path / "recipe.yaml", tmp_path / "python")
    printed = capsys.readouterr().out
    assert printed.startswith("small: loading the observations of file ...\n")  # before anything that takes long
    lines = [line for line in result.stdout.splitlines() if not line.startswith("warning: ")]
    assert without_times(printed) == without_times("\n".join(lines))
    assert same(contents(tmp_path / "command"), contents(tmp_path / "python"))
    for name in ("command", "python"):
        assert (tmp_path / name / "report.html").is_file()


def test_the_table_has_a_row_per_lap_and_ends_with_the_verdict(tmp_path, capsys):
    diffem.fit(observations(), FEW, tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "120 observations for training and 16 held out for evaluation; 1 lap on cpu; new run"
    assert lines[1] == "fitting the Gaussian start ..."
    assert lines[2].startswith("start: ")
    heading = next(i for i, line in enumerate(lines) if line.split()[0] == "lap")
    assert len(lines[heading]) == 79
    rows = [line for line in lines[heading + 1 :] if line.split()[0] in ("0", "1")]
    assert len(rows) == 2
    assert "by held-out prediction" in lines[-3]
    assert lines[-2:] == [f"run     {tmp_path / 'run'}", f"report  {tmp_path / 'run/report.html'}"]
    metrics = RunDir(tmp_path / "run").metrics()
    assert metrics[0]["start_seconds"] > 0
    assert all(0 < m["watch_seconds"] <= m["seconds"] for m in metrics)


def test_cells_wider_than_their_columns_are_not_joined(capsys):
    row = {"lap": 1, "heldout_chi2": 2230.84, "predictive_log_likelihood": -13.871, "predictive_error": 17.648}
    LapTable().row({**row, "observation_distance": 1.23456e-17, "loss": 1e9})
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "1", "2230.84", "-13.871", "±17.648", "1.235e-17", "–", "–", "1000000000.0000", "–", "–", "–",
    ]  # fmt: skip


def test_without_progress_only_warnings_are_printed(tmp_path, capfd):
    obs = observations()
    wrong = Observations(obs.y, obs.A, sigma=4.0)  # draws that fit noise of 0.1 leave residuals far below 4
    with pytest.warns(RunWarning) as given:
        run = diffem.fit(wrong, {**FEW, "gaussian": {"rounds": 32}}, tmp_path / "run", progress=False, report=False)
    assert capfd.readouterr() == ("", "")
    said = [f"lap {m['lap']}: {text}" for m in run.laps for text in m["warnings"]]
    assert [str(w.message) for w in given][: len(said)] == said
    assert said
    assert {w.filename for w in given} == {__file__}
    assert not (tmp_path / "run/report.html").exists()


def test_events_reach_a_callback_without_a_table(tmp_path):
    """Events go to `on_event` as before, with or without a table."""
    events = []
    diffem.fit(observations(), FEW, tmp_path / "run", progress=False, on_event=lambda event, data: events.append(event))
    assert [e for e in events if e in ("start", "starting", "started", "lap")] == [
        "start",
        "starting",
        "started",
        "lap",
        "lap",
    ]


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


def pressed(owner, method, number, at=2):
    """Wrap a method so that its `at`-th call sends a signal to this process."""
    whole, calls = getattr(owner, method), []

    def call(self, *arguments):
        calls.append(method)
        if len(calls) == at:
            signal.raise_signal(number)
        return whole(self, *arguments)

    return call


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    diffem.fit(observations(), RECIPE, out, progress=False, report=False)
    return contents(out)


# training is saved at the end of a block of 256 steps
@pytest.mark.parametrize(
    ("owner", "method", "at"), [(e_step, "draw", 2), (Trainer, "step", 264), (loop, "conclude", 2)]
)
def test_ctrl_c_saves_the_run_and_interrupts(owner, method, at, undisturbed, tmp_path, monkeypatch, capsys):
    """Ctrl-C raises KeyboardInterrupt after the run was saved; the same call then ends with a bit-identical result."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, pressed(owner, method, signal.SIGINT, at))
        with pytest.raises(KeyboardInterrupt, match="the same call resumes") as caught:
            diffem.fit(observations(), RECIPE, tmp_path / "run", report=False)
    assert caught.value.__suppress_context__  # a traceback of the caller's lines, not of the library's
    assert "the same call resumes" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    saved = (tmp_path / "run/laps/001/training.safetensors").is_file()  # training was not abandoned
    assert saved == (owner is Trainer)
    diffem.fit(observations(), RECIPE, tmp_path / "run", progress=False, report=False)
    assert same(contents(tmp_path / "run"), undisturbed)


CODE = """
import signal, sys
sys.path.insert(0, {root!r})
import diffem
from tests.em.small import RECIPE, observations
from tests.em.test_lap_table import pressed
from diffem.em.trainer import Trainer
Trainer.step = pressed(Trainer, "step", signal.SIGTERM, 264)
diffem.fit(observations(), RECIPE, {out!r}, progress=False)
"""


def test_sigterm_ends_a_python_program_after_the_run_was_saved(tmp_path):
    root = str(Path(__file__).parents[2])
    code = CODE.format(root=root, out=str(tmp_path / "run"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert result.returncode == -signal.SIGTERM, result.stderr
    assert (tmp_path / "run/laps/001/training.safetensors").is_file()


def test_a_caller_that_listens_itself_gets_its_own_exception(tmp_path):
    interruption = Interruption()
    interruption.requested = True
    with pytest.raises(Preempted):
        diffem.fit(observations(), FEW, tmp_path / "run", progress=False, interruption=interruption)


def test_fit_leaves_handlers_alone_in_other_threads(tmp_path):
    outcome = []
    thread = threading.Thread(
        target=lambda: outcome.append(diffem.fit(observations(), FEW, tmp_path / "run", progress=False))
    )
    thread.start()
    thread.join()
    assert outcome[0].path == tmp_path / "run"
