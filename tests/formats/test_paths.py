"""Paths into a record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.paths import DEEPEST, MOST, flatten, path_of, pick, steps_of

NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"'), max_size=8)


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("label", ("label",)),
        ("body.features", ("body", "features")),
        ("images[0].data", ("images", 0, "data")),
        ("[3]", (3,)),
        ("[0][1]", (0, 1)),
        ('body["a.b"].c', ("body", "a.b", "c")),
        ('[""]', ("",)),
        ("image id", ("image id",)),
        ("$", ()),
    ],
)
def test_a_path_is_names_and_numbers(path: str, steps: tuple[Any, ...]) -> None:
    """As people write them, and back."""
    assert steps_of(path) == steps
    assert steps_of(path_of(steps)) == steps


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a[-1]", "a[1", 'a["b]', "a]b", "a.[0]"])
def test_what_is_no_path_is_a_mistake(path: str) -> None:
    """It is told when the format is made, not with the first record."""
    with pytest.raises(ConfigError, match="must be a path"):
        steps_of(path)


@given(st.lists(st.one_of(NAMES, st.integers(0, 999_999_999)), max_size=5))
def test_every_row_of_steps_has_a_path(steps: list[str | int]) -> None:
    """Names with dots, brackets and blanks too; only a quotation mark cannot be written."""
    assert steps_of(path_of(tuple(steps))) == tuple(steps)


RECORD = {"body": {"features": [1, 2], "label": 3, "images": [{"data": "x"}]}, "text": "abc"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("label", "label: no such member; the record has 'body', 'text'"),
        ("body.lable", "body.lable: no such member; body has 'features', 'label', 'images'"),
        ("body.features[2]", r"body.features\[2\]: no such member; body.features has 2 items"),
        ("text[0]", "text must be a list, found str"),
        ("text.a", "text must be a record, found str"),
        ("body[0]", "body must be a list, found dict"),
        ("body.images.data", "body.images must be a record, found list"),
    ],
)
def test_a_member_that_is_missing_says_what_there_is(path: str, said: str) -> None:
    """How far the path goes, and what lies there; a text is not taken letter by letter."""
    with pytest.raises(FormatError, match=f"^json: .*{said}"):
        pick(RECORD, steps_of(path), "json")


def test_all_members_of_a_record_have_paths() -> None:
    """And each path leads to its member."""
    found = flatten(RECORD)
    assert list(found) == ["body.features", "body.label", "body.images[0].data", "text"]
    assert all(pick(RECORD, steps_of(path), "json") == value for path, value in found.items())


def test_a_record_of_very_many_members_is_listed_in_part() -> None:
    """People look at it."""
    assert len(flatten({str(k): {"a": k, "b": k} for k in range(10_000)})) <= 2 * MOST
    deep: Any = 1
    for _ in range(3 * DEEPEST):
        deep = {"a": deep}
    assert len(flatten(deep)) == 1
