"""Numbers with their noun."""

import pytest

from diffem.core.counting import count_of


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 laps"), (1, "1 lap"), (2, "2 laps"), (1000, "1000 laps")],
    ids=["none", "one", "two", "many"],
)
def test_the_noun_agrees_with_the_number(count, text):
    assert count_of(count, "lap") == text


def test_irregular_plurals_are_given():
    assert [count_of(n, "axis", "axes") for n in (1, 2)] == ["1 axis", "2 axes"]
