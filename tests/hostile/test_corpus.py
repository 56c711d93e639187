"""Every hostile input is rejected within 5 s and 500 MB, with exit code 2 and a message that names file and cause.

Nothing is executed or written.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .corpus import COMMANDS, CORPUS, SOUND

ROOT = Path(__file__).parents[2]


def test_the_corpus_is_large_and_every_command_has_a_control():
    assert len(CORPUS) >= 400
    assert {case.command for case in CORPUS.values()} == COMMANDS.keys()
    assert {name.partition(",")[0] for name in COMMANDS} == {name.partition(",")[0] for name in SOUND}


# The first input of every command, and every sixth of all inputs.
SOME = list(
    dict.fromkeys([*{case.command: name for name, case in reversed(CORPUS.items())}.values(), *list(CORPUS)[::6]])
)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured from /proc, which only Linux has")
@pytest.mark.parametrize(
    "names",
    [pytest.param(SOME, id="some"), pytest.param(list(CORPUS), id="all", marks=pytest.mark.slow)],
)
def test_every_input_is_rejected(names):
    command = [sys.executable, "-m", "tests.hostile.measure", *names]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["name"] for row in rows if not row["control"]] == names, result.stderr
    assert sum(row["control"] for row in rows) == len(SOUND)
    wrong = [(row["name"], row["faults"], row.get("said", "")[-300:]) for row in rows if row["faults"]]
    assert wrong == []
