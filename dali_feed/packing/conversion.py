"""Records of any source in the formats of others: TFRecord and Mosaic's MDS; as tar shards by `pack`.

The laws: the same source and options give the same bytes; the folder is there whole or not at all; and nothing is left
out in silence.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError, FormatError, SourceEmptyError
from dali_feed.packing.plan import Plan, borders_of, extents_of
from dali_feed.packing.rows import Typed, contents_of
from dali_feed.packing.run import PackedSet, Tell, folder_at, pack
from dali_feed.packing.runner import as_source, sample_bytes
from dali_feed.packing.sinks import (
    MdsColumns,
    MixedImagesError,
    columns_of,
    example_bytes,
    index_json,
    shard_bytes,
    tfrecord_bytes,
)
from dali_feed.records.source import Snapshot, unpack_id
from dali_feed.records.tally import Tally
from dali_feed.storage.durable import sync_folder

__all__ = ["convert"]


FORMATS = ("tar", "tfrecord", "mds")
SHARD_BYTES = {"tfrecord": 256_000_000, "mds": 1 << 26}  # what their own tools take
_IMAGE = {"tfrecord": "image/encoded", "mds": "image"}
_LABEL = {"tfrecord": "image/class/label", "mds": "label"}


def convert(
    source: Any,
    out: str | os.PathLike[str],
    to: str,
    *,
    members: Mapping[str, str] | Sequence[str] | None = None,
    shard_size: int | None = None,
    tell: Tell | None = None,
) -> PackedSet:
    """Write the records of a source in another format, into a folder that is not there yet.

    Args:
        source: as `pack` has it.
        out: the folder. Its files are `NAME-00000-of-00007.tfrecord`, or index.json and `shard.00000.mds`.
        to: "tfrecord" (each record a tf.train.Example), "mds", or "tar", which is `pack`.
        members: of the source, or name in the new format -> member. None: all; the image is then called
            `image/encoded` or `image`, the label `image/class/label` or `label`, the others as they are.
        shard_size: about so many bytes of each file. None: 256 MB, of MDS 64 MiB.
        tell: hears how far it is.

    A member `cls` is a whole number, `txt` a text. Records that cannot be written are counted in `tally.failures`.

    Raises:
        ConfigError: an argument that is not allowed, or a folder that is there or cannot be written.
        SourceError: records cannot be read.
    """
    if to not in FORMATS:
        msg = f"to: must be one of {', '.join(FORMATS)}; found {to!r}"
        raise ConfigError(msg)
    if shard_size is not None and shard_size < 1:
        msg = f"shard_size: must be 1 or more; found {shard_size!r}"
        raise ConfigError(msg)
    if to == "tar":
        sized: dict[str, Any] = {} if shard_size is None else {"shard_bytes": shard_size}
        return pack(source, out, members=members, tell=tell, **sized)
    run = _Conversion(as_source(source), _fresh(out), to, members, tell or (lambda _: None))
    return run.run(shard_size or SHARD_BYTES[to])


class _Conversion:
    """A conversion under way."""

    def __init__(
        self, source: Any, out: Path, to: str, members: Mapping[str, str] | Sequence[str] | None, tell: Tell
    ) -> None:
        self._out, self._to, self._tell = out, to, tell
        self._contents = contents_of(source, members, "number")
        self._typed = Typed(self._contents, _IMAGE[to], _LABEL[to], named=isinstance(members, Mapping))
        self._begun = time.monotonic()
        self._done, self._written = 0, 0

    def run(self, size: int) -> PackedSet:
        """All of it."""
        snapshot = self._contents.source.snapshot()
        if not len(snapshot):
            msg = f"{snapshot.source}: what is converted must hold records; found none"
            raise SourceEmptyError(msg)
        mean, _ = sample_bytes(self._contents, snapshot)
        plan = Plan(self._out.name, borders_of(snapshot, mean, size))
        for pictures in (True, False):
            tally = Tally()
            self._done = self._written = 0
            try:
                with _whole(self._out) as folder:
                    if self._to == "mds":
                        self._mds(folder, snapshot, plan, size, tally, pictures=pictures)
                    else:
                        self._tfrecord(folder, snapshot, plan, tally)
                break
            except MixedImagesError:
                continue
        end = self._so_far(plan, tally)
        self._tell(end)
        return end

    def _tfrecord(self, folder: Path, snapshot: Snapshot, plan: Plan, tally: Tally) -> None:
        for k in range(len(plan)):
            name = f"{plan.name}-{k:05d}-of-{len(plan):05d}.tfrecord"
            with _synced(folder / name) as write:
                for record in self._records(snapshot, plan, k, tally, example_bytes):
                    self._written += write(tfrecord_bytes(record))

    def _mds(self, folder: Path, snapshot: Snapshot, plan: Plan, size: int, tally: Tally, *, pictures: bool) -> None:
        columns: MdsColumns | None = None
        shards: list[tuple[str, int, str, int]] = []

        def made(values: Mapping[str, Any]) -> bytes:
            nonlocal columns
            if columns is None:
                columns = columns_of(values, pictures=pictures)
            return columns.sample(values)

        for k in range(len(plan)):
            samples = list(self._records(snapshot, plan, k, tally, made))
            if not samples or columns is None:
                continue
            name = f"shard.{len(shards):05d}.mds"
            data = shard_bytes(columns, samples, size)
            with _synced(folder / name) as write:
                self._written += write(data)
            shards.append((name, len(data), hashlib.sha1(data, usedforsecurity=False).hexdigest(), len(samples)))
        if columns is None:
            msg = f"{snapshot.source}: what is converted must hold records; none could be written: {_first(tally)}"
            raise SourceEmptyError(msg)
        with _synced(folder / "index.json") as write:
            write(index_json(columns, shards, size))

    def _records(
        self, snapshot: Snapshot, plan: Plan, k: int, tally: Tally, made: Callable[[Mapping[str, Any]], bytes]
    ) -> Iterator[bytes]:
        """The records of shard k, as bytes; what became of them goes into `tally`."""
        source = self._contents.source
        reader = source.reader(None, threading.Event())
        try:
            for extents in extents_of(snapshot, int(plan.borders[k]), int(plan.borders[k + 1])):
                block = reader.read(extents)
                try:
                    for row, values in enumerate(self._typed.rows(block)):
                        if values is None:
                            tally.absent += 1
                            continue
                        try:
                            if isinstance(values, str):
                                raise FormatError(values)
                            record = made(values)
                        except FormatError as error:
                            tally.fail(str(error), source.where(*unpack_id(int(block.ids[row]))))
                            continue
                        tally.records, tally.size = tally.records + 1, tally.size + len(record)
                        yield record
                    self._done += len(block.ids)
                finally:
                    block.payloads.clear()
                    block.lease.release()
                self._tell(self._so_far(plan, Tally()))
        finally:
            reader.close()

    def _so_far(self, plan: Plan, tally: Tally) -> PackedSet:
        seconds = time.monotonic() - self._begun
        return PackedSet(self._out, plan.records, self._done, 0, len(plan), self._written, tally, seconds)


def _first(tally: Tally) -> str:
    return next((each.first[0] for each in tally.failures.values()), "all are absent")


@contextlib.contextmanager
def _synced(path: Path) -> Iterator[Callable[[bytes], int]]:
    with path.open("xb") as file:
        yield file.write
        file.flush()
        os.fsync(file.fileno())


def _fresh(out: str | os.PathLike[str]) -> Path:
    path = folder_at(out, "a folder that is not there yet")
    if path.exists():
        msg = f"{path}: a conversion makes a new folder; this one exists already; give another name, or remove it"
        raise ConfigError(msg)
    return path


@contextlib.contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name at the end, and is gone where there is none."""
    fresh = out.with_name(f".{out.name}.{uuid.uuid4().hex}.tmp")
    try:
        fresh.mkdir(parents=True)
        yield fresh
        sync_folder(fresh)
        fresh.rename(out)
        sync_folder(out.parent)
    except OSError as error:
        msg = f"{out}: must lie where it can be written; found: {error.strerror or error}; give another place"
        raise ConfigError(msg) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
