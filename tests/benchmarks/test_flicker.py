"""How a run of the suite is counted, and that the other work ends with it."""

import pytest

from benchmarks import flicker

SUITE = """
import threading
import pytest

def test_that_passes():
    pass

def test_that_fails():
    assert 1 == 2

@pytest.mark.timeout(1)
def test_that_hangs():
    threading.Event().wait()
"""


def test_failures_and_hangs_are_named(tmp_path):
    (tmp_path / "test_three.py").write_text(SUITE)
    row = flicker.run_suite([str(tmp_path)], limit=1000, workers=1, options=[f"--rootdir={tmp_path}"])
    assert row["tests"] == 3
    assert row["load"] >= 0
    assert [name.partition("::")[2] for name in row["failures"]] == ["test_that_fails"]
    assert [name.partition("::")[2] for name in row["hangs"]] == ["test_that_hangs"]


def test_a_run_that_does_not_start_is_a_failure(tmp_path):
    row = flicker.run_suite([str(tmp_path / "nowhere")], limit=1000, workers=0, options=["-c", "/dev/null"])
    assert "exit code 4" in row["failures"][0]


def test_a_run_that_does_not_end_is_ended_and_its_tests_are_named():
    """The names come from the output of pytest and its workers."""
    log = """
tests/a.py::test_one
tests/a.py::test_with_spaces[one of them]
[gw1] [ 33%] PASSED tests/a.py::test_one
tests/b.py::test_two
[gw1] [ 66%] FAILED tests/b.py::test_two
"""
    assert flicker.running(log) == ["tests/a.py::test_with_spaces[one of them]"]
    assert flicker.run_suite([], limit=0.0, workers=0, options=["--collect-only"])["hangs"] == ["the run"]


def test_the_other_work_always_ends():
    seen = []

    def interrupted():
        with flicker.busy(2) as workers:
            seen.extend(workers)
            assert all(worker.poll() is None for worker in workers)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(seen) == 2
    assert all(worker.returncode is not None for worker in seen)
