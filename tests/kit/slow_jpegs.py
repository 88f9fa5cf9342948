"""JPEGs that are small and slow: many scans of a large image, as valid as a decoder asks for."""

from __future__ import annotations

import struct

_RUN = 32767  # blocks that one code passes over
_ONE_CODE = bytes([1, *[0] * 15])  # a Huffman table of the one code "0"


def slow_jpeg(side: int, scans: int, *, between: bytes = b"") -> bytes:
    """A gray progressive JPEG of side x side pixels; `between` stands before each scan but the first.

    Each scan after the first two refines all coefficients of all blocks, and there is none to refine.
    """
    blocks = (-(-side // 8)) ** 2
    bits = ("0" + 14 * "1") * -(-blocks // _RUN)
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    parts = [
        b"\xff\xd8\xff\xdb\0\x43\0" + 64 * b"\1",
        b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, side, side, 1) + b"\1\x11\0",
        b"\xff\xc4\0\x14\0" + _ONE_CODE + b"\0",
        b"\xff\xc4\0\x14\x10" + _ONE_CODE + b"\xe0",  # the end of a band, for a run of blocks in 14 bits
        b"\xff\xda\0\x08\1\1\0\0\0\0" + bytes(-(-blocks // 8)),
    ]
    parts += [between + b"\xff\xda\0\x08\1\1\0\1\x3f" + (b"\x10" if n else b"\1") + body for n in range(scans - 1)]
    return b"".join(parts) + b"\xff\xd9"
