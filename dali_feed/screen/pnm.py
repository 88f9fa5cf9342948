"""PBM, PGM and PPM headers, of bytes and of text, read as Pillow reads them (the law of `header.py`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dali_feed.screen.header import Header, UnusableError

__all__ = ["Pnm", "is_pnm", "pnm_header", "pnm_layout"]

MAX_HEADER = 1 << 16  # bytes; comments are part of it
USUAL_HEADER = 64  # bytes: what matches there matches the same way in more of them
MAX_LEVEL = 65535

_APART = rb"\s(?:\s|#[^\r\n]*[\r\n])*"
_BITS = re.compile(rb"P([14])" + _APART + rb"(\d{1,10})" + _APART + rb"(\d{1,10})()\s")
_LEVELS = re.compile(rb"P([2356])" + _APART + rb"(\d{1,10})" + _APART + rb"(\d{1,10})" + _APART + rb"(\d{1,10})\s")


@dataclass(frozen=True, slots=True)
class Pnm:
    """How the samples lie: as `text` or bytes, up to `most` each, from byte `start` on.

    Where they are `bits`, 1 is black.
    """

    width: int
    height: int
    components: int
    most: int
    bits: bool
    text: bool
    start: int

    @property
    def size(self) -> int:
        """Bytes that the samples take; as text, at least."""
        samples = self.width * self.height * self.components
        if self.text:
            return samples if self.bits else 2 * samples - 1
        row = (self.width + 7) // 8 if self.bits else self.width * self.components * (1 + (self.most > 255))
        return row * self.height


def is_pnm(start: bytes) -> bool:
    """Whether a payload that starts so is one."""
    return start[:1] == b"P" and start[1:2] in b"123456" and start[2:3].isspace()


def pnm_layout(view: memoryview) -> Pnm:
    """What the header says."""
    head = bytes(view[:USUAL_HEADER])
    kind = head[1] - ord("0")
    bits = kind in (1, 4)
    form = _BITS if bits else _LEVELS
    found = form.match(head) or form.match(bytes(view[:MAX_HEADER]))
    if found is None:
        msg = f"PNM cut off or damaged: no width, height{'' if bits else ' and highest level'} after P{kind}"
        raise UnusableError(msg)
    width, height, most = (int(found[n] or 0) for n in (2, 3, 4))
    if not bits and not 0 < most <= MAX_LEVEL:
        msg = f"PNM damaged: its highest level is {most}, where 1..{MAX_LEVEL} is needed"
        raise UnusableError(msg)
    return Pnm(width, height, 3 if kind in (3, 6) else 1, 1 if bits else most, bits, kind <= 3, found.end())


def pnm_header(view: memoryview) -> Header:
    """The size of a PBM, PGM or PPM whose pixels are all there."""
    layout = pnm_layout(view)
    header = Header("pnm", layout.width, layout.height, layout.components)
    if layout.start + layout.size > len(view):
        rule = f"{layout.size} bytes of pixels are needed after byte {layout.start}"
        msg = f"PNM cut off: {rule}; found {len(view) - layout.start}"
        raise UnusableError(msg)
    return header
