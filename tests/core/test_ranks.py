"""One of several processes ends early: the others stop and name its error, and the resumed run is bit-identical."""

import pytest

from benchmarks.faults import NONE, Child, ranks
from benchmarks.outcomes import contents
from benchmarks.rank_faults import event
from diffem.core import processes
from diffem.core.interruption import EXIT_LOST, EXIT_PREEMPTED


def finish(out, faults=None, count=2):
    """The exit code and the messages of every process; `Child.end` kills a process that hangs and returns −1."""
    return [child.end() for child in ranks(out, faults, count)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks") / "undisturbed"
    assert [code for code, _ in finish(out)] == [0, 0]
    return contents(out)[0]


def same(out, reference):
    found, refused = contents(out)
    return not refused and found.keys() == reference.keys() and all((found[n] == reference[n]).all() for n in found)


ERRORS = {
    "join": (1, "bad_input", "InputError"),
    "start": (0, "no_space", "OSError"),
    "E": (1, "bad_input", "InputError"),
    "M": (1, "no_memory", "OutOfMemoryError"),
    "watch": (0, "no_space", "OSError"),
}


@pytest.mark.parametrize("phase", ERRORS)
def test_the_error_of_one_process_stops_all_of_them(phase, tmp_path):
    rank, action, kind = ERRORS[phase]
    ends = finish(tmp_path / "run", {rank: event(phase, 1 if phase == "join" else 2, action)})
    assert ends[rank][0] in (1, 2), ends
    code, said = ends[1 - rank]
    assert code == EXIT_LOST, ends
    assert f"process {rank} of 2 failed ({kind}: " in said
    assert "(simulated)" in said


@pytest.mark.slow
@pytest.mark.parametrize("phase", ERRORS)
def test_all_of_three_processes_stop_if_one_fails(phase, tmp_path):
    rank, action, kind = ERRORS[phase]
    rank *= 2  # the last process instead of the second
    ends = finish(tmp_path / "run", {rank: event(phase, 1, action)}, count=3)
    for code, said in ends[:rank] + ends[rank + 1 :]:
        assert code == EXIT_LOST, ends
        assert f"process {rank} of 3 failed ({kind}: " in said


def test_the_others_have_enough_time_to_stop_within_30_seconds():
    assert processes.BEAT + processes.STOPPING < 30


def test_a_waiting_process_reacts_to_a_signal(tmp_path):
    """The third wait of the second process is for the Gaussian start, in which the first one hangs and is killed."""
    faults = {0: event("start", 2, "hang"), 1: event("wait", 3, "terminate_once_hung")}
    ends = finish(tmp_path / "run", faults)
    assert [code for code, _ in ends] == [EXIT_PREEMPTED, EXIT_PREEMPTED], ends
    assert "the same command resumes" in ends[0][1]


STOPS = [
    pytest.param("M", 1, "terminate", EXIT_PREEMPTED),
    pytest.param("M", 0, "no_space", EXIT_LOST, marks=pytest.mark.slow),
    pytest.param("E", 1, "terminate", EXIT_PREEMPTED, marks=pytest.mark.slow),
    pytest.param("E", 0, "no_space", EXIT_LOST, marks=pytest.mark.slow),
    pytest.param("watch", 0, "terminate", EXIT_PREEMPTED, marks=pytest.mark.slow),
    pytest.param("start", 0, "terminate", EXIT_PREEMPTED, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("phase", "rank", "action", "code"), STOPS)
def test_all_stop_and_the_resumed_run_is_bit_identical(phase, rank, action, code, undisturbed, tmp_path):
    ends = finish(tmp_path / "run", {rank: event(phase, 280 if phase == "M" else 2, action)})
    assert ends[1 - rank][0] == code, ends
    assert [code for code, _ in finish(tmp_path / "run")] == [0, 0]
    assert same(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_resumed_by_another_number_of_processes(undisturbed, tmp_path):
    """The draws of the first lap come from the Gaussian start and are bit-identical on any number of processes."""
    out = tmp_path / "run"
    assert [code for code, _ in finish(out, {1: event("M", 280, "terminate")})] == [EXIT_PREEMPTED, EXIT_PREEMPTED]
    assert Child(out, NONE).end()[0] == 0
    found, refused = contents(out)
    assert found.keys() == undisturbed.keys()
    assert not refused
    assert all((found[name] == undisturbed[name]).all() for name in found if name.startswith("001/draws"))
