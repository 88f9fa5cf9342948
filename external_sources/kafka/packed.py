"""Whether a value is packed already, by its first bytes: compressing it again would cost time and save nothing."""

from __future__ import annotations

__all__ = ["is_packed"]

_BEGINNINGS = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF8",
    b"\x00\x00\x00\x0cjP  ",  # JPEG 2000
    b"\xff\x4f\xff\x51",
    b"\xff\x0a",  # JPEG XL
    b"\x00\x00\x00\x0cJXL ",
    b"OggS",
    b"fLaC",
    b"ID3",  # MP3
    b"\x1aE\xdf\xa3",  # Matroska, WebM
    b"\x1f\x8b",  # gzip
    b"\x28\xb5\x2f\xfd",  # zstd
    b"\x04\x22\x4d\x18",  # lz4
    b"BZh",
    b"\xfd7zXZ\x00",
    b"PK\x03\x04",  # zip, npz
)
_LONGEST = max(map(len, _BEGINNINGS))


def is_packed(value: bytes) -> bool:
    """Whether it begins as a compressed image, sound, film or archive does."""
    head = value[:_LONGEST]
    return head.startswith(_BEGINNINGS) or head[4:8] == b"ftyp" or (head[:4] == b"RIFF" and value[8:12] == b"WEBP")
