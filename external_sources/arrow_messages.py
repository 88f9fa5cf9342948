"""The messages of an Arrow file or stream: where each lies and how many rows it holds, from their headers alone.

As the Arrow columnar format's page "Serialization and interprocess communication" has it: a stream is messages, each a
marker, the length of its header, the header as a flatbuffer, and its body; a file is a stream between a magic and a
footer. Both are read by their messages, so a footer is needed only to tell where the messages must end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from dali_feed.errors import DataLostError, SourceError
from dali_feed.storage.store import File, read_at

__all__ = ["BATCH", "DICTIONARY", "SCHEMA", "Message", "messages"]

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_MAGIC, _OLD, _MARK = b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"
_HEADER = 2**28  # bytes; no header is near it


@dataclass(frozen=True, slots=True)
class Message:
    """One: its kind, where it begins and ends in the file, its header, and of a batch its rows.

    packed  whether its body is compressed
    """

    kind: int
    start: int
    stop: int
    header: bytes
    rows: int = 0
    packed: bool = False


def messages(path: str, file: File, size: int) -> Iterator[Message]:
    """All of them in order, the schema first.

    Raises:
        SourceError: it is no Arrow file. DataLostError: it is cut off, or a header is damaged.
    """
    at, end = _span(path, file, size)
    first = True
    while at < end:
        head = read_at(file, 8, at)
        length = int.from_bytes(head[4:8], "little")
        if len(head) == 8 and head[:4] == _MARK and not length and not first:
            if at + 8 != end:
                _lost(path, f"the mark of the end at byte {at}, and the end at {end}")
            return
        if len(head) < 8 or head[:4] != _MARK or not 0 < length < _HEADER or at + 8 + length > end:
            _lost(path, f"no message at byte {at} of {end}")
        header = read_at(file, length, at + 8)
        try:
            kind, rows, body, packed = _read(header)
        except (struct.error, IndexError) as error:
            _lost(path, f"a damaged header at byte {at}", error)
        stop = at + 8 + length + body
        if body < 0 or rows < 0 or stop > end or (kind == SCHEMA) != first or kind not in (SCHEMA, DICTIONARY, BATCH):
            _lost(path, f"at byte {at} a message that is damaged, or does not end within the file's {size} bytes")
        yield Message(kind, at, stop, header, rows, packed)
        at, first = stop, False
    _lost(path, f"no mark of the end in {size} bytes")


def _span(path: str, file: File, size: int) -> tuple[int, int]:
    """Where the messages begin, and where they end."""
    head = read_at(file, 8, 0)
    if head[:4] == _MARK:
        return 0, size
    if head[:4] == _OLD:
        msg = f"{path}: Feather must be of version 2; found version 1; write it again with pyarrow.feather"
        raise SourceError(msg)
    if head[:6] != _MAGIC:
        msg = f"{path}: an Arrow file begins with {_MAGIC!r}, a stream with {_MARK!r}; found {head!r}; check the path"
        raise SourceError(msg)
    tail = read_at(file, 10, max(0, size - 10))
    footer = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or footer > size - 18:
        _lost(path, f"no footer at byte {size}")
    return 8, size - 10 - footer


def _lost(path: str, found: str, error: BaseException | None = None) -> NoReturn:
    msg = (
        f"{path}: the messages of an Arrow file must be whole, up to their end; found {found}; fetch or write it again"
    )
    raise DataLostError(msg) from error


def _read(header: bytes) -> tuple[int, int, int, bool]:
    """Kind, rows, bytes of the body, whether that is compressed; of the flatbuffer `Message`."""
    top = struct.unpack_from("<I", header, 0)[0]
    at = [_slot(header, top, n) for n in range(4)]
    kind = 0 if at[1] is None else header[at[1]]
    body = 0 if at[3] is None else struct.unpack_from("<q", header, at[3])[0]
    if kind != BATCH or at[2] is None:
        return kind, 0, body, False
    batch = at[2] + struct.unpack_from("<I", header, at[2])[0]
    length, nodes = _slot(header, batch, 0), _slot(header, batch, 1)
    rows = 0 if length is None else struct.unpack_from("<q", header, length)[0]
    if nodes is not None:
        first = nodes + struct.unpack_from("<I", header, nodes)[0]
        if struct.unpack_from("<I", header, first)[0] and struct.unpack_from("<q", header, first + 4)[0] != rows:
            rows = -1  # the first column has another length: nobody should make room for what a flipped bit says
    return kind, rows, body, _slot(header, batch, 3) is not None


def _slot(buffer: bytes, table: int, n: int) -> int | None:
    """Where field `n` of a flatbuffer's table lies, None where it has its default."""
    names = table - struct.unpack_from("<i", buffer, table)[0]
    if names < 0 or 6 + 2 * n > struct.unpack_from("<H", buffer, names)[0]:
        return None
    offset = struct.unpack_from("<H", buffer, names + 4 + 2 * n)[0]
    return table + offset if offset else None
