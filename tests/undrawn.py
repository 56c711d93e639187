"""Runs without pictures in their reports, for tests that do not check them; `tests/report` draws them.

The fixture also covers fixtures of a module; a fixture of the whole session calls `undrawn` itself.
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
