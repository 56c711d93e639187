"""Give every hostile input to its command and measure what that took: `python -m tests.hostile.measure [NAME ...]` prints a line of JSON each.

Starting Python and importing torch takes longer and more memory than refusing a file. So one process imports everything and runs each
command once on sound input; then each hostile input gets a child forked from it, whose seconds and memory beyond those at its birth are
the input's own.
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

SECONDS, BYTES = (
    5.0,
    500 << 20,
)  # what an input may take; seconds of the processor, so that a busy machine changes nothing
# When a child is ended, and the address space it may add: far beyond, so that it is measured. One that waits is ended too.
PATIENCE, SAFETY = 100.0, 8 << 30


def status(key: str) -> int:
    """Bytes of memory, from the kernel's account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def run(arguments: list[str]) -> int:
    """The command line, a reader, or a visit to the app, in this process; its exit code, 1 for a traceback as Python has it."""
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
    """Run a command in a forked process: exit code, seconds, bytes beyond those at the start, and what it said."""
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
    # nothing was sent: it hung, or died of a signal
    measured = json.loads(text) if text else {"code": -(ended & 127), "seconds": time.monotonic() - began, "bytes": -1}
    return measured | {"said": (folder / "stderr").read_text(errors="replace")}


def faults(result: dict[str, Any], words: str, place: str) -> list[str]:
    """What is wrong with how an input was met; empty when it was refused as it should be."""
    found = []
    if result["code"] != 2:
        found.append(f"exit code {result['code']}")
    if "Traceback" in result["said"] or not result["said"].startswith("diffem: "):
        found.append("not a message for people")
    if place not in result["said"]:
        found.append(f"does not name {place}")
    if not re.search(words, result["said"], re.DOTALL):
        found.append(f"does not say {words!r}")
    if result["seconds"] > SECONDS:
        found.append(f"took {result['seconds']:.1f} s")
    if not 0 <= result["bytes"] <= BYTES:
        found.append(f"took {result['bytes'] >> 20} MiB")
    return found


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file and folder below, with what changes when it is written to."""
    entries = {str(path.relative_to(folder)): path.lstat() for path in folder.rglob("*")}
    return {name: (e.st_ino, e.st_size, e.st_mtime_ns) for name, e in entries.items()}


def measure(names: list[str]) -> Iterator[dict[str, Any]]:
    """Controls on sound input first, then each hostile input: what it took and what is wrong with that."""
    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        sound = home / "sound"
        write_sound(sound)
        for command, name in SOUND.items():
            folder = home / f"control {command}"
            folder.mkdir()
            arguments = [a.format(input=sound / name, sound=sound, out=folder) for a in COMMANDS[command]]
            # here, not in a child: so that everything a command imports is there before the measuring begins
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
