"""Runs without the drawings of their reports, for tests that do not look at them; `tests/report` draws.

The fixture covers the fixtures of a module as well; one of the whole session calls `undrawn` itself.
"""

import pytest

from benchmarks.undrawn import reports_undrawn, undrawn


@pytest.fixture(autouse=True, scope="module")
def _undrawn():
    with undrawn():
        yield


@pytest.fixture(autouse=True, scope="module")
def _reports_undrawn():
    with reports_undrawn():
        yield
