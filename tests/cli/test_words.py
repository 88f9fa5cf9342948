"""What the commands make of values, sizes and amounts."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg
from kit.written import npy

from dali_feed.cli.inspect import bars, borders
from dali_feed.cli.members import guess
from dali_feed.cli.options import seconds_of, size_of
from dali_feed.cli.targets import topic_of


@pytest.mark.parametrize(
    ("name", "value", "text", "kind"),
    [
        ("x", npy(np.zeros((2, 3), np.float32)), "npy float32 (2, 3)", "Array"),
        ("x", npy(np.zeros(3))[:20], "npy, cut off", "Bytes"),
        ("x", b"\xff\xfe\xfd", "bytes", "Bytes"),
        ("x", b"\xff\x00", "bytes", "Bytes"),
        ("x", "é".encode() * 10000, "text", "Text"),
        ("x", b"a" + "é".encode() * 10000, "text", "Text"),
        ("x", b"", "nothing", "Bytes"),
        ("x", b'{"a": 1}', "json", "JsonValue"),
        ("x", b"{not json", "text", "Text"),
        ("x", b"12", "int, as text", "Number"),
        ("x", b"-1.5e3", "float, as text", "Number"),
        ("f16", b"1234", "float16 (2,)", "Array"),
        ("f16", b"123", "int, as text", "Number"),
        ("x", base64.b64encode(jpeg(0)).decode(), "jpeg image, in base64", "Image"),
        ("x", base64.b64encode(b"a text that is long enough to be an image").decode(), "text", "Text"),
        ("x", [["a"], ["b"]], "list", "JsonValue"),
        ("x", [[1], [1, 2]], "list", "JsonValue"),
        ("x", [[0, 0, 1, 1]], "rows of 4", "Boxes"),
        ("x", [0.5, 1.0], "float32 (2,)", "Array"),
        ("x", np.zeros((2, 3), np.int16), "int16 (2, 3)", "Array"),
        ("x", True, "bool", "Number"),
        ("x", 1.5, "float", "Number"),
        ("x", {"a": 1}, "dict", "JsonValue"),
        ("x", {1}, "set", ""),
        ("x", None, "NoneType", ""),
    ],
)
def test_a_value_is_guessed_by_what_it_holds(name: str, value: Any, text: str, kind: str) -> None:
    """By the first bytes, the type, and last by the name: in words, and the column that reads it."""
    found = guess(name, value)
    assert (found.text, found.kind) == (text, kind)


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_every_value_has_its_bar(values: list[int]) -> None:
    """Borders ascend and hold the least and the most; there are never more than eight bars."""
    edges = borders(min(values), max(values))
    assert edges[0] <= min(values)
    assert max(values) < edges[-1]
    assert edges == sorted(set(edges))
    assert len(edges) <= 9
    assert (bars("n", values) is None) == (len(set(values)) == 1)


@pytest.mark.parametrize(
    ("read", "text", "amount"),
    [
        *((seconds_of, "90s", 90), (seconds_of, "1.5h", 5400), (seconds_of, "2 min", 120), (seconds_of, "7d", 604_800)),
        *((seconds_of, "forever", None), (size_of, "1500", 1500), (size_of, "8MiB", 8 << 20)),
        *(
            (size_of, "512MB", 512_000_000),
            (size_of, "1.5 GB", 1_500_000_000),
            (topic_of, "kafka://h:1,/t", ("t", "h:1")),
        ),
        *((read, text, typer.BadParameter) for read in (seconds_of, size_of) for text in ("", "0", "0h", "-1", "MB")),
        *(
            (read, text, typer.BadParameter)
            for read in (seconds_of, size_of)
            for text in ("5 parsecs", "1e9", "8mb", "5H")
        ),
    ],
)
def test_amounts_are_as_people_write_them(read: Any, text: str, amount: Any) -> None:
    """MB of 10^6, MiB of 2^20, times; what is none is an error of usage that shows what was typed."""
    if amount is typer.BadParameter:
        with pytest.raises(typer.BadParameter, match="^must be a .* found "):
            read(text)
    else:
        assert read(text) == amount
