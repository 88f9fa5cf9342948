"""Where shards go: into the work folder, to their names when they are whole, and into the manifest last."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dali_feed.errors import DataLostError, SourceNotFoundError
from dali_feed.external_sources.durable import sync_folder
from dali_feed.external_sources.kafka.tally import Tally
from dali_feed.external_sources.tar_index import SUFFIX
from dali_feed.external_sources.topic_shards import Replay
from dali_feed.packing.job import Job
from dali_feed.packing.shard import ShardMaker
from dali_feed.packing.work import Receipt, Work, denied, digest_of
from dali_feed.storage.manifest import SUFFIX as SET
from dali_feed.storage.manifest import Manifest, load_manifest, manifest_bytes

__all__ = ["Output", "save"]


class Output:
    """Whole files in one folder."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.manifest = work.out / f"{work.name}{SET}"

    def there(self, name: str, k: int) -> Receipt | None:
        """What shard k is, where it is finished; it has its name then. None: it must be written."""
        receipt = self._work.receipt(k)
        if receipt is None:
            return None
        self._name(k, name)
        sizes = ((self._work.out / name, receipt.size), (self._work.out / f"{name}{SUFFIX}", receipt.index_size))
        return receipt if all(_size(path) == size for path, size in sizes) else None

    def write(self, k: int, name: str, maker: ShardMaker, advance: Callable[[int, int], None]) -> Receipt:
        """Write shard k. When this returns, it outlasts a power cut."""
        temporary = self._work.temporary(k)
        index = temporary.with_name(temporary.name + SUFFIX)
        try:
            self._work.forget(k)
            with temporary.open("wb") as file:
                made = maker.make(k, file.write, advance)
                file.flush()
                os.fsync(file.fileno())
            with index.open("wb") as file:
                file.write(made.index)
                file.flush()
                os.fsync(file.fileno())
            receipt = Receipt(
                made.size, made.samples, made.sha256, digest_of(made.index), len(made.index), made.tally, made.missing
            )
            self._work.keep(k, receipt)
            self._name(k, name)
        except OSError as error:
            raise denied(temporary, error) from error
        return receipt

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
        save(self._work.path, self.manifest, Manifest(shards, dict(job.told) | {"tally": tally.told()}, replay))

    def checked(self, told: Manifest) -> None:
        """Raise DataLostError where a file of the set is not there, or of another size. Its bytes are not looked at."""
        for shard in told.shards:
            for name, size in ((shard.name, shard.size), (f"{shard.name}{SUFFIX}", shard.index_size)):
                path = self._work.out / name
                if (found := _size(path)) != size:
                    what = "it is not there" if found < 0 else f"found {found}"
                    msg = f"{path}: the set has it with {size} bytes; {what}; remove {self.manifest} to pack it again"
                    raise DataLostError(msg)

    def _name(self, k: int, name: str) -> None:
        """Give shard k its name, and its index; again, where a kill came between."""
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
