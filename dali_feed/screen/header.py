"""What all image headers share. They are read as strictly as the decoders read them, a file per format beside this one.

The law of this file and of those beside it: whatever a function there accepts, the decoder's own header parser accepts
too, with the same size. That parser's failure is fatal (DALI dies with it), so these walks go as far as its walks go: a
JPEG up to its scan, a PNG up to IEND, a WebP up to its end. What would only make decoding fail is checked where it
costs little; the rest is for the decoder to say. Where other programs read a file whose header that parser stumbles
over, the header has the file written anew without the stumbling block (`Header.plain`), and that is decoded.

Offsets are unsigned and every read goes through `struct`, which raises past the end; `screen.header_of`
turns that into "cut off". All walks are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Header", "UnusableError"]

MAX_SIDE = (1 << 31) - 1


class UnusableError(ValueError):
    """A payload that no decoder may see; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself, as it is decoded.

    format       'jpeg', 'png', 'webp', 'bmp', 'tiff', 'pnm', 'gif' or 'avif'
    width, height  as stored, before any turning; but of a TIFF, which Pillow turns, after that
    components   samples per pixel; 3 for a palette
    orientation  1..8 as EXIF numbers them, of EXIF or of an AVIF's `irot` and `imir`; 1 where there is none
    plain        the file as decoders are given it, where that is not the file as it is
    """

    format: str
    width: int
    height: int
    components: int
    orientation: int = 1
    plain: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            msg = f"{self.format.upper()} with an impossible size of {self.width}x{self.height}"
            raise UnusableError(msg)
