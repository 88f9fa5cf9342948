"""The stage that makes columns of a block: rows stay, a column sees no missing value, images are screened."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.images import encoded

from dali_feed.columns import Array, Boxes, Bytes, Column, Image, JsonValue, Mask, Number, Packed, Text, Tokens
from dali_feed.columns.columns import Columns
from dali_feed.columns.image import Images
from dali_feed.errors import ConfigError
from dali_feed.external_sources import Concat, Table
from dali_feed.options import Decode
from dali_feed.records.pieces import Filling
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Fault, Lease, Reader

MEMBERS = ("jpg", "seg", "cls", "txt", "vec", "json")
PICTURE = encoded(np.zeros((6, 8, 3), np.uint8))
LARGE = encoded(np.zeros((60, 80, 3), np.uint8))


class Records(Table):
    """Records of these members, as a source with a preset."""

    def __init__(self, preset: Mapping[str, Column] = {}) -> None:
        super().__init__(pa.table({name: pa.array([b""], pa.binary()) for name in MEMBERS}), image=None)
        self._preset = preset

    def lacks(self, member: str) -> str:
        """What any source says."""
        return ""

    @property
    def preset(self) -> Mapping[str, Column]:
        """As it was given."""
        return self._preset


def block(values: dict[str, Any], **more: Any) -> Block:
    """Rows of these members; bytes lie side by side, as those of a file do."""
    lease = SlabPool().lease()
    count = len(next(iter(values.values())))
    return Block(np.arange(count), {name: pieces(each, lease) for name, each in values.items()}, lease, **more)


def pieces(values: Any, lease: Lease) -> Any:
    """Bytes in the lease; other values as they are."""
    if not all(value is None or isinstance(value, bytes) for value in values):
        return values
    filling = Filling(len(values), lease)
    for row, value in enumerate(values):
        if value is not None:
            filling.copy(row, value)
    return filling.pieces()


def made(columns: Any, values: dict[str, Any], decode: Decode = Decode(), **more: Any) -> Block:
    """What the stage makes of a block."""
    return Columns(Records(), columns, decode=decode)(block(values, **more))


def letters(text: str) -> list[int]:
    """A token for each letter."""
    return [ord(c) for c in text]


WHOLE: list[tuple[Column, Any, Any, Any]] = [  # a column, a member's value, the default, and a row of the batch with it
    (Number("cls", default=-1), b"7", 7, -1),
    (Number("cls", "float32", default=0.5), b"7", 7, 0.5),
    (Text("txt", default="none"), b"seven", "seven", "none"),
    (Text("txt", default=None), b"seven", "seven", None),
    (JsonValue("json", default={"a": 1}), b"[7]", [7], {"a": 1}),
    (Bytes("txt", default=b"none"), b"seven", b"seven", b"none"),
    (Bytes("txt", decode=bytes, default=b"none"), b"seven", b"seven", b"none"),
    (Array("vec", "uint8", (3,), default=9), b"\1\2\3", [1, 2, 3], [9, 9, 9]),
    (Array("vec", "float32", (2,), default=[1.0, 2.0]), np.array([3, 4], np.float32).tobytes(), [3, 4], [1, 2]),
    (Array("vec", default=9), np.array([1, 2], np.uint8), [1, 2], [9, 9]),
    (Boxes("json", default=[]), b"[[1, 2, 3, 4]]", [[1, 2, 3, 4]], []),
]


@pytest.mark.parametrize("missing", [[], [0], [1, 3], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("case", WHOLE, ids=repr)
def test_a_default_stands_for_what_is_missing(case: tuple[Column, Any, Any, Any], missing: list[int]) -> None:
    """Whichever rows have none; the others are as they were. Without a default they are bad records, each alone."""
    column, value, wanted, default = case
    values = [None if row in missing else value for row in range(4)]
    if column.open and len(missing) == 4:
        return
    boxes = {"image": Image("jpg"), "boxes": column} if isinstance(column, Boxes) else {"boxes": column}
    columns = Columns(Records(), boxes)
    found = columns(block({column.member: values, "jpg": [PICTURE] * 4}))
    assert not found.faults
    batch = columns.batch({"boxes": found.values["boxes"]}, 1)["boxes"]
    plain = [each.tolist() if isinstance(each, np.ndarray | np.generic) else each for each in batch]
    assert plain == [default if row in missing else wanted for row in range(4)]


@pytest.mark.parametrize(
    "column", [Number("cls"), Text("txt"), JsonValue("json"), Bytes("txt"), Array("vec", "uint8", (3,)), Image("jpg")]
)
@pytest.mark.parametrize("given", [False, True])
def test_without_a_default_it_is_a_bad_record(column: Column, *, given: bool) -> None:
    """A fault of its row, of the source's stage; positions without a record are no faults."""
    good = {"cls": b"1", "txt": b"a", "json": b"1", "vec": b"abc", "jpg": PICTURE}[column.member]
    absent = np.array([False, False, True])
    values = [good if given else None, good, None]
    found = made({"it": column}, {column.member: values}, absent=absent)
    why = f"column 'it' of member '{column.member}': the record has no such member"
    why = "the record has no image member" if isinstance(column, Image) else why
    assert found.faults == ({} if given else {0: Fault("source", why, column.member)})
    assert found.usable().tolist() == [given, True, False]


@dataclass(frozen=True)
class Shout(Column):
    """A column of a user's own: it takes no missing value."""

    member: str

    def read(self, values: Any, faults: dict[int, str]) -> list[str]:
        """Upper case."""
        return [bytes(value).decode().upper() for value in values]


def test_a_users_column_has_a_default_too() -> None:
    """And never sees a missing value."""
    found = made({"it": Shout("txt", default=b"none")}, {"txt": [b"a", None, b"c"]})
    assert found.values["it"] == ["A", "NONE", "C"]
    assert made({"it": Shout("txt")}, {"txt": [b"a", None, b"c"]}).faults.keys() == {1}


@pytest.mark.parametrize(
    "column", [Number("cls", default="x"), Array("vec", "uint8", (3,), default=[1, 2]), Image("jpg", default=b"no")]
)
def test_a_default_that_cannot_be_is_an_error(column: Column) -> None:
    """It is said with the column's name."""
    with pytest.raises(ConfigError, match="'it': default= must be a value of that column; found"):
        made({"it": column}, {column.member: [None]})


def test_images_are_screened_with_the_bounds_of_the_loader() -> None:
    """Also masks; refused rows keep their bytes, and have no size."""
    columns = {"image": Image("jpg"), "mask": Mask("seg")}
    mask = encoded(np.zeros((6, 8), np.uint8))
    values = {"jpg": [PICTURE, b"junk", LARGE, PICTURE], "seg": [mask, mask, mask, LARGE]}
    found = made(columns, values, Decode(max_pixels=100))
    assert [(row, fault.stage, fault.member) for row, fault in sorted(found.faults.items())] == [
        (1, "screen", "jpg"),
        (2, "screen", "jpg"),
        (3, "screen", "seg"),
    ]
    assert found.faults[1].reason.startswith("text, not an image")
    assert found.faults[3].reason.startswith("column 'mask' of member 'seg': 80x60 is 4800 pixels, more than")
    images = found.values["image"]
    assert isinstance(images, Images)
    assert [bytes(each or b"") for each in images.payloads] == values["jpg"]
    assert images.sizes.tolist() == [[6, 8], [0, 0], [0, 0], [6, 8]]


def test_a_record_that_the_source_refused_keeps_its_image() -> None:
    """For its dead letter; the fault stays the source's, and no decoder sees it."""
    first = {1: Fault("source", "cut", "cls")}
    columns = {"n": Number("cls"), "image": Image("jpg")}
    found = made(columns, {"cls": [b"1", b"x", b"3"], "jpg": [PICTURE] * 3}, faults=first)
    assert found.faults == first
    assert [bytes(each) for each in found.values["image"].payloads] == [PICTURE] * 3
    assert found.values["image"].sizes.tolist() == [[6, 8], [0, 0], [6, 8]]


def test_what_else_is_wrong_is_said_before_what_is_wrong_with_the_first_image() -> None:
    """And a size that the transforms cannot take comes last."""
    columns = Columns(Records(), {"image": Image("jpg"), "n": Number("cls")})
    columns.fits = {"image": lambda sizes: dict.fromkeys(np.flatnonzero(sizes[:, 0] == 6).tolist(), "too small")}
    found = columns(block({"jpg": [b"junk", b"junk", PICTURE, LARGE], "cls": [b"x", b"1", b"2", b"3"]}))
    assert {row: (fault.stage, fault.reason) for row, fault in found.faults.items()} == {
        0: ("source", "column 'n' of member 'cls': a decimal number is needed; found 'x'"),
        1: ("screen", 'text, not an image (starts with "junk")'),
        2: ("screen", "too small"),
    }


def test_rows_of_images_are_taken_joined_and_put() -> None:
    """With what decoders get in place of some of them."""
    views = [memoryview(bytes([n])) for n in range(4)]
    images = Images(list(views), np.arange(8, dtype=np.int32).reshape(4, 2), {2: memoryview(b"plain")})
    for rows in (slice(1, 3), np.array([1, 2])):
        two = images[rows]
        assert [bytes(each) for each in two.decodable()] == [b"\1", b"plain"]
        assert two.sizes.tolist() == [[2, 3], [4, 5]]
    both = Images.joined([images, two])
    assert [bytes(each.payload) for each in both] == [b"\0", b"\1", b"plain", b"\3", b"\1", b"plain"]
    room = images.room(3)
    room[np.array([2, 0])] = two
    assert [each and bytes(each) for each in room.decodable()] == [b"plain", None, b"\1"]
    own = room.copy()
    own[0] = both[0]
    assert [each and bytes(each) for each in own.decodable()] == [b"\0", None, b"\1"]
    assert bytes(room[0].payload) == b"plain"


def test_a_preset_is_used_where_no_columns_are_given() -> None:
    """A transform goes into its first image; there is no other place for one."""
    source = Records(preset={"image": Image("jpg"), "label": Number("cls")})
    columns = Columns(source, transform="t")
    assert (columns.names, columns.images["image"].transform) == (("image", "label"), "t")
    assert columns.members == ("jpg", "cls")
    with pytest.raises(ConfigError, match="transform: is for images"):
        Columns(Records(preset={"label": Number("cls")}), transform="t")
    with pytest.raises(ConfigError, match="columns: must name at least one"):
        Columns(Records())


def test_open_columns_are_settled_once_by_the_first_records() -> None:
    """In canonical order, by the first that has the member; of a stream by its first block."""
    source = Table(pa.table({"vec": pa.array([None, [1, 2], [1, 2, 3]], pa.list_(pa.float32()))}), image=None)
    columns = Columns(source, {"it": Array("vec")})
    columns.settle_by(source)
    assert columns.settled()["it"] == Array("vec", "float32", (2,))
    stream = Columns(Records(), {"it": Array("vec")})
    with pytest.raises(ConfigError, match="none has come"):
        stream.settled()
    nothing = block({"vec": []})
    assert (stream(nothing).values, stream(nothing).lease) == ({}, nothing.lease)
    stream(block({"vec": [None, np.ones(1, np.uint8)]}))
    stream(block({"vec": [np.ones(2, np.uint8)]}))
    assert stream.settled()["it"] == Array("vec", "uint8", (1,))


def test_readers_of_every_part_are_told_to_stop() -> None:
    """By the event that the reader of all was opened with."""
    stops: list[threading.Event | None] = []

    class Watched(Table):
        """One whose readers write down what stops them."""

        def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
            stops.append(stop)
            return super().reader(members, stop)

    stop, lease = threading.Event(), SlabPool().lease()
    source = Concat([Watched(pa.table({"n": [k, k]}), image=None) for k in range(2)])
    with contextlib.closing(Columns(source, {"n": Number("n")}).reader(source, stop)) as reader:
        for partition in range(2):
            reader.read(Extents.one(partition, 0, 1), lease)
    lease.release()
    assert stops == [stop, stop]


def test_members_that_only_optional_columns_need_are_optional() -> None:
    """One that another column needs is not."""
    columns = {"a": Number("cls", default=0), "b": Text("txt", default=""), "c": Tokens("txt", letters, 3)}
    found = Columns(Records(), columns)
    assert found.optional == {"cls"}
    packed = Packed("txt", letters, 3, default="")
    assert Columns(Records(), {**columns, "c": packed}).optional == {"cls", "txt"}
