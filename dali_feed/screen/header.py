"""What all image headers share, EXIF among it. JPEG and PNG are read as strictly as the decoders read them.

The law of this file and of those beside it: whatever a function there accepts, the decoder's own header parser accepts
too, with the same size. That parser's failure is fatal (DALI dies with it), so these walks go as far as its walks go: a
JPEG up to its scan, a PNG up to IEND. What would only make decoding fail is checked where it costs little; the
rest is for the decoder to say. Where other programs read a file whose header that parser stumbles over, the
header has the file written anew without the stumbling block (`Header.plain`), and that is decoded.

Offsets are unsigned and every read goes through `struct`, which raises past the end; `screen.header_of`
turns that into "cut off". All walks are bounded.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dali_feed.packages import needed

MAX_SIDE = (1 << 31) - 1
# A stored image is mirrored, left to right and top to bottom, and then its axes are exchanged. By orientations:
MIRRORED_X, MIRRORED_Y, SIDEWAYS = (2, 3, 7, 8), (3, 4, 6, 7), (5, 6, 7, 8)

_ORIENTATION = 0x0112

_FILTERS = threading.Lock()  # guards the interpreter's list of warning filters, as far as it is changed here

T = TypeVar("T")


class UnusableError(ValueError):
    """A payload that no decoder may see; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself, as it is decoded.

    format       'jpeg', 'png', 'webp', 'bmp', 'tiff', 'pnm' or 'gif'
    width, height  as stored, before any turning; but of a TIFF, which Pillow turns, after that
    components   samples per pixel; 3 for a palette
    exif         its EXIF block, b"" where there is none; a TIFF's is applied already
    plain        the file as decoders are given it, where that is not the file as it is
    work         pixels times passes that decoding it takes, as far as a header tells; 0: no more than its pixels.
                 The scans of a JPEG are counted only where they could matter
    """

    format: str
    width: int
    height: int
    components: int
    exif: bytes = field(default=b"", repr=False)
    plain: bytes | None = field(default=None, repr=False)
    work: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            raise UnusableError(f"{self.format.upper()} with an impossible size of {self.width}x{self.height}")

    @property
    def orientation(self) -> int:
        """1..8 as EXIF numbers them; 1 where there is none."""
        return orientation_in(self.exif) if self.exif else 1


def orientation_in(block: bytes) -> int:
    """The orientation, 1..8, in an EXIF block as Pillow reads it; 1 where that says nothing sensible, or raises."""
    with needed():
        from PIL.Image import Exif

    def read() -> object:
        exif = Exif()
        exif.load(block)
        return exif.get(_ORIENTATION)

    try:
        value = calmly(read)
    except Exception:  # noqa: BLE001  its parsers are Python and raise anything
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def calmly(read: Callable[[], T]) -> T:
    """What `read` returns, though the user's filters make errors of Pillow's warnings: these decide about no image."""
    try:
        return read()
    except Warning:
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
