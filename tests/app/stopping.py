"""Start the app and stop it in every way: `python -m tests.app.stopping RUN FOLDER` prints a line of JSON for each.

Importing torch and gradio takes longer than everything else. So one process imports them, and each case is a child
forked from it that runs the command line. All children run at the same time. In some cases the child computes without
end. The parent ignores Ctrl-C and hangups, as background jobs of scripts under `nohup` do. A child starts with the
handlers of a terminal, unless its case changes them.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from diffem.app import drawing, server
from diffem.app.page import build
from diffem.app.viewer import Viewer

HUNG = 120.0  # seconds, many times the duration of a start or a stop; it only ends processes that hang


IGNORED = (signal.SIGINT, signal.SIGHUP)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def compute_endlessly(*arguments: Any) -> torch.Tensor:
    print("computing", flush=True)
    x = torch.eye(400)
    while True:
        x = x @ x


class Child:
    """`diffem app RUN --port 0 OPTIONS` in a forked process with its own TMPDIR."""

    def __init__(self, run: Path, home: Path, *options: str, prepare: Callable[[], None] = lambda: None) -> None:
        self.temporary = home / "temporary"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.pipe, outlet = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.dup2(outlet, 1)
            os.dup2(outlet, 2)
            os.close(self.pipe)
            os.environ["TMPDIR"] = str(self.temporary)
            arguments = ["diffem", "app", str(run), "--port", "0", *options]
            code = 99
            try:
                prepare()
                from diffem.cli.commands import main

                with mock.patch.object(sys, "argv", arguments), mock.patch("tempfile.tempdir", str(self.temporary)):
                    main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(outlet)
        self.said = ""

    def _read(self, deadline: float) -> bool:
        """Wait for the next output; returns False at its end. A child that is silent until the deadline is killed."""
        if not select.select([self.pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(self.pid, signal.SIGKILL)
            self.said += "(killed: it had hung)"
        part = os.read(self.pipe, 1 << 16)
        self.said += part.decode(errors="replace")
        return bool(part)

    def wait_for(self, pattern: str) -> str:
        """Read the output until a line matches."""
        deadline = time.monotonic() + HUNG
        while not (found := re.search(pattern, self.said)):
            if not self._read(deadline):
                raise AssertionError(f"no {pattern!r} in {self.said!r}")
        return found[0]

    def end(self, hung: float = HUNG) -> dict[str, Any]:
        """Wait for the end: exit code (negative: a signal), output, and files left in TMPDIR."""
        deadline = time.monotonic() + hung
        while self._read(deadline):
            pass
        os.close(self.pipe)
        _, status = os.waitpid(self.pid, 0)
        left = sorted(p.name for p in self.temporary.iterdir())
        return {"code": os.waitstatus_to_exitcode(status), "said": self.said, "left": left}


def ask_for_samples(address: str) -> None:
    config = json.loads(urllib.request.urlopen(f"{address}/config", timeout=120).read())
    index = next(d["id"] for d in config["dependencies"] if d["api_name"] == "show_prior")
    body = json.dumps({"data": [1, 2, 2, 0], "fn_index": index, "session_hash": "x"}).encode()
    kind = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{address}/gradio_api/queue/join", body, kind), timeout=120).read()


def cases(run: Path, home: Path) -> dict[str, dict[str, Any]]:
    def endless() -> None:
        drawing.prior_samples = compute_endlessly

    def hang() -> None:
        threading.Event().wait()

    def ignoring() -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)

    address = r"http://[\w.:\[\]]+\d"
    refused = Child(run, home / "refused", "--host", "no-such-host.invalid").end()
    busy = Child(run, home / "busy", prepare=endless)
    hosts = {"SIGTERM": "::1" if has_ipv6() else "127.0.0.1", "SIGHUP": "127.0.0.1"}
    idle = {name: Child(run, home / name, "--host", host) for name, host in hosts.items()}
    killed = Child(run, home / "killed")
    ask_for_samples(busy.wait_for(address))
    busy.wait_for("computing")
    os.kill(busy.pid, signal.SIGINT)
    for name, child in idle.items():
        asked = urllib.request.Request(child.wait_for(address), headers={"Origin": child.wait_for(address)})
        assert b"digits" in urllib.request.urlopen(asked, timeout=120).read()
        assert any(child.temporary.iterdir())
        os.kill(child.pid, signal.Signals[name])
    killed.wait_for(address)
    os.kill(killed.pid, signal.SIGKILL)
    results = {"refused": refused, "killed": killed.end()}
    results["hung"] = Child(run, home / "hung", prepare=hang).end(hung=0.1)
    after = Child(run, home / "killed", prepare=ignoring)  # in the same TMPDIR
    after.wait_for(address)
    results["started after"] = {"left": sorted(p.name for p in after.temporary.iterdir())}
    for number in IGNORED:
        os.kill(after.pid, number)
    urllib.request.urlopen(after.wait_for(address), timeout=120).read()
    os.kill(after.pid, signal.SIGTERM)
    results |= {name: child.end() for name, child in idle.items()}
    return results | {"busy SIGINT": busy.end(), "after, signals ignored": after.end()}


def import_everything(run: Path, home: Path) -> None:
    """Run once what every child runs, so that everything is imported before the fork."""
    import uvicorn

    assert uvicorn
    server._application(build(Viewer(run), home), None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    path, home = Path(sys.argv[1]), Path(sys.argv[2])
    import_everything(path, home)
    for name, result in cases(path, home).items():
        print(json.dumps({"name": name, **result}), flush=True)
