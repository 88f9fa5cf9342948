"""Records of every shape, and what a block holds in a form that can be compared: for both ways to read a topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dali_feed.external_sources.kafka import reader
from dali_feed.records.source import Block
from dali_feed.testing import Message

LARGE = 100_000  # bytes, more than a slab of these tests
NAMES = tuple(f"h{n}" for n in range(17))  # one more than C looks up beside those of a claim

_VALUES = (b"", None, b"x", b"value" * 9, b"\0" * 700, bytes(range(256)) * 40)
_KEYS = (None, b"", b"k", b"\xff\0key", b"")
_LABELS: tuple[tuple[bytes | None, ...], ...] = (
    (b"7",),
    (b"000123",),
    (b"9" * 18,),
    (b"-42",),
    (b"1" + b"0" * 18,),
    (b"-9223372036854775808",),
    (b"9" * 19,),
    (b"",),
    (None,),
    (),
    (b"x", b"3"),
    (b"3", None),
    (b" 7",),
    (b"1_0",),
    ("٣".encode(),),
    (b"1" * 60,),
)
_OTHERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
    (),
    (("a", b"1"),),
    (("a", None),),
    (("a", b""), ("größe", b"\xff\xfe")),
    (("a", b"1"), ("b", b"2"), ("a", b"3")),
    (("a", b"1"), ("a", None)),
    (("A", b"1"), ("aa", b"2"), ("", b"3")),
    (("key", b"of a header"), ("value", b"and"), ("timestamp", b"x")),
    tuple((name, name.encode() * 3) for name in NAMES),
)


@contextmanager
def by_message(only: bool) -> Iterator[None]:
    """Everything is read by message, where that is wanted: as without the loops in C."""
    with pytest.MonkeyPatch.context() as patch:
        if only:
            patch.setattr(reader, "by_column", lambda _: False)
        yield


def record(n: int, partition: int, *, large: bool = True) -> Message:
    """One of them; the numbers of their kinds have no factor in common, so that they meet in all combinations."""
    value = bytes([n % 251]) * LARGE if large and n % 53 == 29 else _VALUES[n % 13 % len(_VALUES)]
    value = b"%05d" % n + value if value else value
    labels = [("label", text) for text in _LABELS[n // 2 % len(_LABELS)]]
    others = _OTHERS[n % 11 % len(_OTHERS)]
    headers: Any = (*others[:1], *labels, *others[1:])
    return Message(value, _KEYS[n % 7 % len(_KEYS)], headers, partition)


def shown(block: Block) -> dict[str, Any]:
    """All that there is to see in a block: bytes, values with their types, ids, faults and absent rows."""
    return {
        "ids": block.ids.tolist(),
        "faults": block.faults,
        "absent": block.absent_rows(),
        "values": {name: _column(each) for name, each in block.values.items()},
    }


def _column(found: Any) -> tuple[str, list[Any]]:
    return type(found).__name__, [_seen(each) for each in found]


def _seen(found: Any) -> Any:
    """A cell; bytes may be views as well, which columns and users read alike."""
    return bytes(found) if isinstance(found, memoryview) else found.item() if isinstance(found, np.generic) else found
