"""Faults at random instants: three in the suite (a kill, a request to stop, one of two processes killed), twenty in the
slow checks; `make chaos` makes three hundred. Full disks and missing memory: tests/hostile/test_storage.py, tests/em/test_trouble.py."""

import pytest

from benchmarks.faults import chaos


@pytest.mark.timeout(1800)  # two runs and more for every fault
@pytest.mark.parametrize("faults", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_faults(faults, tmp_path):
    rows = chaos(faults, seed=1, workers=2, folder=tmp_path)  # faults spend much of their time waiting
    assert len(rows) == faults
    bad = [row for row in rows if row["outcome"] not in ("identical", "refused")]
    assert not bad, bad
