"""Where shards go: into the work folder, to their names when they are whole, and into the manifest last."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dali_feed.errors import DataLostError, SourceNotFoundError
from dali_feed.external_sources.tar_index import SUFFIX
from dali_feed.external_sources.topic_shards import Replay
from dali_feed.packing.job import Job
from dali_feed.packing.shard import Made, ShardMaker
from dali_feed.packing.work import Receipt, Work, denied, digest_of
from dali_feed.records.tally import Tally
from dali_feed.storage.durable import sync_folder
from dali_feed.storage.manifest import SUFFIX as SET
from dali_feed.storage.manifest import Manifest, Shard, load_manifest, manifest_bytes
from dali_feed.storage.striping import Layout, StripeWriter, check_parts, settle, sweep

__all__ = ["Output", "save"]


class Output:
    """Whole files in one folder, or parts of them on targets."""

    def __init__(self, work: Work, layout: Layout | None = None) -> None:
        self._work, self._layout = work, layout
        self.manifest = work.out / f"{work.name}{SET}"

    @property
    def layout(self) -> Layout | None:
        """The targets; None where shards lie beside the manifest."""
        return self._layout

    def there(self, name: str, k: int) -> Receipt | None:
        """What shard k is, where it is finished; it has its name then. None: it must be written."""
        receipt = self._work.receipt(k)
        if receipt is None:
            return None
        self._name(k, name, receipt.size)
        try:
            self._check(k, receipt.shard(name))
        except DataLostError:
            return None
        return receipt

    def write(self, k: int, name: str, maker: ShardMaker, advance: Callable[[int, int], None]) -> Receipt:
        """Write shard k. When this returns, it outlasts a power cut."""
        temporary = self._work.temporary(k)
        index = temporary.with_name(temporary.name + SUFFIX)
        try:
            self._work.forget(k)
            made = self._make(k, name, maker, advance)
            with index.open("wb") as file:
                file.write(made.index)
                file.flush()
                os.fsync(file.fileno())
            receipt = Receipt(
                made.size, made.samples, made.sha256, digest_of(made.index), len(made.index), made.tally, made.missing
            )
            self._work.keep(k, receipt)
            self._name(k, name, receipt.size)
        except OSError as error:
            raise denied(temporary, error) from error
        return receipt

    def _make(self, k: int, name: str, maker: ShardMaker, advance: Callable[[int, int], None]) -> Made:
        """Have the bytes of shard k on the disks, under temporary names."""
        if self._layout is None:
            with self._work.temporary(k).open("wb") as file:
                made = maker.make(k, file.write, advance)
                file.flush()
                os.fsync(file.fileno())
            return made
        stripes = StripeWriter(self._work.out, self._layout, k, name, self._work.attempt)
        try:
            made = maker.make(k, stripes.write, advance)
            stripes.finish()
        except BaseException:
            stripes.abort()
            raise
        return made

    def known(self) -> Manifest | None:
        """The set that is there; None where there is none."""
        try:
            return load_manifest(str(self.manifest))
        except SourceNotFoundError:
            return None

    def finish(self, job: Job, receipts: Sequence[Receipt]) -> None:
        """Write the manifest: the set is there then, and not before."""
        sync_folder(self._work.out)
        tally = Tally()
        for receipt in receipts:
            tally.add(receipt.tally)
        replay = None
        if job.snapshot.pin is not None and job.snapshot.interleaved:
            missing = [run for receipt in receipts for run in receipt.missing]
            replay = Replay.missing(job.snapshot.pin, missing).told()
        shards = tuple(each.shard(job.plan.shard(k)) for k, each in enumerate(receipts))
        made = dict(job.told) | {"tally": tally.told()}
        save(self._work.path, self.manifest, Manifest(shards, made, replay, self._layout))
        if self._layout is not None:  # a process that was killed, or given up by Ray
            sweep(self._work.out, self._layout, {shard.name for shard in shards})

    def checked(self, told: Manifest) -> None:
        """Raise DataLostError where a file of the set is not there, or of another size. Its bytes are not looked at."""
        for k, shard in enumerate(told.shards):
            self._check(k, shard)

    def _check(self, k: int, shard: Shard) -> None:
        files = [(f"{shard.name}{SUFFIX}", shard.index_size)]
        if self._layout is None:
            files.insert(0, (shard.name, shard.size))
        else:
            check_parts(self._work.out, self._layout, self._layout.parts(k, shard.name, shard.size))
        for name, size in files:
            path = self._work.out / name
            if (found := _size(path)) != size:
                what = "it is not there" if found < 0 else f"found {found}"
                msg = f"{path}: the set has it with {size} bytes; {what}; remove {self.manifest} to pack it again"
                raise DataLostError(msg)

    def _name(self, k: int, name: str, size: int) -> None:
        """Give shard k its name, and its index; again, where a kill came between."""
        if self._layout is not None:
            settle(self._work.out, self._layout, self._layout.parts(k, name, size), self._work.attempt)
        temporary = self._work.temporary(k)
        for end in ("", SUFFIX):
            here = temporary.with_name(temporary.name + end)
            if here.exists():
                here.replace(self._work.out / f"{name}{end}")


def save(work: Path, path: Path, manifest: Manifest) -> None:
    """Write a manifest by way of the folder `work`: whole or not at all, and when this returns it is on the disk."""
    fresh = work / path.name
    with fresh.open("wb") as file:
        file.write(manifest_bytes(manifest))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
