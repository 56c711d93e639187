"""Out-of-memory errors, NaN losses and requests to stop: the run continues, or stops in a state from which it can be
resumed."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import diffem
from diffem import priors
from diffem.core.interruption import Interruption, Preempted
from diffem.em import e_step, lap_end
from diffem.em.maximization import maximization
from diffem.em.trainer import Trainer
from diffem.nn import MLP
from diffem.runs.recipe import Train

from .small import RECIPE, observations
from .test_resume import contents, same

DRAWS = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))


def train(steps=600, resume=None, seconds=120.0, **options):
    torch.manual_seed(0)
    prior = priors.DiffusionPrior(MLP((3,), (16,), 8), sigma_min=0.02, sigma_max=10.0)
    settings = Train(steps=steps, batch=16, lr=1e-3, ema=0.9, checkpoint_seconds=seconds)
    record = maximization(prior, DRAWS, settings, steps=steps, seed=0, lap=1, resume=resume, progress=False, **options)
    return torch.cat([p.flatten() for p in prior.network.parameters()]), record


def failing(monkeypatch, fails, result):
    """Replace the n-th loss by `result(loss, n, examples)` if `fails(n, examples)`."""
    loss, calls = Trainer._loss, []

    def broken(self, x, *rest):
        calls.append(len(x))
        value = loss(self, x, *rest)
        return result(value) if fails(len(calls), len(x)) else value

    monkeypatch.setattr(Trainer, "_loss", broken)
    return calls


def not_a_number(loss):
    return loss * math.nan


def out_of_memory(loss):
    raise torch.OutOfMemoryError("simulated")


def test_training_is_reset_after_one_bad_loss(monkeypatch):
    failing(monkeypatch, lambda n, size: n == 400, not_a_number)
    weights, record = train()
    assert record.rollbacks == 1
    assert record.steps == 600
    assert torch.isfinite(weights).all()
    assert all(math.isfinite(loss) for _, loss in record.losses)
    steps = [step for step, _ in record.losses]
    assert steps == sorted(set(steps))


def test_noise_that_always_gives_a_bad_loss_is_replaced(monkeypatch):
    """A smaller learning rate does not help against it."""
    loss, kept = Trainer._loss, {}

    def recorded(self, x, log_sigma, z, *rest):
        kept.setdefault("z", []).append(z.clone())
        return loss(self, x, log_sigma, z, *rest)

    monkeypatch.setattr(Trainer, "_loss", recorded)
    train()
    bad = kept["z"][400]

    def broken(self, x, log_sigma, z, *rest):
        value = loss(self, x, log_sigma, z, *rest)
        return value * math.nan if torch.equal(z, bad) else value

    monkeypatch.setattr(Trainer, "_loss", broken)
    weights, record = train()
    assert record.rollbacks == 1
    assert record.steps == 600
    assert torch.isfinite(weights).all()


def test_a_training_that_was_reset_resumes_bit_for_bit(monkeypatch):
    """Its noise after the reset depends on the number of resets, which the checkpoint contains."""
    monkeypatch.setattr("diffem.em.maximization.BLOCK_BYTES", 50 * 16 * (3 + 8) * 4)  # blocks of 50 steps
    failing(monkeypatch, lambda n, size: n == 120, not_a_number)
    saved = []

    def checkpoint(done, state, record):
        copied = {name: t.clone() for name, t in state.items()}
        saved.append((done, copied, replace(record, losses=list(record.losses))))

    whole, record = train(checkpoint=checkpoint, seconds=1e-9)
    assert record.rollbacks == 1
    resumed = next(entry for entry in saved if entry[0] >= 300)
    assert resumed[2].rollbacks == 1
    monkeypatch.undo()
    monkeypatch.setattr("diffem.em.maximization.BLOCK_BYTES", 50 * 16 * (3 + 8) * 4)
    weights, _ = train(resume=resumed)
    assert torch.equal(weights, whole)


def test_training_ends_with_an_error_if_the_loss_stays_bad(monkeypatch):
    failing(monkeypatch, lambda n, size: n > 300, not_a_number)
    with pytest.raises(FloatingPointError, match=r"near step .*lower train\.lr"):
        train()


def test_a_temporary_lack_of_memory_changes_nothing(monkeypatch):
    undisturbed, _ = train()
    failing(monkeypatch, lambda n, size: n == 300, out_of_memory)
    weights, record = train()
    assert torch.equal(weights, undisturbed)
    assert record.rollbacks == 0


def test_a_batch_that_exceeds_the_memory_is_split(monkeypatch):
    undisturbed, _ = train(300)
    sizes = failing(monkeypatch, lambda n, size: size > 4, out_of_memory)
    weights, _ = train(300)
    assert sizes[-1] == 4
    # sums in another order: float32 rounding, grown by 300 steps
    assert (weights - undisturbed).norm() < 1e-4 * undisturbed.norm()
    failing(monkeypatch, lambda n, size: True, out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        train(300)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights and draws of an undisturbed run."""
    return contents(diffem.fit(observations(), RECIPE, tmp_path_factory.mktemp("runs") / "run", progress=False).path)


def test_an_e_step_that_exceeds_the_memory_draws_the_same_in_smaller_batches(undisturbed, tmp_path, monkeypatch):
    draw_shard, told = e_step.draw_shard, []

    def limited(*args, batch_size, **options):
        if batch_size > 12:
            raise torch.OutOfMemoryError("simulated")
        return draw_shard(*args, batch_size=batch_size, **options)

    monkeypatch.setattr(e_step, "draw_shard", limited)
    on_event = lambda event, data: told.append(data) if event == "memory" else None  # noqa: E731
    run = diffem.fit(observations(), RECIPE, tmp_path / "run", progress=False, on_event=on_event)
    assert [data["batch"] for data in told] == [40, 20, 10]
    assert run.laps[-1]["e_batch"] == 10
    one, other = undisturbed, contents(tmp_path / "run")
    assert all(np.allclose(one[name], other[name], rtol=1e-4, atol=1e-4) for name in one if "draws" in name)


def test_an_evaluation_that_exceeds_the_memory_continues_in_smaller_batches(tmp_path, monkeypatch):
    evaluate, batches = lap_end.evaluate_lap, []

    def limited(prior, held_out, pictured, recipe, batch):
        batches.append(batch)
        if batch > 12:
            raise torch.OutOfMemoryError("simulated")
        return evaluate(prior, held_out, pictured, recipe, batch)

    monkeypatch.setattr(lap_end, "evaluate_lap", limited)
    run = diffem.fit(observations(), RECIPE, tmp_path / "run", progress=False)
    assert batches[:4] == [40, 40, 20, 10]
    assert len(run.laps) == RECIPE["laps"] + 1


@pytest.mark.parametrize("calls", [1, 2, 4, 7])
def test_a_stopped_run_resumes(calls, undisturbed, tmp_path):
    """After a request to stop, the run raises `Preempted`; the same call then ends with a bit-identical result."""

    class Later(Interruption):
        def __init__(self):
            self.left = calls

        @property
        def should_stop(self):
            self.left -= 1
            return self.left < 0

    with pytest.raises(Preempted):
        diffem.fit(observations(), RECIPE, tmp_path / "run", progress=False, interruption=Later())
    diffem.fit(observations(), RECIPE, tmp_path / "run", progress=False)
    assert same(undisturbed, contents(tmp_path / "run"))


def test_missing_draws_of_the_previous_lap_are_recomputed_for_a_lap_that_keeps_them(undisturbed, tmp_path, capsys):
    """Missing or damaged draws are drawn again from the prior of the previous lap; the result is bit-identical."""
    torch.set_num_threads(1)
    diffem.fit(observations(), {**RECIPE, "laps": 1}, tmp_path / "gone", progress=False)
    shutil.copytree(tmp_path / "gone", tmp_path / "damaged")
    (tmp_path / "gone/laps/001/draws/00001.npy").unlink()
    file = tmp_path / "damaged/laps/001/draws/00001.npy"
    file.write_bytes(file.read_bytes()[:-7])
    for name in ("gone", "damaged"):
        diffem.fit(observations(), RECIPE, tmp_path / name, progress=False)
        assert same(undisturbed, contents(tmp_path / name))
    assert "00001.npy is damaged" in capsys.readouterr().err
