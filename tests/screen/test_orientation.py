"""Orientations that the screen finds, against Pillow's `getexif()`, and EXIF blocks of every bad kind."""

from __future__ import annotations

import functools
import io
import struct
import warnings
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kit.properties import examples
from PIL import ExifTags, Image

from dali_feed.screen.header import orientation_in
from dali_feed.screen.screen import header_of, orientations, screen

FORMATS = ["JPEG", "PNG", "WEBP"]


def tagged(orientation: int, name: str = "JPEG", size: tuple[int, int] = (40, 24), **options: Any) -> bytes:
    """An image that says how it is to be turned, among other things."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0112], exif[0x0131] = "the maker", orientation, "the software"
    file = io.BytesIO()
    Image.new("RGB", size, (90, 20, orientation)).save(file, name, exif=exif.tobytes(), **options)
    return file.getvalue()


def pillows(payload: bytes) -> int | None:
    """What Pillow says; None where it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(payload))
            image.load()
            value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001  its parsers raise anything
        return None
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def quick(*payloads: bytes) -> list[int]:
    """Orientations as a loader finds them."""
    views = [memoryview(payload) for payload in payloads]
    return list(map(int, orientations(views, screen(views).sizes)))


def with_segments(payload: bytes, *segments: bytes) -> bytes:
    """A JPEG with application segments in front of the others."""
    return payload[:2] + b"".join(segments) + payload[2:]


def app1(data: bytes) -> bytes:
    """A segment with EXIF's marker."""
    return b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data


@functools.cache
def plain() -> bytes:
    """A JPEG without EXIF."""
    file = io.BytesIO()
    Image.new("RGB", (40, 24)).save(file, "JPEG")
    return file.getvalue()


def test_where_exif_stands_in_a_jpeg() -> None:
    """Behind long metadata, in several segments, behind the frame; and neighbours do not lend each other theirs."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "m" * 3000
    block = exif.tobytes()
    icc = b"\xff\xe2" + struct.pack(">H", 60002) + bytes(60000)
    frame = plain().index(b"\xff\xc0")
    behind = frame + 2 + 17
    files = [
        with_segments(plain(), icc, app1(block)),
        with_segments(plain(), app1(b"Exif\0\0" + block[6:1000]), app1(b"Exif\0\0" + block[1000:])),
        plain()[:behind] + app1(block) + plain()[behind:],
        with_segments(plain(), app1(b"http://ns.adobe.com/xap/1.0/\0")),
        plain(),
        tagged(3),
        plain(),
        tagged(3),
        tagged(5),
    ]
    assert quick(*files) == list(map(pillows, files)) == [6, 6, 6, 1, 1, 3, 1, 3, 5]


def directory(order: str, *entries: tuple[int, int, int, bytes], behind: bytes = bytes(4)) -> bytes:
    """An EXIF block of these tags: number, type, count, four bytes."""
    rows = b"".join(struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    return b"Exif\0\0" + head + struct.pack(order + "H", len(entries)) + rows + behind


@examples(times=1.2)
@given(data=st.data())
def test_damaged_exif_is_read_as_pillow_reads_it(data: st.DataObject) -> None:
    """Any change of an EXIF block gives Pillow's orientation, or none where Pillow raises or has no integer."""
    order = data.draw(st.sampled_from("<>"))
    tags = st.sampled_from([0x0112, 0x0112, 0x010F, 0x8769])
    entry = st.tuples(
        tags, st.integers(0, 17), st.sampled_from([0, 1, 2, 5, 40, 1 << 31]), st.binary(min_size=4, max_size=4)
    )
    good = (0x0112, 3, 1, struct.pack(order + "HH", data.draw(st.integers(0, 9)), 0))
    entries = [*data.draw(st.lists(entry, max_size=3)), good]
    block = bytearray(directory(order, *entries, behind=data.draw(st.binary(max_size=60))))
    for at, value in data.draw(st.lists(st.tuples(st.integers(6, len(block) - 1), st.integers(0, 255)), max_size=3)):
        block[at] = value
    del block[data.draw(st.integers(6, len(block))) :]
    if not data.draw(st.booleans()):
        block[:6] = b"Exif\0\0"
    file = with_segments(plain(), app1(bytes(block)))
    found = quick(file)[0]
    assert found == header_of(file).orientation == orientation_in(bytes(block))
    theirs = pillows(file)
    assert found == (1 if theirs is None else theirs)
