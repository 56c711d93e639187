"""Faults at random times: three in the suite and twenty in the slow tests; `make chaos` injects three hundred.

The three are a kill, a stop signal, and a kill of one of two processes. Full disks are tested in
tests/hostile/test_storage.py, missing memory in tests/em/test_trouble.py.
"""

import pytest

from benchmarks.chaos import chaos


@pytest.mark.timeout(1800)  # at least two runs for every fault
@pytest.mark.parametrize("faults", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_faults_are_recovered_from_or_reported(faults, tmp_path):
    rows = chaos(faults, seed=1, workers=2, folder=tmp_path)  # the processes wait much of the time
    assert len(rows) == faults
    bad = [row for row in rows if row["outcome"] not in ("identical", "refused")]
    assert not bad, bad
