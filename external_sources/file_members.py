"""Members of single files: their bytes, their path, and the label where there is one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources.one_file import check_read, load_file
from dali_feed.records.members import alternatives
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Block, Extents, Int64s, Lease, Reader, Slabs, Snapshot, Source, unpack_ids

__all__ = ["BYTES", "PATH", "FileMembers"]

BYTES, PATH = "bytes", "path"


class FileMembers:
    """Files of a list with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(
        self, files: Source, paths: list[str], labels: Int64s | None, image: str | None, members: tuple[str, ...]
    ) -> None:
        known = (BYTES, PATH) if labels is None else (BYTES, PATH, LABEL)
        for name in (*(() if image is None else (image,)), *members):
            if not set(alternatives(name)).intersection(known):
                msg = f"member {name!r}: a file's members are {', '.join(known)}; found none of them"
                raise ConfigError(msg)
        self._files, self._image, self._members = files, image, members
        self._paths, self._labels = paths, labels

    def __repr__(self) -> str:
        return repr(self._files)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members as they were asked for."""
        return self._members

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The list's."""
        return self._files.snapshot(pin)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `records.Source`."""
        return _MemberReader(self, SlabPool() if slabs is None else slabs, stop or threading.Event())

    def where(self, partition: int, position: int) -> str:
        """The file's path."""
        return self._paths[position]


class _MemberReader:
    """Opens a file only where its bytes are asked for."""

    def __init__(self, of: FileMembers, slabs: Slabs, stop: threading.Event) -> None:
        self._of, self._slabs, self._stop, self._closed = of, slabs, stop, False

    def read(self, extents: Extents) -> Block:
        """The members of `extents`' files; see `records.Reader`. Raises what FileList's does."""
        check_read("FileList", extents, len(self._of._paths), closed=self._closed)
        ids = extents.ids()
        rows = unpack_ids(ids)[1].tolist()
        block = Block(ids, [memoryview(b"")] * len(rows), {}, self._slabs.lease())
        try:
            asked = [alternatives(name)[0] for name in self._of._members]
            bytes_of: list[Any] = [None] * len(rows)
            if self._of._image is not None or BYTES in asked:
                for k, row in enumerate(rows):
                    bytes_of[k] = self._loaded(self._of._paths[row], block.lease, k, block.faults)
            if self._of._image is not None:
                block.payloads[:] = [view or memoryview(b"") for view in bytes_of]
            for name, member in zip(self._of._members, asked, strict=True):
                block.fields[name] = self._values(member, rows, bytes_of)
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True

    def _values(self, member: str, rows: list[int], bytes_of: list[Any]) -> Any:
        if member == BYTES:
            return bytes_of
        if member == PATH:
            return [self._of._paths[row] for row in rows]
        labels = self._of._labels
        return None if labels is None else labels[rows]

    def _loaded(self, path: str, lease: Lease, k: int, faults: dict[int, str]) -> memoryview | None:
        if self._stop.is_set():
            msg = "FileList: the read was stopped"
            raise ClosedError(msg)
        found = load_file(path, lease)
        if isinstance(found, str):
            faults[k] = found
            return None
        return found
