"""TIFF headers: all image directories, and of them the first, which Pillow decodes (the law of `header.py`).

nvImageCodec is not given them: it ends the process on some that are turned, and reads foreign memory for others. What
is accepted has the size that Pillow finds, turned as the orientation says. Image data that lies outside the payload,
tiles far larger than the image, and samples that Pillow has no mode for are refused here already.
"""

from __future__ import annotations

import struct

from dali_feed.screen.header import Header, UnusableError

__all__ = ["tiff_header"]

MAX_DIRECTORIES = 1024
MAX_PLANES = 32
MAX_SAMPLES = 6  # of a pixel
TILE = 1 << 22  # pixels of a tile that need no larger image: a decoder makes room for whole ones

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _ORIENTATION, _SAMPLES = 256, 257, 258, 259, 262, 274, 277
_STRIP_OFFSETS, _ROWS, _STRIP_BYTES = 273, 278, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_FORMAT = 339
_RGB, _PALETTE, _YCBCR = 2, 3, 6  # photometric interpretations
_RAW, _JPEGS = 1, (6, 7)  # compressions
_SINGLE = {_WIDTH, _HEIGHT, _COMPRESSION, _PHOTOMETRIC, _ORIENTATION, _SAMPLES, _ROWS, _TILE_WIDTH, _TILE_HEIGHT}
_SHORTS = {_BITS, _FORMAT}
_LISTS = {_STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES}
_TYPES = {3: "H", 4: "I"}  # SHORT, LONG
_DEPTHS = {1: (1, 2, 4, 8, 12, 16, 32), 2: (8, 16, 32), 3: (32,)}  # bits by format: unsigned, signed, float
_KINDS = {1: "unsigned", 2: "signed", 3: "float"}
_TURNED = (5, 6, 7, 8)  # orientations that exchange width and height


def tiff_header(view: memoryview) -> Header:
    """The first image of a TIFF of either byte order."""
    order = "<" if view[0] == 0x49 else ">"
    first, at = 0, struct.unpack_from(order + "I", view, 4)[0]
    seen: set[int] = set()
    while at:
        first = first or at
        if at in seen or len(seen) == MAX_DIRECTORIES:
            msg = f"TIFF whose directories form a loop or are more than {MAX_DIRECTORIES}"
            raise UnusableError(msg)
        seen.add(at)
        (count,) = struct.unpack_from(order + "H", view, at)
        (at,) = struct.unpack_from(order + "I", view, at + 2 + 12 * count)
    if not first:
        msg = "TIFF without an image directory"
        raise UnusableError(msg)
    return _image(len(view), _tags(view, order, first))


def _tags(view: memoryview, order: str, at: int) -> dict[int, tuple[int, ...]]:
    """The values of the tags that matter in the directory at `at`."""
    tags: dict[int, tuple[int, ...]] = {}
    (entries,) = struct.unpack_from(order + "H", view, at)
    for entry in range(at + 2, at + 2 + 12 * entries, 12):
        tag, kind, count = struct.unpack_from(order + "HHI", view, entry)
        if tag not in _SINGLE and tag not in _SHORTS and tag not in _LISTS:
            continue
        code = _TYPES.get(kind)
        if (
            tag in tags
            or code is None
            or (tag in _SINGLE and count != 1)
            or (tag in _SHORTS and (kind != 3 or not 1 <= count <= MAX_PLANES))
        ):
            msg = f"TIFF damaged: tag {tag} of type {kind} with {count} values"
            raise UnusableError(msg)
        width = 2 if code == "H" else 4
        where = entry + 8
        if count * width > 4:
            (where,) = struct.unpack_from(order + "I", view, where)
        if where + count * width > len(view):  # before unpacking: the count is the payload's word
            msg = f"TIFF cut off: the values of tag {tag} end at {where + count * width} of {len(view)} bytes"
            raise UnusableError(msg)
        tags[tag] = struct.unpack_from(f"{order}{count}{code}", view, where)
    return tags


def _image(size: int, tags: dict[int, tuple[int, ...]]) -> Header:
    """What the tags of one directory say, checked against each other and the payload."""
    missing = [name for tag, name in ((_WIDTH, "ImageWidth"), (_HEIGHT, "ImageLength")) if tag not in tags]
    if missing:
        msg = f"TIFF without {' and '.join(missing)}"
        raise UnusableError(msg)
    width, height = tags[_WIDTH][0], tags[_HEIGHT][0]
    samples = _samples(tags)
    _check_data(size, tags, width * height)
    if tags.get(_ORIENTATION, (1,))[0] in _TURNED:
        width, height = height, width
    return Header("tiff", width, height, 3 if tags.get(_PHOTOMETRIC) == (_PALETTE,) else samples)


def _samples(tags: dict[int, tuple[int, ...]]) -> int:
    """Samples of a pixel, such as Pillow reads. What is not said is one sample of one bit, as it is for Pillow."""
    compression, photometric = tags.get(_COMPRESSION, (_RAW,))[0], tags.get(_PHOTOMETRIC, (0,))[0]
    (samples,) = tags.get(_SAMPLES, (3 if compression in _JPEGS and photometric in (_RGB, _YCBCR) else 1,))
    if not 1 <= samples <= MAX_SAMPLES:
        msg = f"TIFF with {samples} samples per pixel"
        raise UnusableError(msg)
    bits, formats = set(tags.get(_BITS, (1,))[:samples]), set(tags.get(_FORMAT, (1,))[:samples])
    depth, kind = bits.pop(), formats.pop()
    if bits or formats:
        msg = f"TIFF whose samples are not alike: bits {tags.get(_BITS)}, formats {tags.get(_FORMAT)}"
        raise UnusableError(msg)
    if depth not in _DEPTHS.get(kind, ()) or (samples > 1 and (depth == 32 or kind > 1)):
        what = f"{samples} {_KINDS.get(kind, f'format {kind}')} sample{'s' if samples > 1 else ''} of {depth} bits"
        msg = f"TIFF with {what} per pixel is not supported"
        raise UnusableError(msg)
    return samples


def _check_data(size: int, tags: dict[int, tuple[int, ...]], pixels: int) -> None:
    """Strips or tiles must lie in the payload."""
    tiled = _TILE_WIDTH in tags
    if tiled != (_TILE_HEIGHT in tags) or (tiled and _ROWS in tags):
        msg = "TIFF damaged: half of a tile size, or tiles and strips at once"
        raise UnusableError(msg)
    if (0,) in (tags.get(tag) for tag in (_ROWS, _TILE_WIDTH, _TILE_HEIGHT)):
        msg = "TIFF damaged: strips or tiles of no size"
        raise UnusableError(msg)
    tile = tags[_TILE_WIDTH][0] * tags[_TILE_HEIGHT][0] if tiled else 0
    if tile > max(TILE, 4 * pixels):
        msg = f"TIFF with tiles of {tags[_TILE_WIDTH][0]}x{tags[_TILE_HEIGHT][0]} pixels in an image of {pixels}"
        raise UnusableError(msg)
    starts = tags.get(_TILE_OFFSETS if tiled else _STRIP_OFFSETS, ())
    sizes = tags.get(_TILE_BYTES if tiled else _STRIP_BYTES, ())
    if not sizes and tags.get(_COMPRESSION, (_RAW,)) == (_RAW,):
        sizes = (1,) * len(starts)  # old files leave them out; a decoder finds out whether the pixels are there
    if not starts or len(starts) != len(sizes):
        msg = f"TIFF damaged: {len(starts)} offsets and {len(sizes)} sizes of its image data"
        raise UnusableError(msg)
    end = max(start + length for start, length in zip(starts, sizes, strict=True))
    if end > size:
        msg = f"TIFF cut off: image data up to byte {end} of {size}"
        raise UnusableError(msg)
