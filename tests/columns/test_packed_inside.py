"""Insides that contract/columns/test_packed.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest

from dali_feed.columns import Packed


def digits(text: str) -> list[int]:
    """A token for each digit."""
    return [int(c) for c in text]


def packed(documents: list[str], **options: Any) -> dict[str, list[Any]]:
    """What one lane's documents come to in rows of four."""
    kind, faults = Packed("txt", digits, 4, **options), dict[int, str]()
    batch = kind.batch(kind.read(documents, faults))
    assert not faults
    return {name: array.tolist() for name, array in batch._asdict().items()}


def test_a_document_goes_on_in_the_next_row() -> None:
    """Number and place start again there; a document without tokens is nowhere, and has no end either."""
    assert packed(["11", "", "22222", "3"], end=9, pad=8) == {
        "ids": [[1, 1, 9, 2], [2, 2, 2, 2], [9, 3, 9, 8]],
        "mask": [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]],
        "document": [[1, 1, 1, 2], [1, 1, 1, 1], [1, 2, 2, 0]],
        "position": [[0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 1, 0]],
        "cut": [0, 0, 0],
    }


def test_a_document_that_stays_whole_stands_where_there_is_room() -> None:
    """The longest first; one that is longer than a row is cut, and what was cut is counted with its row."""
    assert packed(["11", "222222", "333", "44", "5"], split=False) == {
        "ids": [[2, 2, 2, 2], [3, 3, 3, 5], [1, 1, 4, 4]],
        "mask": [[1] * 4] * 3,
        "document": [[1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 2]],
        "position": [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 0, 1]],
        "cut": [2, 0, 0],
    }


@pytest.mark.parametrize("split", [True, False])
def test_rows_of_a_fixed_number_are_filled_or_cut_and_counted(split: bool) -> None:
    """Tokens for which there is no row are counted in the last one."""
    few, many = packed(["1"], rows=2, split=split), packed(["111", "222222", "333"], rows=2, split=split)
    assert few["ids"] == [[1, 0, 0, 0], [0] * 4]
    assert few["cut"] == [0, 0]
    assert [len(many["ids"]), sum(many["cut"])] == [2, 4 if split else 5]
    assert (sum(map(sum, many["mask"])) + sum(many["cut"])) == 12


def test_documents_without_tokens_alone_make_one_row() -> None:
    """So no step is without a row."""
    assert packed(["", ""])["mask"] == [[0] * 4]
