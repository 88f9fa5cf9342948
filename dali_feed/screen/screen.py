"""The screen: an image's header is checked before any decoder may see the image.

The law: no image reaches a decoder unchecked. DALI crashes on a header that it cannot parse, so a JPEG or PNG is
walked as far as the decoder's own parser walks it (`header.py`), and nvImageCodec and DALI get no other format: those
are Pillow's (`pillow.py`). What does not pass gets a reason instead of a size. For any bytes at all these
functions return or give a reason.

Most payloads are JPEGs whose headers differ in little but the size. `screen` steps over their segments with
one look-up each (marker and length make four bytes) and sends everything else to `header_of`, whose word
is final: the quick way accepts a subset of what `header_of` accepts, with the same sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dali_feed.screen.header import SIDEWAYS, Header, UnusableError
from dali_feed.screen.jpeg import FRAMES, LEAST, SCAN_BYTES, SKIPPED, jpeg_header, overworked
from dali_feed.screen.pillow import kind_of, pillow_header
from dali_feed.screen.png import png_header

MAX_PIXELS = 1 << 27  # a bound on width * height: a few bytes can announce an image that fills all memory

PASSES = 16  # over an image of the most pixels that work allows, where it has no bound of its own
MAX_WORK = PASSES * MAX_PIXELS

_REFUSED = (
    (b"II+\0", "BigTIFF"),
    (b"MM\0+", "BigTIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"%PDF", "PDF"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\3\4", "zip"),
)
_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC", b"avif": "AVIF", b"avis": "AVIF"}
_CURE = "; decode it by a function of your own, Bytes(decode=f), or save it as another format"
_TEXT = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\r\n\f")

_HEAD = 1024  # bytes copied at a time; most headers fit
_ROOM = 512  # bytes that a frame and what follows it up to the scan take in most files
_HEADS = 32  # so many are looked at: fewer segments than MAX_SEGMENTS
_NO_SIZE = b"\0\0\0\0"
_USUAL_FRAMES = (b"\xff\xc0\x00\x11\x08", b"\xff\xc2\x00\x11\x08")  # baseline, progressive: 3 components of 8 bits
_SCAN = b"\xff\xda\x00\x0c\x03"  # a scan of 3 components
_SCAN_ENDS = (b"\x3f\x00", b"\x00\x00", b"\x00\x01")  # the usual ones, which no end marker can overlap
# Components 1, 2, 3 with their tables, luma sampled 2x2, 1x1, 2x1 or 1x2 times as finely as the others.
_COMPONENTS = tuple(bytes((3, 1, luma, 0, 2, 0x11, 1, 3, 0x11, 1)) for luma in (0x22, 0x11, 0x21, 0x12))


class _Steps(dict[bytes, int]):
    """How far a header segment's first four bytes send the walk; 0 where it must stop and look.

    A memo of pure arithmetic, bounded, so threads may share it.
    """

    def __missing__(self, key: bytes) -> int:
        step = 0
        if len(key) == 4 and key[0] == 0xFF and key[1] in SKIPPED:
            length = key[2] << 8 | key[3]
            if length >= (8 if key[1] == 0xE1 else 2):  # a short Exif segment needs a closer look
                step = 2 + length
        if len(self) < 4096:
            self[key] = step
        return step


_STEPS = _Steps()


@dataclass(frozen=True, slots=True)
class Screened:
    """The results of a batch's payloads.

    sizes    int32 (n, 2): height and width as decoded; 0 where a payload is unusable or absent. Or, where images are
             turned, (n, 3): height and width once turned, and the orientation 1..8
    reasons  row -> why its payload is unusable
    plain    row -> what a decoder must be given instead of its payload (`Header.plain`)
    """

    sizes: NDArray[np.int32]
    reasons: dict[int, str]
    plain: dict[int, memoryview] = field(default_factory=dict)


def header_of(payload: memoryview | bytes) -> Header:
    """Format, size, components and orientation of one payload.

    Raises:
        UnusableError: no decoder may see it; the text says why.
    """
    view = memoryview(payload)
    start = bytes(view[:64])
    jpeg = start[:2] == b"\xff\xd8"
    if not jpeg and start[:8] != b"\x89PNG\r\n\x1a\n":
        kind = kind_of(start)
        if kind is None:
            raise UnusableError(_refusal(start))
        return pillow_header(view, kind)
    try:
        return jpeg_header(view) if jpeg else png_header(view)
    except (struct.error, IndexError) as error:
        msg = f"{'JPEG' if jpeg else 'PNG'} cut off: its header does not fit in {len(view)} bytes"
        raise UnusableError(msg) from error


def _refusal(start: bytes) -> str:
    """Why a payload with this beginning is not accepted."""
    if not start:
        return "empty payload"
    for magic, name in _REFUSED:
        if start.startswith(magic):
            return f"{name} is not supported{_CURE}"
    if start[4:8] == b"ftyp":
        return f"{_BRANDS.get(start[8:12], 'ISO media')} is not supported{_CURE}"
    text = start.removeprefix(b"\xef\xbb\xbf")
    if text and _TEXT.issuperset(text):
        shown = text[:8].decode("ascii").encode("unicode_escape").decode("ascii")  # a reason is one line
        return f'text, not an image (starts with "{shown}")'
    return f"unknown format (starts with {start[:4].hex(' ')})"


def _further(view: memoryview, at: int) -> tuple[bytes, int]:
    """Walk on over metadata that is longer than a head: the last head, and where in it the walk stopped."""
    base, head = 0, b""
    for _ in range(_HEADS):
        base += at
        head = view[base : base + _HEAD].tobytes()
        at = 0
        while step := _STEPS[head[at : at + 4]]:
            at += step
        if at <= _HEAD - _ROOM:
            break
    return head, at


def _tail(head: bytes, start: int) -> bytes:
    """What follows a frame's size at `start`: its components, tables and first scan header; b"" where unusual."""
    if not head.startswith(_COMPONENTS, start):
        return b""
    at = start + len(_COMPONENTS[0])
    while step := _STEPS[head[at : at + 4]]:
        at += step
    usual = head.startswith(_SCAN, at) and head[at + 12 : at + 14] in _SCAN_ENDS
    return head[start : at + 14] if usual else b""


def screen(
    payloads: Sequence[memoryview | None], max_pixels: int = MAX_PIXELS, max_work: int | None = None
) -> Screened:
    """Sizes of a batch's payloads, or why one is unusable. Absent rows (None) have size 0 and no reason.

    A payload is unusable if its header says more than `max_pixels` pixels, or if pixels times passes over them are more
    than `max_work`; None: sixteen passes over `max_pixels`. Orientations are read by `turned`, where they are wanted.
    """
    max_work = PASSES * max_pixels if max_work is None else max_work
    stored: list[bytes] = []  # height and width of each row, as a JPEG stores them
    put = stored.append
    first, limit, steps, frames = slice(_HEAD), _HEAD - _ROOM, _STEPS, _USUAL_FRAMES
    # What stood before and behind the last size. Equal bytes are walked to equal ends, so a header that
    # differs in its size alone needs no walk. The first are longer than a head, which none equals.
    start = tail = bytes(_HEAD + 1)
    after = 0
    for view in payloads:
        if view is None:
            put(_NO_SIZE)
            continue
        head = view[first].tobytes()
        if head[:2] == b"\xff\xd8" and view[-1] == 0xD9 and view[-2] == 0xFF:
            if head.startswith(start) and head.startswith(tail, after):
                put(head[after - 4 : after])
                continue
            at = 2
            while step := steps[head[at : at + 4]]:
                at += step
            whole = at <= limit
            if not whole:
                head, at = _further(view, at)
            known = head.startswith(tail, at + 9)
            if head.startswith(frames, at) and (known or (new := _tail(head, at + 9))):
                put(head[at + 5 : at + 9])
                tail = tail if known else new
                if whole:
                    start, after = head[: at + 5], at + 9
                continue
        put(_NO_SIZE)
    sizes = np.frombuffer(b"".join(stored), ">u2").reshape(-1, 2).astype(np.int32)
    result = Screened(sizes, {})
    _settle(result, payloads, max_pixels, max_work)
    largest = max(map(len, filter(None, payloads)), default=0)
    if max(int(sizes.max(initial=0)) ** 2, LEAST) * (largest // SCAN_BYTES) > max_work:
        _weigh(result, payloads, max_work)
    return result


def _weigh(result: Screened, payloads: Sequence[memoryview | None], max_work: int) -> None:
    """Take away what has too many scans for its size, and say so."""
    for row, (payload, (height, width)) in enumerate(zip(payloads, result.sizes.tolist(), strict=True)):
        view = result.plain.get(row, payload)  # what the decoder is given
        if view is not None and height and (reason := overworked(view, width, height, max_work)):
            result.reasons[row] = reason
            result.sizes[row] = 0


def _settle(result: Screened, payloads: Sequence[memoryview | None], max_pixels: int, max_work: int) -> None:
    """Fill in the sizes that the quick way left at 0, take away those above the bound, and say why."""
    sizes, reasons, works = result.sizes, result.reasons, dict[int, Header]()
    for row in [] if sizes.all() else np.flatnonzero((sizes == 0).any(axis=1)).tolist():
        view = payloads[row]
        if view is None:
            continue
        try:
            header = header_of(view)
        except UnusableError as error:
            reasons[row] = str(error)
            sizes[row] = 0
        else:
            sizes[row] = header.height, header.width
            if header.plain is not None:
                result.plain[row] = memoryview(header.plain)
            if header.work > max_work:
                works[row] = header
    if int(sizes.max(initial=0)) ** 2 > max_pixels:
        pixels = sizes[:, 0].astype(np.int64) * sizes[:, 1]
        for row in np.flatnonzero(pixels > max_pixels).tolist():
            height, width = sizes[row].tolist()
            shown = f"{width}x{height} is {width * height} pixels"
            reasons[row] = f"{shown}, more than the limit of {max_pixels}; see Decode(max_pixels=...)"
            sizes[row] = 0
    for row, header in works.items():
        shown = f"{header.format.upper()} of {header.width}x{header.height} is more work than the limit of {max_work}"
        reasons.setdefault(row, f"{shown} (pixels times passes over them); see Decode(max_work=...)")
        sizes[row] = 0


def turned(result: Screened, payloads: Sequence[memoryview | None]) -> Screened:
    """The screened with sizes of the images as they are once turned, and a third column: their orientations."""
    ways = orientations(payloads, result.sizes)
    sizes = np.column_stack([result.sizes, ways])
    sideways = np.isin(ways, SIDEWAYS)
    sizes[sideways, :2] = sizes[sideways, 1::-1]
    return Screened(sizes, result.reasons, result.plain)


def orientations(payloads: Sequence[memoryview | None], sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    """1..8 for each payload that `screen` has found good, by its size; 1 for the others."""
    out = np.ones(len(payloads), np.int32)
    for row, (payload, good) in enumerate(zip(payloads, sizes[:, 0].tolist(), strict=True)):
        if payload is not None and good and not _upright(payload[:_HEAD].tobytes()):
            out[row] = header_of(payload).orientation
    return out


def _upright(head: bytes) -> bool:
    """Whether it is the beginning of a JPEG that has reached the scan without a segment in which EXIF could stand."""
    at = 2
    while head[at + 1 : at + 2] != b"\xe1":
        segment = head[at : at + 4]
        step = _STEPS[segment]
        if not step:
            if len(segment) < 4 or segment[0] != 0xFF or segment[1] not in FRAMES:
                return segment[:2] == b"\xff\xda" and head[:2] == b"\xff\xd8"
            step = 2 + (segment[2] << 8 | segment[3])
        at += step
    return False
