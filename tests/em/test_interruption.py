"""A request to stop takes effect at the next step of every phase, and the resumed run is bit-identical."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import diffem
from benchmarks import rank_faults
from diffem import priors
from diffem.cli import commands as cli
from diffem.core.interruption import EXIT_CTRL_C, EXIT_PREEMPTED, Interruption, Preempted, poll, polled
from diffem.em import loop
from diffem.em.model_check.noise import noise_evidence
from diffem.nn import MLP
from diffem.priors.fit_full import SelectionModel
from diffem.runs.recipe import load_recipe

from .small import RECIPE, observations
from .test_resume import contents, same

TWO_FITS = {
    **RECIPE,
    "gaussian": {"rounds": 8, "observations": 60, "final_rounds": 8},
    "train": {**RECIPE["train"], "steps": 280},  # more than a block of 256
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    diffem.fit(observations(), TWO_FITS, out, progress=False)
    return contents(out)


class Steps:
    """Count the calls of functions while a function of the loop runs; at call number `at` the request to stop comes."""

    def __init__(self, monkeypatch, method, lap, steps, at):
        self.interruption, self.at, self.inside, self.calls = Interruption(), at, False, 0
        whole = getattr(loop, method)

        def phase(context, *arguments):
            self.inside = lap is None or arguments[0] == lap
            try:
                return whole(context, *arguments)
            finally:
                self.inside = False

        monkeypatch.setattr(loop, method, phase)
        for owner, name in steps:
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, function):
        def call(*arguments, **options):
            if self.inside:
                self.calls += 1
                if self.calls == self.at:
                    self.interruption.requested = True
            return function(*arguments, **options)

        return call


NETWORK, GAUSSIAN, ROUND = (MLP, "forward"), (priors.GaussianPrior, "draw_posterior"), (SelectionModel, "expect")
# function of the loop, lap, what is counted, at which count the request comes, the message
PHASES = {
    "the first fit of the start": ("make_start", None, [ROUND], 4, "lap 0: starting prior"),
    "the second fit of the start": ("make_start", None, [ROUND], 13, "lap 0: starting prior"),
    "measuring the start": ("conclude", 0, [GAUSSIAN], 3, "lap 0: held-out evaluation"),
    "draws from the start": ("expect", 1, [GAUSSIAN], 2, "lap 1: E-step"),
    "training, in the first block": ("maximise", 1, [NETWORK], 100, "lap 1: 0 of 280 training steps done"),
    "training, in the second block": ("maximise", 1, [NETWORK], 270, "lap 1: 256 of 280 training steps done"),
    "measuring a network": ("conclude", 1, [NETWORK], 10, "lap 1: held-out evaluation"),
    "draws from a network": ("expect", 2, [NETWORK], 10, "lap 2: E-step"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_request_to_stop_takes_effect_at_the_next_step(phase, undisturbed, tmp_path, monkeypatch):
    method, lap, steps, at, message = PHASES[phase]
    with monkeypatch.context() as patch:
        counted = Steps(patch, method, lap, steps, at)
        with pytest.raises(Preempted, match=message):
            diffem.fit(observations(), TWO_FITS, tmp_path / "run", progress=False, interruption=counted.interruption)
    assert counted.calls <= at + 2  # a sampler's step evaluates the network at most three times
    diffem.fit(observations(), TWO_FITS, tmp_path / "run", progress=False)
    assert same(contents(tmp_path / "run"), undisturbed)
    assert not list((tmp_path / "run").rglob("start.safetensors"))


def test_the_start_resumes_where_it_was(undisturbed, tmp_path, monkeypatch):
    """Not by fitting again: the two fits take 19 rounds, the resumed one 1 for its sums and those that were missing."""
    rounds = []
    with monkeypatch.context() as patch:
        counted = Steps(patch, "make_start", None, [ROUND], 17)
        with pytest.raises(Preempted):
            diffem.fit(observations(), TWO_FITS, tmp_path / "run", progress=False, interruption=counted.interruption)
        counted = Steps(patch, "make_start", None, [ROUND], 0)
        diffem.fit(observations(), TWO_FITS, tmp_path / "run", progress=False)
        rounds.append(counted.calls)
    assert rounds[0] <= 8
    assert same(contents(tmp_path / "run"), undisturbed)


def test_a_damaged_state_of_the_start_is_not_used(undisturbed, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        counted = Steps(patch, "make_start", None, [ROUND], 17)
        with pytest.raises(Preempted):
            diffem.fit(observations(), TWO_FITS, tmp_path / "run", progress=False, interruption=counted.interruption)
    file = tmp_path / "run" / "laps" / "000" / "start.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    diffem.fit(observations(), TWO_FITS, tmp_path / "run", progress=False)
    assert "start.safetensors is damaged" in capsys.readouterr().err
    assert same(contents(tmp_path / "run"), undisturbed)


def test_polls_do_nothing_outside_of_a_polled_block():
    def stop():
        raise Preempted("here")

    poll()
    with pytest.raises(Preempted), polled(stop):
        poll()
    poll()


def test_the_model_check_can_be_interrupted(monkeypatch):
    """The model check fits its own Gaussians; runs with few rounds omit it."""
    rounds = []

    def stop_at_the_third():
        if len(rounds) >= 3:
            raise Preempted("here")

    expect = SelectionModel.expect
    monkeypatch.setattr(SelectionModel, "expect", lambda *arguments: (rounds.append(1), expect(*arguments))[1])
    with pytest.raises(Preempted), polled(stop_at_the_third):
        noise_evidence(observations(400), load_recipe("digits").gaussian)
    assert len(rounds) == 3


@pytest.mark.parametrize("phase", ["start", "M"])
def test_ctrl_c_stops_a_run_like_sigterm(phase, tmp_path, monkeypatch, capsys):
    """The first Ctrl-C stops a run like SIGTERM does, with the exit code that shells expect."""
    obs, recipe = tmp_path / "obs.npz", tmp_path / "recipe.yaml"
    observations().save(obs)
    recipe.write_text(load_recipe({**RECIPE, "data": {"source": "file", "path": str(obs)}}).to_yaml())
    command = ["diffem", "fit", str(recipe), "-o", str(tmp_path / "run")]
    owner, name, _ = rank_faults.PHASES[phase]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, getattr(owner, name))  # restored afterwards
        rank_faults.install(phase, 2, "interrupt")
        patch.setattr(sys, "argv", command)
        patch.setattr(cli, "PATIENCE", 1e6)  # or a very slow machine would end pytest
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert end.value.code == EXIT_CTRL_C
    assert "the same command resumes" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


BLOCKED = """
import sys
from torch.distributed import TCPStore
from diffem.core.interruption import Interruption
store = TCPStore("127.0.0.1", 0, 1, True)
with Interruption().listening(patience=0.2):
    print("ready", flush=True)
    store.get("a key that nobody sets")
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, EXIT_PREEMPTED), (signal.SIGINT, EXIT_CTRL_C)])
def test_a_process_that_cannot_react_is_ended(number, code):
    """Blocked inside a library, where Python runs no signal handlers."""
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    try:
        _, said = process.communicate(timeout=120)  # many times what it takes: only ends what hangs
    finally:
        process.kill()
    assert process.returncode == code, said
    assert "the same command resumes" in said


def test_a_ctrl_c_that_is_ignored_from_the_start_stays_ignored():
    """Shells start background jobs of scripts that way; SIGTERM stops them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption().listening() as interruption:
            os.kill(os.getpid(), signal.SIGINT)
            assert not interruption.should_stop
            os.kill(os.getpid(), signal.SIGTERM)
            assert interruption.should_stop
            assert interruption.signal == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
