"""Insides that contract/cli/test_inspect_members.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit.command import cli

from dali_feed.cli.members import guess

__all__ = ["cli"]  # a fixture


@pytest.mark.parametrize(
    ("name", "value", "text", "kind"),
    [
        ("a", b"12", "int, as text", "Number"),
        ("a", b"-1.5e3", "float, as text", "Number"),
        ("a", b"", "nothing", "Bytes"),
        ("a", b"\xff\x00", "bytes", "Bytes"),
        ("a", "é".encode() * 5000, "text", "Text"),
        ("f16", b"1234", "float16 (2,)", "Array"),
        ("f16", b"123", "int, as text", "Number"),
        ("a", b'{"a": 1}', "json", "JsonValue"),
        ("a", b"{broken", "text", "Text"),
        ("a", True, "bool", "Number"),
        ("a", 1.5, "float", "Number"),
        ("a", {"a": 1}, "dict", "JsonValue"),
        ("a", [[1, 2], [3]], "list", "JsonValue"),
        ("a", [[1, 2, 3, 4]], "rows of 4", "Boxes"),
        ("a", np.zeros((2, 3), np.int16), "int16 (2, 3)", "Array"),
        ("a", None, "NoneType", ""),
    ],
)
def test_kinds_are_guessed(name: str, value: Any, text: str, kind: str) -> None:
    """By the first bytes, the type, and last by the name."""
    found = guess(name, value)
    assert (found.text, found.kind) == (text, kind)
