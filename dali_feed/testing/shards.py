"""Write webdataset-style tar shards: for tests, the demo and the benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from dali_feed.packing.sinks import TarWriter

Record = bytes | tuple[bytes, int] | Mapping[str, bytes]


def write_shard(path: str | os.PathLike[str], records: Iterable[Record], *, first: int = 0, suffix: str = "jpg") -> int:
    """Write one tar file; return how many samples it holds. The file appears whole or not at all.

    A record is the image's bytes; (bytes, label), which also writes a `.cls` member; or a mapping from
    suffix to bytes, which is written as it is (its key `__key__`, if there, names the sample).
    Samples are named 00000000, 00000001, ... from `first` on; images get `suffix`.
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            tar = TarWriter(file.write)
            for number, record in enumerate(records, first):
                members = _members(record, suffix)
                tar.add(members.pop("__key__", b"%08d" % number).decode(), members.items())
            tar.finish()
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return len(tar)


def _members(record: Record, suffix: str) -> dict[str, bytes]:
    if isinstance(record, Mapping):
        return dict(record)
    return {suffix: record[0], "cls": b"%d" % record[1]} if isinstance(record, tuple) else {suffix: record}
