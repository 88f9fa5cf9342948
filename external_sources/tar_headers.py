"""The headers of a tar file: which regular files it holds, and where their bytes lie.

The law: every header's checksum is verified and every member must end inside the file;
what breaks that is a `DamageError` with its byte, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

__all__ = ["DamageError", "Pread", "behind", "has_end", "is_header", "is_header_of", "members"]

Pread = Callable[[int, int], bytes]  # so many bytes, from which one on; fewer where the file ends

BLOCK = 512
WINDOW = 4096  # a small member, its header and the next header come in one read
MAX_META = 1 << 24
PADDING = 1 << 24  # bytes of zeros that are looked through behind the end: tar pads by 10 KiB, or up to a tape's record
_NO_DATA = b"123456"  # links, devices, folders, pipes: their size field says nothing about data
_REGULAR = b"0\x007"
_META = b"xXgLK"
_LOCAL_META = b"xXLK"  # those that speak of the next member alone
_NO_SPARSE = "a sparse member (not supported: pack without --sparse)"


class DamageError(Exception):
    """What is wrong at which byte, and in which member where that is known."""

    def __init__(self, byte: int, what: str, member: bytes = b"") -> None:
        super().__init__(what)
        self.byte = byte
        self.what = what
        self.member = member


def members(pread: Pread, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(path, data offset, data length) of every regular file in an archive of `end` bytes; last (b"", its end, 0).

    Reads ustar, GNU (long names, base-256 sizes) and pax (path, size). Stops at the end marker as tar does;
    an archive without one is whole if its last member is, with the zeros that fill up its block.

    Raises:
        DamageError: the archive is cut off or damaged, or holds a sparse member.
    """
    at = 0
    piece = _Window(pread).piece
    every: dict[bytes, bytes] = {}  # from a pax header for all members that follow
    local: dict[bytes, bytes] = {}  # from a pax header or long name for the next member
    while block := _header_at(piece, at, bool(local)):
        kind = block[156:157]
        size = _number(block[124:136], at)
        at += BLOCK
        if kind in _META:
            if size > min(MAX_META, end - at):
                raise DamageError(at, f"a {size} byte name, which is longer than the file or 16 MiB")
            known = _meta(kind, piece(at, size), at)
            if kind in _LOCAL_META:
                local |= known
            else:
                every |= known
        else:
            path = _path(block)
            if local or every:
                known, local = every | local, {}
                path = known.get(b"path", path).split(b"\0", 1)[0]
                size = _decimal(known.get(b"size"), size, at)
            if kind == b"S":
                raise DamageError(at, _NO_SPARSE, path)
            if kind in _NO_DATA:
                continue
            if at + size > end:
                raise DamageError(at, f"{end - at} of the {size} bytes of {path.decode(errors='replace')}", path)
            if kind in _REGULAR and not path.endswith(b"/"):
                yield path, at, size
        at += (size + BLOCK - 1) // BLOCK * BLOCK
        if at > end:
            raise DamageError(end, "the end of the file, inside the zeros that fill up a member's last block")
    yield b"", at, 0


def behind(pread: Pread, at: int, end: int) -> int:
    """The first block from `at` on, where an archive ends, that is no padding of zeros; 0 where there is none."""
    stop = min(end, at + PADDING)
    while at < stop:
        piece = pread(min(1 << 20, stop - at), at)
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        if zeros < len(piece):
            return at + zeros // BLOCK * BLOCK
        if not piece:
            break
        at += len(piece)
    return 0


def has_end(end: int, size: int) -> bool:
    """Whether a file of so many bytes has a block behind the one in which its last member's data ends."""
    return size >= (end + BLOCK - 1) // BLOCK * BLOCK + BLOCK


class _Window:
    """A little more than what was asked for last, for the next question is about what follows."""

    def __init__(self, pread: Pread) -> None:
        self._pread = pread
        self._bytes = b""
        self._at = 0

    def piece(self, start: int, size: int) -> bytes:
        """Bytes from `start`; fewer than `size` at the end of the file."""
        first = start - self._at
        if not 0 <= first <= len(self._bytes) - size:
            self._bytes, self._at, first = self._pread(max(size, WINDOW), start), start, 0
        return self._bytes[first : first + size]


def _header_at(piece: Callable[[int, int], bytes], at: int, pending: bool) -> bytes:
    """The header at `at`; empty at the end of the archive."""
    block = piece(at, BLOCK)
    if not block.strip(b"\0"):
        if pending:
            raise DamageError(at, "the end of the file, after a long name without its member")
        if len(block) == BLOCK and piece(at + BLOCK, BLOCK).strip(b"\0"):
            raise DamageError(at, "a single block of zeros between members")
        return b""
    if len(block) < BLOCK:
        raise DamageError(at, "an incomplete header at the end")
    if not is_header(block):
        raise DamageError(at, "no tar header (its checksum is wrong)")
    return block


def is_header(block: bytes) -> bool:
    """Whether 512 bytes carry the checksum of a tar header."""
    try:
        stored = _number(block[148:156], 0)
    except DamageError:
        return False
    if stored == sum(block) - sum(block[148:156]) + 256:
        return True
    signed = np.frombuffer(block, np.int8).astype(np.int64)  # some old writers summed signed bytes
    return stored == int(signed.sum() - signed[148:156].sum()) + 256


def is_header_of(block: bytes, size: int) -> bool:
    """Whether 512 bytes are the header of a regular file of so many bytes; where pax tells the size, of any."""
    return (
        len(block) == BLOCK
        and is_header(block)
        and block[156:157] in (b"0", b"\0", b"7")
        and (_number(block[124:136], 0) == size or size >= 8**11)
    )


def _number(field: bytes, byte: int) -> int:
    """A header's number: octal text, or base 256 where the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if not field[0] & 0x40:
            return value
    else:
        digits = field.split(b"\0", 1)[0].strip() or b"0"
        if not digits.strip(b"01234567"):
            return int(digits, 8)
    raise DamageError(byte, f"a header with the number {field!r}")


def _decimal(text: bytes | None, default: int, byte: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or len(text) > 20:
        raise DamageError(byte, f"a pax size of {text[:40]!r}")
    return int(text)


def _path(block: bytes) -> bytes:
    path = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:  # GNU keeps times in the place of the prefix
        path = block[345:500].split(b"\0", 1)[0] + b"/" + path
    return path


def _meta(kind: bytes, data: bytes, byte: int) -> dict[bytes, bytes]:
    """What a long name or a pax header says; never empty, so that its member is waited for."""
    if kind == b"L":
        return {b"path": data.split(b"\0", 1)[0]}
    return {b"": b""} if kind == b"K" else {b"": b""} | _pax(data, byte)


def _pax(data: bytes, byte: int) -> dict[bytes, bytes]:
    """The records of a pax header: LENGTH, a blank, KEY=VALUE and a newline each."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + 20)
        digits = data[at:blank] if blank > at else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if not blank + 1 < end <= len(data) or data[end - 1 : end] != b"\n" or not equals:
            raise DamageError(byte, "a pax header that is not in pax format")
        if key.startswith(b"GNU.sparse."):
            raise DamageError(byte, _NO_SPARSE)
        found[key] = value
        at = end
    return found
