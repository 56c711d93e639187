"""Measure every hostile input: `python -m tests.hostile.measure [NAME ...]` prints a line of JSON for each.

Starting Python and importing torch takes more time and memory than rejecting a file. So one process imports everything
and runs each command once on valid input. Then each hostile input gets a child forked from this process. The seconds
and the memory that the child takes after the fork are those of the input.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from .corpus import COMMANDS, CORPUS, SOUND
from .reading import READERS, read
from .sound import write_sound
from .visiting import visit

# Limits of an input. Seconds are processor time, which does not depend on other load.
SECONDS, BYTES = 5.0, 500 << 20
# Limits at which a child is ended, in seconds and in bytes of additional address space. They are far larger, so that
# the child can be measured, and also end a child that waits.
PATIENCE, SAFETY = 100.0, 8 << 30


def status(key: str) -> int:
    """Bytes of memory of this process, as the kernel reports them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def run(arguments: list[str]) -> int:
    """Run a command, a reader or a visit to the app in this process; returns its exit code, 1 for a traceback."""
    from diffem.cli.commands import main

    try:
        if arguments[0] in ("upload", "request"):
            return visit(arguments)
        if arguments[0] in READERS:
            return read(arguments)
        with mock.patch.object(sys, "argv", ["diffem", *arguments]):
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def child(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run a command in a forked process; returns its exit code, seconds, additional bytes and error output."""
    out, inlet = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(out)
        os.chdir(folder)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        limit = status("VmSize") + SAFETY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        before, began = status("VmRSS"), time.process_time()
        code = run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        measured = {"code": code, "seconds": time.process_time() - began, "bytes": max(0, status("VmHWM") - before)}
        os.write(inlet, json.dumps(measured).encode())
        os._exit(0)
    os.close(inlet)
    began = time.monotonic()
    ready, _, _ = select.select([out], [], [], PATIENCE)
    if not ready:
        os.kill(process, signal.SIGKILL)
    _, ended = os.waitpid(process, 0)
    text = os.read(out, 1 << 16).decode() if ready else ""
    os.close(out)
    # the child sent nothing: it hung or was ended by a signal
    measured = json.loads(text) if text else {"code": -(ended & 127), "seconds": time.monotonic() - began, "bytes": -1}
    return measured | {"said": (folder / "stderr").read_text(errors="replace")}


def faults(result: dict[str, Any], words: str, place: str) -> list[str]:
    """List what is wrong with the reaction to an input; the list is empty if the input was rejected properly."""
    found = []
    if result["code"] != 2:
        found.append(f"exit code {result['code']}")
    if "Traceback" in result["said"] or not result["said"].startswith("diffem: "):
        found.append("not an error message of diffem")
    if place not in result["said"]:
        found.append(f"does not name {place}")
    if not re.search(words, result["said"], re.DOTALL):
        found.append(f"does not match {words!r}")
    if result["seconds"] > SECONDS:
        found.append(f"took {result['seconds']:.1f} s")
    if not 0 <= result["bytes"] <= BYTES:
        found.append(f"took {result['bytes'] >> 20} MiB")
    return found


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder below, with values that change when it is modified."""
    entries = {str(path.relative_to(folder)): path.lstat() for path in folder.rglob("*")}
    return {name: (e.st_ino, e.st_size, e.st_mtime_ns) for name, e in entries.items()}


def measure(names: list[str]) -> Iterator[dict[str, Any]]:
    """Measure the valid inputs first, then each hostile input; yields the measurements and the faults."""
    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        sound = home / "sound"
        write_sound(sound)
        for command, name in SOUND.items():
            folder = home / f"control {command}"
            folder.mkdir()
            arguments = [a.format(input=sound / name, sound=sound, out=folder) for a in COMMANDS[command]]
            # in this process instead of a child, so that everything is imported before the measurements
            code = run_quietly(arguments, folder)
            yield {"name": f"{command}: sound", "control": True, "code": code, "faults": ["refused"] if code else []}
        gc.collect()
        gc.freeze()
        for k, name in enumerate(names):
            case, folder = CORPUS[name], home / f"{k}"
            (folder / "in").mkdir(parents=True)
            (folder / "out").mkdir()
            given = case.make(folder / "in")
            arguments = [a.format(input=given, sound=sound, out=folder / "out") for a in COMMANDS[case.command]]
            before = listing(folder / "in")
            result = child(arguments, folder)
            wrong = faults(result, case.words, "network" if case.words.startswith("^diffem: network") else given.name)
            wrong += ["code was executed, or something written outside"] if list(home.rglob("EXECUTED*")) else []
            wrong += ["something was written"] if any(p.is_file() for p in (folder / "out").iterdir()) else []
            if case.command not in ("run, fit", "run, report") and listing(folder / "in") != before:
                wrong.append("the input was changed")
            yield {"name": name, "control": False, **result, "faults": wrong}
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def run_quietly(arguments: list[str], folder: Path) -> int:
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = run(arguments)
    if code:
        print(said.getvalue(), file=sys.stderr)
    return code


if __name__ == "__main__":
    for row in measure(sys.argv[1:] or list(CORPUS)):
        print(json.dumps(row), flush=True)
