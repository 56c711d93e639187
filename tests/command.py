"""The command line in this process: starting Python and importing torch takes longer than most commands."""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace
from unittest import mock

from diffem.cli.commands import main


def diffem(*arguments: object) -> SimpleNamespace:
    """Run `diffem ARGUMENTS`; returns `returncode`, `stdout` and `stderr`, like `subprocess.run`."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["diffem", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())
