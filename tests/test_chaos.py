"""Twenty faults at random instants; `make chaos` makes three hundred."""

import pytest

from benchmarks.faults import chaos


@pytest.mark.timeout(1800)  # more than forty runs
def test_twenty_faults(tmp_path):
    rows = chaos(20, seed=1, workers=2, folder=tmp_path)  # faults spend much of their time waiting
    assert len(rows) == 20
    bad = [row for row in rows if row["outcome"] not in ("identical", "refused")]
    assert not bad, bad
