"""Networks that the user registers are tried before a run begins."""

import pytest
import torch

import diffem
from diffem import InputError
from diffem.nn.networks import NETWORKS

from ..em.small import RECIPE, observations


class Own(torch.nn.Module):
    """A network that is right, and the base of the others."""

    def __init__(self, event_shape, hidden):
        super().__init__()
        self.layer = torch.nn.Linear(event_shape[0] + 1, event_shape[0])

    def forward(self, x, log_sigma):
        return self.layer(torch.cat([x, log_sigma[:, None]], 1))


class Narrow(Own):
    def forward(self, x, log_sigma):
        return x[:, :2]


class OneArgument(Own):
    def forward(self, x):
        return x


class Nothing(Own):
    def forward(self, x, log_sigma):
        return None


class Detached(Own):
    def forward(self, x, log_sigma):
        return super().forward(x, log_sigma).detach()


class Parameterless(torch.nn.Module):
    def __init__(self, event_shape, hidden):
        super().__init__()


class Normalised(Own):
    def __init__(self, event_shape, hidden):
        super().__init__(event_shape, hidden)
        self.layer = torch.nn.Sequential(self.layer, torch.nn.BatchNorm1d(event_shape[0]))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Normalised, r"contains BatchNorm1d \(layer.1\), whose statistics of a batch mix noise levels"),
        (Narrow, r"shape of x, \(2, 4\), got \(2, 2\)"),
        (OneArgument, r"fails on x of shape \(2, 4\) and log σ of shape \(2,\): TypeError"),
        (Nothing, "got NoneType"),
        (Parameterless, "no parameters to train"),
        (Detached, "does not depend on its parameters"),
    ],
)
def test_a_wrong_network_is_refused_before_anything_is_written(network, words, tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "own", network)
    changes = {"network": {"kind": "own", "hidden": [8]}}
    with pytest.raises(InputError, match=words):
        diffem.fit(observations(), RECIPE, tmp_path / "run", changes=changes, progress=False)
    assert not (tmp_path / "run").exists()


def test_messages_about_own_networks_tell_what_to_do(tmp_path, monkeypatch):
    changes = {"network": {"kind": "own", "hidden": [8]}}
    with pytest.raises(InputError, match=r"unknown network 'own'.*NETWORKS\['mine'\] = Mine"):
        diffem.fit(observations(), RECIPE, tmp_path / "run", changes=changes, progress=False)
    monkeypatch.setitem(NETWORKS, "own", Own)
    with pytest.raises(InputError, match=r"`shown` is the number of inputs .* set e_step.method to mmps"):
        diffem.fit(
            observations(), RECIPE, tmp_path / "run", changes=changes | {"e_step.method": "conditional"}, progress=False
        )


def test_the_trial_does_not_change_random_numbers(tmp_path, monkeypatch):
    monkeypatch.setitem(NETWORKS, "own", Own)
    state = torch.random.get_rng_state()
    changes = {"network": {"kind": "own", "hidden": [8]}, "laps": 1, "train.steps": 8}
    run = diffem.fit(observations(), RECIPE, tmp_path / "run", changes=changes, progress=False, report=False)
    assert run.laps[-1]["lap"] == 1
    assert torch.equal(torch.random.get_rng_state(), state)
