"""AVIF headers: the boxes that say what the primary item is, read as libavif reads them (the law of `header.py`).

The size is that of the primary item as stored: libavif leaves rotation, mirroring and cropping (`irot`, `imir`, `clap`)
to its caller. Pillow does none of them, but says the first two as an EXIF orientation, in place of the file's own; so
they are the orientation here. All that is decoded for it, the tiles of a grid and the alpha, must lie in
the payload, and its AV1 data must announce no larger frames than the image: a decoder makes room for a frame before
anybody compares the two. Of a sequence too the primary item is the image; its tracks are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dali_feed.screen.av1 import frame_sizes
from dali_feed.screen.header import Header, UnusableError

__all__ = ["avif_header", "is_avif"]

MAX_BOXES = 1 << 12  # in one box
MAX_ITEMS = 1 << 12
MAX_USES = 1 << 16  # of properties; these four of all items together
MAX_EXTENTS = 1 << 14
MAX_REFERENCES = 1 << 14
MAX_UNITS = 1 << 14  # of AV1 data
PADDING = 128  # a superblock: by so much encoders may round a side up

_AVIF, _SEQUENCE = b"avif", b"avis"
_CODED, _GRID = b"av01", b"grid"
# By `irot`, quarter turns to the left, and then `imir`: 0 exchanges top and bottom, 1 left and right; None: no such.
_ORIENTATIONS: dict[tuple[int | None, ...], int] = {
    **{(angle, None): way for angle, way in ((None, 1), (0, 1), (1, 8), (2, 3), (3, 6))},
    **{(angle, 0): way for angle, way in ((None, 4), (0, 4), (1, 5), (2, 2), (3, 7))},
    **{(angle, 1): way for angle, way in ((None, 2), (0, 2), (1, 7), (2, 4), (3, 5))},
}

Size = tuple[int, int]


class _Numbers:
    """Numbers of a box one after the other, big-endian. Past its end it raises IndexError."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0
        self.version, self.flags = self.take(1), self.take(3)

    def take(self, size: int) -> int:
        stop = self._at + size
        if stop > len(self._body):
            raise IndexError
        number = int.from_bytes(self._body[self._at : stop], "big")
        self._at = stop
        return number

    def rest(self) -> memoryview:
        return self._body[self._at :]


@dataclass(slots=True)
class _Items:
    """What the meta box says: item -> type, size, where its data lie; and who refers to whom."""

    primary: int = 0
    types: dict[int, bytes] = field(default_factory=dict)
    sizes: dict[int, Size] = field(default_factory=dict)
    ways: dict[tuple[int, bytes], int] = field(default_factory=dict)  # item and `irot` or `imir` -> angle or axis
    data: dict[int, list[memoryview]] = field(default_factory=dict)
    refers: list[tuple[bytes, int, int]] = field(default_factory=list)


def _boxes(body: memoryview, *, top: bool = False) -> Iterator[tuple[bytes, memoryview]]:
    """Type and contents of the boxes in a box, or in the file (`top`), where the last may go on to the end."""
    at = 0
    for _ in range(MAX_BOXES):
        if at == len(body):
            return
        head = bytes(body[at : at + 16])
        size, kind, start = int.from_bytes(head[:4], "big"), head[4:8], 8
        if size == 1:
            size, start = int.from_bytes(head[8:16], "big"), 16
        elif size == 0 and top:
            size = len(body) - at
        if kind == b"uuid":
            start += 16
        if len(head) < 8 or at + size > len(body):
            raise IndexError
        if size < start:
            msg = f"AVIF damaged: box {kind!r} of {size} bytes"
            raise UnusableError(msg)
        yield kind, body[at + start : at + size]
        at += size
    msg = f"AVIF with more than {MAX_BOXES} boxes in one"
    raise UnusableError(msg)


def _limited(what: str, count: int, limit: int) -> int:
    if count > limit:
        msg = f"AVIF with {count} {what}; at most {limit} are taken"
        raise UnusableError(msg)
    return count


def _brands(view: memoryview) -> set[bytes]:
    stop = min(int.from_bytes(view[:4], "big"), 256)
    return {bytes(view[8:12]), *(bytes(view[at : at + 4]) for at in range(16, stop, 4))}


def is_avif(view: memoryview) -> bool:
    """Whether a payload calls itself AVIF."""
    return bytes(view[4:8]) == b"ftyp" and not _brands(view).isdisjoint((_AVIF, _SEQUENCE))


def avif_header(view: memoryview) -> Header:
    """The primary item of an AVIF."""
    needed = {b"ftyp", b"meta"} | ({b"moov"} if _SEQUENCE in _brands(view) else set())
    meta = None
    for kind, body in _boxes(view, top=True):
        if kind == b"meta":
            meta = body
        needed.discard(kind)
        if not needed:  # libavif looks no further
            break
    if meta is None or needed:
        msg = f"AVIF cut off: no box {' and '.join(sorted(kind.decode() for kind in needed))}"
        raise UnusableError(msg)
    items = _items(view, meta)
    kind = items.types.get(items.primary, b"")
    if kind not in (_CODED, _GRID) or items.primary not in items.sizes:
        msg = f"AVIF whose primary item is of the type {kind.decode('latin-1')!r}, or has no size"
        raise UnusableError(msg)
    way = tuple(items.ways.get((items.primary, name)) for name in (b"irot", b"imir"))
    header = Header("avif", *items.sizes[items.primary], 3, _ORIENTATIONS[way])
    _check(items, header, len(view))
    return header


def _items(view: memoryview, meta: memoryview) -> _Items:
    parts: dict[bytes, memoryview] = {}
    for kind, body in _boxes(_Numbers(meta).rest()):
        if parts.setdefault(kind, body) is not body and kind not in (b"free", b"skip", b"uuid"):
            msg = f"AVIF damaged: two boxes {kind!r}"
            raise UnusableError(msg)
    for kind in (b"pitm", b"iinf", b"iprp", b"iloc"):
        if kind not in parts:
            msg = f"AVIF without a still image: no box {kind!r}"
            raise UnusableError(msg)
    items = _Items()
    numbers = _Numbers(parts[b"pitm"])
    items.primary = numbers.take(4 if numbers.version else 2)
    _types(parts[b"iinf"], items)
    _sizes(parts[b"iprp"], items)
    _places(parts[b"iloc"], items, view, parts.get(b"idat", view[:0]))
    if b"iref" in parts:
        _references(parts[b"iref"], items)
    return items


def _types(body: memoryview, items: _Items) -> None:
    numbers = _Numbers(body)
    numbers.take(4 if numbers.version else 2)
    for _, entry in _boxes(numbers.rest()):
        info = _Numbers(entry)
        item = info.take(2 if info.version == 2 else 4)
        info.take(2)
        items.types[item] = info.take(4).to_bytes(4, "big")


def _sizes(body: memoryview, items: _Items) -> None:
    """An item's first property `ispe`, and its first `irot` and `imir`, by the associations."""
    sizes: dict[int, Size] = {}
    ways: dict[int, tuple[bytes, int]] = {}
    uses = 0
    for kind, part in _boxes(body):
        if kind == b"ipco":
            for n, (name, one) in enumerate(_boxes(part), start=1):
                if name == b"ispe":
                    numbers = _Numbers(one)
                    sizes[n] = numbers.take(4), numbers.take(4)
                elif name in (b"irot", b"imir"):
                    ways[n] = name, one[0] & (3 if name == b"irot" else 1)
        elif kind == b"ipma":
            numbers = _Numbers(part)
            wide = numbers.flags & 1
            for _ in range(_limited("items", numbers.take(4), MAX_ITEMS)):
                item = numbers.take(4 if numbers.version else 2)
                count = numbers.take(1)
                uses = _limited("uses of properties", uses + 1 + count, MAX_USES)
                for _ in range(count):
                    n = numbers.take(2) & 0x7FFF if wide else numbers.take(1) & 0x7F
                    if n in sizes:
                        items.sizes.setdefault(item, sizes[n])
                    elif n in ways:
                        items.ways.setdefault((item, ways[n][0]), ways[n][1])


def _places(body: memoryview, items: _Items, view: memoryview, idat: memoryview) -> None:
    """Where the items' data lie. Each number has as many bytes as the box says."""
    numbers = _Numbers(body)
    version = numbers.version
    widths = numbers.take(2)
    offset, length, base, index = (widths >> shift & 15 for shift in (12, 8, 4, 0))
    index = index if version else 0
    left = MAX_EXTENTS
    for _ in range(_limited("items", numbers.take(4 if version == 2 else 2), MAX_ITEMS)):
        item = numbers.take(4 if version == 2 else 2)
        source = idat if version and numbers.take(2) & 15 == 1 else view
        numbers.take(2)
        first = numbers.take(base)
        extents = []
        count = numbers.take(2)
        left -= _limited("extents", count, left)
        for _ in range(count):
            numbers.take(index)
            start = first + numbers.take(offset)
            extents.append((start, start + numbers.take(length)))
        items.data[item] = [source[a:b] for a, b in extents if b <= len(source)]
        if len(items.data[item]) < count:
            end = max(b for _, b in extents)
            msg = f"AVIF cut off: the data of item {item} end at {end} of {len(source)} bytes"
            raise UnusableError(msg)


def _references(body: memoryview, items: _Items) -> None:
    numbers = _Numbers(body)
    width = 4 if numbers.version else 2
    for kind, part in _boxes(numbers.rest()):
        _limited("references", len(items.refers) + len(part) // width, MAX_REFERENCES)
        ids = [int.from_bytes(part[at : at + width], "big") for at in (0, *range(width + 2, len(part), width))]
        items.refers += [(kind, ids[0], to) for to in ids[1:]]


def _decoded(items: _Items) -> set[int]:
    """The primary item, its alpha, and the tiles of both."""
    found = {items.primary}
    for _ in range(2):
        found |= {to for kind, item, to in items.refers if kind == b"dimg" and item in found}
        found |= {item for kind, item, to in items.refers if kind == b"auxl" and to in found}
    return found


def _check(items: _Items, image: Header, whole: int) -> None:
    """What will be decoded is there, and announces no more pixels than the image has."""
    units, pieces = iter(range(MAX_UNITS)), 0
    for item in sorted(_decoded(items)):
        kind, parts = items.types.get(item), items.data.get(item, [])
        if kind not in (_CODED, _GRID):
            continue
        size = sum(map(len, parts))
        if not size:
            msg = f"AVIF damaged: item {item} has no data"
            raise UnusableError(msg)
        if len(parts) > 1:
            pieces = _limited("bytes in pieces", pieces + size, whole)
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        own = items.sizes.get(item, (0, 0))
        sizes = [_grid_size(data)] if kind == _GRID else list(frame_sizes(data, units))
        for width, height in (own, *sizes):
            if width > image.width + PADDING or height > image.height + PADDING:
                found = f"{width}x{height} in item {item}"
                msg = f"AVIF damaged: {found}, of an image of {image.width}x{image.height}"
                raise UnusableError(msg)
        if kind == _GRID and sizes != [own]:
            msg = f"AVIF damaged: item {item} has two sizes, {own} and {sizes[0]}"
            raise UnusableError(msg)


def _grid_size(data: memoryview) -> Size:
    """Width and height of what the tiles make up."""
    width = 4 if data[1] & 1 else 2
    if len(data) < 4 + 2 * width:
        raise IndexError
    sides = (int.from_bytes(data[at : at + width], "big") for at in (4, 4 + width))
    return next(sides), next(sides)
