"""Insides that contract/cli/test_inspect_sheet.py needs not: they go with what they test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dali_feed.cli.inspect import bars, borders, class_lines


def test_what_is_no_set_of_classes_is_not_called_one() -> None:
    """One label for all, or one of its own for each record, says nothing; equal counts are said in a line."""
    assert class_lines([4, 4, 4], "x") == []
    assert class_lines([1, 2, 3, None], "x") == []
    assert class_lines([1, 2, 1, 2], "x")[-1] == "all equally frequent"


def test_classes_are_not_named_twice() -> None:
    """Where all are named as the most frequent, none is named again as the rarest."""
    assert class_lines([1, 1, 2], "x")[0] == "2 in x, 1.5 records each; most frequent 1 (2), 2 (1)"


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_every_value_has_its_bar(values: list[int]) -> None:
    """Borders ascend and hold the least and the most; there are never more than eight bars."""
    edges = borders(min(values), max(values))
    assert edges[0] <= min(values)
    assert max(values) < edges[-1]
    assert edges == sorted(set(edges))
    assert len(edges) <= 9
    table = bars("n", values)
    assert (table is None) == (len(set(values)) == 1)
