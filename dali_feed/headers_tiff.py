"""TIFF headers, read as strictly as the decoder's parser reads them (the law of `headers.py`).

That parser follows the chain of image directories to its end and needs four fields of the first; the
tags it takes must have the types it expects. Image data that lies outside the payload is refused too.
"""

from __future__ import annotations

import struct

from dali_feed.headers import Header, UnusableError

__all__ = ["tiff_header"]

MAX_DIRECTORIES = 1024
MAX_PLANES = 32

_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _ORIENTATION, _SAMPLES = 256, 257, 258, 262, 274, 277
_STRIP_OFFSETS, _ROWS, _STRIP_BYTES = 273, 278, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325
_SUBIFD, _FORMAT = 330, 339
_PALETTE = 3
_SINGLE = {_WIDTH, _HEIGHT, _PHOTOMETRIC, _ORIENTATION, _SAMPLES, _ROWS, _TILE_WIDTH, _TILE_HEIGHT}
_SHORTS = {_BITS, _FORMAT}
_LISTS = {_STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES, _SUBIFD}
_TYPES = {3: "H", 4: "I", 13: "I"}  # SHORT, LONG, IFD


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
            or (tag in _SINGLE and (count != 1 or kind == 13))
            or (tag in _SHORTS and (kind != 3 or not 1 <= count <= MAX_PLANES))
            or (tag == _SUBIFD and kind == 3)
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
    palette = tags.get(_PHOTOMETRIC) == (_PALETTE,)
    if _SAMPLES not in tags and tags.get(_PHOTOMETRIC) in ((0,), (1,)):
        tags[_SAMPLES] = (1,)
    needed = {_WIDTH: "ImageWidth", _HEIGHT: "ImageLength", _BITS: "BitsPerSample", _SAMPLES: "SamplesPerPixel"}
    missing = [name for tag, name in needed.items() if tag not in tags and not (tag == _SAMPLES and palette)]
    if missing:
        msg = f"TIFF without {' and '.join(missing)}, which the decoders need"
        raise UnusableError(msg)
    samples = 3 if palette else tags[_SAMPLES][0]
    if not 1 <= samples <= MAX_PLANES:
        msg = f"TIFF with {samples} samples per pixel"
        raise UnusableError(msg)
    # absent entries count as 0 bits and format 0 (unsigned), as they do in the decoder's parser
    bits = (16,) * 3 if palette else (tags[_BITS] + (0,) * MAX_PLANES)[:samples]
    formats = (tags.get(_FORMAT, ()) + (0,) * MAX_PLANES)[:samples]
    for depth, kind in zip(bits, formats, strict=True):
        if depth > 64 or kind > 4 or (kind == 3 and depth not in (16, 32, 64)):
            msg = f"TIFF with {depth} bits per sample of format {kind} is not supported"
            raise UnusableError(msg)
    tiled = _TILE_WIDTH in tags
    if tiled != (_TILE_HEIGHT in tags) or (tiled and _ROWS in tags):
        msg = "TIFF damaged: half of a tile size, or tiles and strips at once"
        raise UnusableError(msg)
    if (0,) in (tags.get(tag) for tag in (_ROWS, _TILE_WIDTH, _TILE_HEIGHT)):  # the parser divides by them
        msg = "TIFF damaged: strips or tiles of no size"
        raise UnusableError(msg)
    starts = tags.get(_TILE_OFFSETS if tiled else _STRIP_OFFSETS, ())
    sizes = tags.get(_TILE_BYTES if tiled else _STRIP_BYTES, ())
    if not starts or len(starts) != len(sizes):
        msg = f"TIFF damaged: {len(starts)} offsets and {len(sizes)} sizes of its image data"
        raise UnusableError(msg)
    end = max(start + size for start, size in zip(starts, sizes, strict=True))
    if end > size:
        msg = f"TIFF cut off: image data up to byte {end} of {size}"
        raise UnusableError(msg)
    orientation = tags.get(_ORIENTATION, (1,))[0]
    orientation = orientation if 1 <= orientation <= 8 else 1
    return Header("tiff", tags[_WIDTH][0], tags[_HEIGHT][0], samples, orientation)
