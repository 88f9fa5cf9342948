"""Insides that contract/formats/test_avro.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest
from kit.written import avro

from dali_feed.errors import FormatError
from dali_feed.formats import Avro, bound
from dali_feed.formats.avro_types import LEVELS

TREE = {"type": "record", "name": "Tree", "fields": [
    {"name": "value", "type": "int"},
    {"name": "left", "type": ["null", "Tree"]},
    {"name": "right", "type": ["null", "Tree"]},
]}  # fmt: skip


def test_a_schema_may_name_itself() -> None:
    """Values of it are read as deep as they go, to a limit."""
    tree: Any = None
    for k in range(LEVELS):
        tree = {"value": k, "left": tree, "right": None}
    assert bound(Avro(TREE), ["$"])(avro(TREE, tree)) == (tree,)
    assert bound(Avro(TREE), ["left.left.value"])(avro(TREE, tree)) == (LEVELS - 3,)
    deeper = avro(TREE, {"value": 0, "left": {"value": 0, "left": tree, "right": None}, "right": None})
    for members in (["$"], ["value"]):
        with pytest.raises(FormatError, match="nested in fewer than"):
            bound(Avro(TREE), members)(deeper)
