"""Storage errors: a full disk at every single write, a limit on file sizes, folders without write permission.

In every case the message states the file and the cause, no partial file is left, and the resumed run is bit-identical.
"""

import contextlib
import errno
import io
import os
import re
import resource
import signal
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch

import diffem
from benchmarks.faults import Child
from diffem.cli.commands import main
from diffem.core.errors import StorageError
from diffem.files import writing as files
from diffem.runs.rundir import RunDir

from ..em.small import RECIPE, observations
from ..em.test_resume import contents, same
from .sound import write_run

SMALL = {
    **RECIPE,
    "laps": 1,
    "train": {**RECIPE["train"], "steps": 64, "checkpoint_seconds": 1e-6},
    "watch": {"held_out": 8, "draws": 2, "samples": 16},
}


def fit(out):
    torch.set_num_threads(1)
    return diffem.fit(observations(), SMALL, out, progress=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("storage") / "undisturbed"
    fit(out)
    return contents(out)


class Disk:
    """A disk that is full at its n-th write, in the given step of writing."""

    def __init__(self, monkeypatch, step, at):
        self.step, self.left, self.writes = step, at, 0
        for module, name in ((os, "fsync"), (os, "replace"), (os, "open")):
            monkeypatch.setattr(module, name, self.wrap(name, getattr(module, name)))

    def wrap(self, name, real):
        def call(*arguments, **named):
            if name == self.step and (name != "open" or str(arguments[0]).endswith(".partial")):
                self.writes += 1
                if self.writes == self.left:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **named)

        return call


def partials(out):
    return [path for path in out.rglob("*") if ".partial" in path.name]


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_a_disk_that_is_full_repeatedly(step, undisturbed, tmp_path, monkeypatch):
    """One run finds a full disk at its first write, is resumed, finds it at the second write, and so on to the end."""
    out, failures = tmp_path / "run", []
    for at in range(1, 100):
        with monkeypatch.context() as patch:
            Disk(patch, step, at)
            try:
                fit(out)
            except StorageError as error:
                failures.append(error)
            else:
                break
        assert not partials(out)
    for error in failures:
        assert "cannot be written: No space left on device" in str(error)
        assert str(tmp_path) in str(error)
        assert error.errno == errno.ENOSPC
    assert len(failures) >= 5
    assert same(contents(out), undisturbed)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_single_write(undisturbed, tmp_path, monkeypatch):
    """One run for each write that fails; each is resumed after space was freed."""
    for at in range(1, 1000):
        out = tmp_path / f"{at}"
        with monkeypatch.context() as patch:
            disk = Disk(patch, "open", at)
            try:
                fit(out)
            except StorageError:
                assert not partials(out)
            else:
                break
        fit(out)
        assert same(contents(out), undisturbed), f"write {at}"
        assert len((out / "metrics.jsonl").read_text().splitlines()) == 2, f"write {at}"
    assert disk.writes == at - 1 >= 20


def within(size, inlet, action, arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        action(*arguments)
        inlet.send("done")
    except BaseException as error:
        inlet.send(f"{type(error).__name__}: {error}")


def limited(size, action, *arguments):
    """Run an action in a child process with limited file size; returns its error message.

    The child is forked from a server without threads, because a copy of this process could inherit a lock held by a
    thread of pytest.
    """
    outlet, inlet = Child.context.Pipe(duplex=False)
    child = Child.context.Process(target=within, args=(size, inlet, action, arguments))
    child.start()
    inlet.close()
    try:
        said = outlet.recv()
        child.join()
    finally:
        child.kill()
    assert child.exitcode == 0, f"ended with {child.exitcode}"
    return said


def test_a_limit_on_the_size_of_files(tmp_path):
    """A real write that fails half-way: the kernel returns EFBIG, and SIGXFSZ does not end Python."""
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    target = tmp_path / "x.npy"
    files.write_array(target, np.arange(10.0))
    before = target.read_bytes()
    said = limited(1 << 16, files.write_array, target, np.zeros(1 << 20))
    assert said.startswith("StorageError: ")
    assert "x.npy cannot be written: File too large" in said
    assert target.read_bytes() == before
    assert not partials(tmp_path)


def test_a_run_stopped_by_a_file_size_limit_resumes_without_it(undisturbed, tmp_path):
    out = tmp_path / "run"
    said = limited(2500, fit, out)
    assert "StorageError" in said
    assert "File too large" in said
    assert not partials(out)
    fit(out)
    assert same(contents(out), undisturbed)


@contextlib.contextmanager
def mounted(folder, size):
    """Mount a small temporary disk."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs more rights than this process has")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_real_full_disk(undisturbed, tmp_path):
    with mounted(tmp_path / "disk", "64k") as disk:
        with pytest.raises(StorageError, match="No space left on device"):
            fit(disk / "run")
        assert not partials(disk)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        fit(disk / "run")
        assert same(contents(disk / "run"), undisturbed)


@contextlib.contextmanager
def read_only(folder):
    """A read-only folder with a run. Permissions do not restrict root, but a read-only mount does."""
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(mounted(folder, "4m")) if os.geteuid() == 0 else folder
        run = write_run(home / "run")
        if os.geteuid() == 0:
            subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
            yield run
            return
        folders = [path for path in [run, *run.rglob("*")] if path.is_dir()]
        for path in folders:
            path.chmod(0o555)
        yield run
        for path in folders:
            path.chmod(0o755)


def command(*arguments):
    """Run the command line in this process; returns the exit code and the error output."""
    said = io.StringIO()
    argv = ["diffem", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return end.value.code or 0, said.getvalue()


def test_a_read_only_run(tmp_path):
    """Commands that only read work; commands that must write fail with a message that names the file."""
    why = "(Read-only file system|Permission denied)"
    with read_only(tmp_path / "disk") as run:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RunDir(run).recipe().to_yaml())
        assert command("sample", run, "-n", 2, "--steps", 2, "-o", tmp_path / "x.npy") == (0, "")
        code, said = command("report", run)
        assert code == 74
        assert re.match(rf"diffem: {run}/.* cannot be written: {why}", said), said
        code, said = command("fit", recipe, "-o", run)
        assert code == 2
        assert re.match(rf"diffem: {run}/\.lock cannot be created: {why}", said), said
        code, said = command("fit", recipe, "-o", run / "new")
        assert code == 2
        assert re.match(rf"diffem: cannot create {run}/new: .*{why}", said), said
        assert not partials(run)
