"""The suite can be started in a terminal, by a script in the background, and under nohup."""

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
IGNORING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_ctrl_c_is_not_ignored():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_not_ignored_if_the_suite_inherits_the_setting():
    command = [sys.executable, "-c", IGNORING, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
    command += [f"{__file__}::{test_ctrl_c_is_not_ignored.__name__}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
