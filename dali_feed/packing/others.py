"""Records of any source in the formats of others: TFRecord and Mosaic's MDS.

The laws: the same source and options give the same bytes; the folder is there whole or not at all; and nothing is left
out in silence.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dali_feed.bad_records import Tally
from dali_feed.errors import ConfigError, FormatError, SourceEmptyError
from dali_feed.packing.job import PackTask, sample_bytes
from dali_feed.packing.plan import Plan, blocks, borders_of, extents_of, probed
from dali_feed.packing.sinks import columns_of, encodings_of, example_bytes, index_json, shard_bytes, tfrecord_bytes
from dali_feed.packing.work import folder_at, writing
from dali_feed.records.source import unpack_id
from dali_feed.storage.durable import sync_folder
from dali_feed.storage.striping import WHOLE, StripeWriter

SHARD_BYTES = {"tfrecord": 256_000_000, "mds": 1 << 26}  # what their own tools take
_NAMES = {"tfrecord": ("image/encoded", "image/class/label"), "mds": ("image", "label")}


class Conversion:
    """A folder of TFRecords or MDS that is being written, files of about `size` bytes.

    `advance` hears of positions that are done, and of bytes. ConfigError: a folder that is there, or cannot be written.
    """

    def __init__(
        self, packed: PackTask, out: str | os.PathLike[str], to: str, size: int, advance: Callable[[int, int], None]
    ) -> None:
        self.out, self._to, self._size, self._advance = (
            folder_at(out, "a folder that is not there yet"),
            to,
            size,
            advance,
        )
        if self.out.exists():
            what = "this one exists already; give another name, or remove it"
            raise ConfigError(f"{self.out}: a conversion makes a new folder; {what}")
        self._contents, self._snapshot, self.tally = packed.contents(), packed.snapshot(None), Tally()
        if not len(self._snapshot):
            raise SourceEmptyError(f"{self._snapshot.source}: what is converted must hold records; found none")
        mean, _ = sample_bytes(self._contents, self._snapshot)
        self.plan = Plan(self.out.name, borders_of(self._snapshot, mean, size))

    def run(self) -> None:
        """Write all of it. Raises SourceError where records cannot be read, SourceEmptyError where none is written."""
        with _whole(self.out) as folder:
            if self._to == "mds":
                self._mds(folder)
                return
            for k in range(len(self.plan)):
                name = f"{self.plan.name}-{k:05d}-of-{len(self.plan):05d}.tfrecord"
                with _synced(folder / name) as write:
                    for record in self._records(k, example_bytes):
                        write(tfrecord_bytes(record))

    def _mds(self, folder: Path) -> None:
        kinds = list(self._probed())
        columns, shards = columns_of(kinds) if kinds else None, list[tuple[str, int, str, int]]()

        def encoded(values: Mapping[str, Any]) -> bytes:
            nonlocal columns
            columns = columns or columns_of([encodings_of(values)])
            return columns.sample(values)

        for k in range(len(self.plan)):
            samples = list(self._records(k, encoded))
            if samples and columns is not None:
                name, data = f"shard.{len(shards):05d}.mds", shard_bytes(columns, samples, self._size)
                with _synced(folder / name) as write:
                    write(data)
                shards.append((name, len(data), hashlib.sha1(data, usedforsecurity=False).hexdigest(), len(samples)))
        if columns is None or not shards:
            first = next((each.first[0] for each in self.tally.failures.values()), "all are absent")
            msg = f"{self._snapshot.source}: what is converted must hold records; none could be written: {first}"
            raise SourceEmptyError(msg)
        with _synced(folder / "index.json") as write:
            write(index_json(columns, shards, self._size))

    def _probed(self) -> Iterator[dict[str, str]]:
        """The columns of a few records, spread over all, which say whether images are of one kind."""
        with closing(blocks(self._contents.source, self._contents.members, probed(self._snapshot))) as some:
            for block in some:
                for values in self._contents.values(block, *_NAMES[self._to]):
                    try:
                        if isinstance(values, dict):
                            yield encodings_of(values)
                    except FormatError:
                        continue  # it is counted where it is written

    def _records(self, k: int, encode: Callable[[Mapping[str, Any]], bytes]) -> Iterator[bytes]:
        """The records of shard k, as bytes; what became of them goes into the tally."""
        source, tally = self._contents.source, self.tally
        extents = extents_of(self._snapshot, *self.plan.borders[k : k + 2].tolist())
        with closing(blocks(source, self._contents.members, extents)) as every:
            for block in every:
                before = tally.size
                for row, values in enumerate(self._contents.values(block, *_NAMES[self._to])):
                    if values is None:
                        tally.absent += 1
                        continue
                    try:
                        if isinstance(values, str):
                            raise FormatError(values)
                        record = encode(values)
                    except FormatError as error:
                        tally.fail(str(error), source.where(*unpack_id(int(block.ids[row]))))
                        continue
                    tally.records, tally.size = tally.records + 1, tally.size + len(record)
                    yield record
                self._advance(len(block.ids), tally.size - before)


@contextmanager
def _synced(path: Path) -> Iterator[Callable[[bytes], int]]:
    """What appends to a new file, which is on the disk in the end."""
    file = StripeWriter(path.parent, WHOLE, 0, path.name)
    try:
        yield file.write
        file.commit()
    finally:
        file.abort()


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder to write into, which gets its name at the end, and is gone where there is none."""
    fresh = out.with_name(f".{out.name}.{uuid.uuid4().hex}.tmp")
    try:
        with writing(out):
            fresh.mkdir(parents=True)
        yield fresh
        with writing(out):
            sync_folder(fresh)
            fresh.rename(out)
            sync_folder(out.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
