"""The law of all formats: any bytes whatever give the members or the one error, and nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.properties import examples
from kit.written import EXAMPLE, avro, example, example_bytes, message_class, npy

from dali_feed.errors import FormatError
from dali_feed.formats import Avro, Example, Format, Json, MsgPack, Npy, Protobuf, bound

PATHS = ["header.source", "body.features", "body.label", "body.image"]
TREE = {"type": "record", "name": "T", "fields": [
    {"name": "down", "type": ["null", "T", {"type": "array", "items": "T"}, {"type": "map", "values": "T"}]},
    {"name": "row", "type": {"type": "array", "items": ["long", "string", "bytes", "boolean"]}},
]}  # fmt: skip
RECORD = example(3)
MESSAGE = message_class()(source="a", body={"features": [1, 2], "label": 3, "image": b"xy"}, scores={"a": 1})
TEXT = json.dumps(RECORD | {"body": RECORD["body"] | {"image": "/9j/"}}).encode()
CASES: dict[str, tuple[Format, list[str], bytes]] = {
    "json": (Json(base64=("body.image",)), PATHS, TEXT),
    "json whole": (Json(), ["$"], TEXT),
    "avro": (Avro(EXAMPLE), PATHS, avro(EXAMPLE, RECORD)),
    "avro whole": (Avro(EXAMPLE), ["$"], avro(EXAMPLE, RECORD)),
    "avro nested": (Avro(TREE), ["$"], avro(TREE, {"down": {"down": None, "row": [1, "a"]}, "row": [b"x", True]})),
    "avro framed": (Avro(schemas={1: EXAMPLE}.get), PATHS, b"\0\0\0\0\x01" + avro(EXAMPLE, RECORD)),
    "msgpack": (MsgPack(), PATHS, msgpack.packb(RECORD)),
    "msgpack whole": (MsgPack(), ["$"], msgpack.packb(RECORD)),
    "protobuf": (Protobuf(message_class()), ["source", "body.features", "body.image"], MESSAGE.SerializeToString()),
    "example": (Example(), ["a", "b", "c[]"], example_bytes({"a": [b"x", b"yz"], "b": [1.5, -2.0], "c": [3, -4]})),
    "npy": (Npy(), ["array"], npy(np.arange(6.0).reshape(2, 3))),
}
READS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    name: bound(form, paths) for name, (form, paths, _) in CASES.items()
}
each = pytest.mark.parametrize("case", CASES)


def keeps_the_law(case: str, value: bytes) -> None:
    """Members or the one error, from bytes and from a view, and the same of both."""
    found: list[str] = []
    for given_ in (value, memoryview(bytearray(value))):
        try:
            got = READS[case](given_)
            assert len(got) == len(CASES[case][1])
            found.append(repr([plain(one) for one in got]))
        except FormatError as error:
            assert "\n" not in str(error)
            found.append(str(error))
    assert found[0] == found[1], case


def plain(value: Any) -> Any:
    """Bytes in the place of views, which show where they lie."""
    if isinstance(value, memoryview | np.ndarray):
        return value.tobytes()
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


@each
def test_the_value_itself_has_its_members(case: str) -> None:
    """Lest the rest of this file be about errors alone."""
    assert len(READS[case](CASES[case][2])) == len(CASES[case][1])


@given(value=st.binary(max_size=200))
def test_any_bytes(value: bytes) -> None:
    """Whatever they are: each example is one of every format's."""
    for case in CASES:
        keeps_the_law(case, value)
        keeps_the_law(case, CASES[case][2][: len(value) % 12] + value)


ODD = st.one_of(st.binary(max_size=3), st.sampled_from([b"\xff" * 9 + b"\x01", b"\xdd\xff\xff\xff\xff", b"\x7f"]))
EDITS = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 3), ODD), min_size=1, max_size=3)


@given(edits=EDITS)
@examples(times=3)
def test_a_value_with_a_few_bytes_changed(edits: list[tuple[int, int, bytes]]) -> None:
    """Changed, cut out or put in, anywhere, lengths and counts among them: each example is one of every format's."""
    for case in CASES:
        value = bytearray(CASES[case][2])
        for place, gone, odd in edits:
            at = place % (len(value) + 1)
            value[at : at + gone] = odd
        keeps_the_law(case, bytes(value))


@each
def test_cut_anywhere(case: str) -> None:
    """Each shorter length."""
    for size in range(len(CASES[case][2])):
        keeps_the_law(case, CASES[case][2][:size])


class Trap:
    """What a pickle would run."""

    def __reduce__(self) -> Any:
        return (pytest.exit, ("a record was run",))


@each
def test_a_pickle_is_never_opened(case: str) -> None:
    """It is bytes like any others."""
    with pytest.raises(FormatError):
        READS[case](pickle.dumps(Trap()))


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"avro framed", "protobuf"}))  # those have a function or a class
def test_a_format_is_sent_to_other_processes(case: str) -> None:
    """It is its arguments, so it can be pickled by whoever has it, and reads the same there."""
    form, paths, value = CASES[case]
    again = bound(pickle.loads(pickle.dumps(form)), paths)
    assert repr([plain(one) for one in again(value)]) == repr([plain(one) for one in READS[case](value)])
