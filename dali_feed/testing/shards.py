"""Write webdataset-style tar shards: for tests, the demo and the benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dali_feed.errors import ConfigError

__all__ = ["Record", "write_shard"]

Record = bytes | tuple[bytes, int] | Mapping[str, bytes]

_BLOCK = 512


def write_shard(path: str | os.PathLike[str], records: Iterable[Record], *, first: int = 0, suffix: str = "jpg") -> int:
    """Write one ustar file; return how many samples it holds. The file appears whole or not at all.

    A record is the image's bytes; (bytes, label), which also writes a `.cls` member; or a mapping from
    suffix to bytes, which is written as it is (its key `__key__`, if there, names the sample).
    Samples are named 00000000, 00000001, ... from `first` on; images get `suffix`.

    Raises:
        ConfigError: a name of more than 100 bytes, or a member above 8 GiB: plain ustar cannot hold it.
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with temporary.open("wb") as file:
            for count, record in enumerate(records, 1):
                for name, data in _members(record, f"{first + count - 1:08d}", suffix):
                    file.write(_header(name, len(data)))
                    file.write(data)
                    file.write(bytes(-len(data) % _BLOCK))
            file.write(bytes(2 * _BLOCK))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


def _members(record: Record, key: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(record, Mapping):
        key = record["__key__"].decode() if "__key__" in record else key
        yield from ((f"{key}.{ending}", data) for ending, data in record.items() if ending != "__key__")
    elif isinstance(record, tuple):
        yield f"{key}.{suffix}", record[0]
        yield f"{key}.cls", b"%d" % record[1]
    else:
        yield f"{key}.{suffix}", record


def _header(name: str, size: int) -> bytes:
    encoded = name.encode()
    if len(encoded) > 100 or size >= 8**11:
        rule = "a member of a tar file must have a name of at most 100 bytes, and less than 8 GiB of data"
        msg = f"{name}: {rule}; found a name of {len(encoded)} bytes, and {size:,} bytes of data"
        raise ConfigError(msg)
    fields = (
        encoded.ljust(100, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        b"%011o\0" % size,
        b"%011o\0" % 0,  # no mtime: equal records make equal files
        b" " * 8 + b"0",
        bytes(100),
        b"ustar\x0000",
        bytes(_BLOCK - 265),
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]
