"""A shard of a set: the records of the plan's k-th stretch as a tar file, its index and receipt; the manifest last.

The law: its bytes are a function of (plan, k) alone. Who writes it, when, beside what others, shows nowhere.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from dali_feed.bad_records import Tally
from dali_feed.errors import ClosedError, ConfigError, DataLostError
from dali_feed.external_sources.index import SUFFIX
from dali_feed.external_sources.replay import Replay
from dali_feed.packing.job import PackJob
from dali_feed.packing.plan import blocks, extents_of
from dali_feed.packing.rows import Sample
from dali_feed.packing.sinks import TarWriter
from dali_feed.packing.work import Receipt, writing
from dali_feed.records.source import unpack_id
from dali_feed.storage.durable import sync_folder, write_whole
from dali_feed.storage.manifest import Manifest, Shard
from dali_feed.storage.striping import WHOLE, StripePart, StripeWriter, check_parts, sweep

Advance = Callable[[int, int], None]  # records and bytes that have come since


def write_shard(job: PackJob, k: int, advance: Advance, stop: threading.Event) -> Receipt:
    """Write shard k, its index and its receipt. When this returns, they outlast a power cut.

    ClosedError: the stop event is set. ConfigError: two of its samples have one key; a place that cannot be written.
    """
    work, contents, name = job.work, job.contents, job.plan.shard(k)
    file, digest, tally = StripeWriter(work.out, job.layout or WHOLE, k, name), hashlib.sha256(), Tally()
    keys, missing = set[str](), list[list[int]]()
    number, end = job.plan.borders[k : k + 2].tolist()

    def put(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    tar = TarWriter(put)
    try:
        with closing(blocks(contents.source, contents.members, extents_of(job.snapshot, number, end), stop)) as every:
            for block in every:
                before = tar.size
                for row, sample in enumerate(contents.samples(block, number)):
                    if isinstance(sample, Sample):
                        if not contents.keys.unique:
                            if sample.key in keys:
                                rule = "no two samples of a shard may have one key"
                                raise ConfigError(f'{name}: {rule}; found {sample.key!r} twice; give keys="number"')
                            keys.add(sample.key)
                        tar.add(*sample)
                        tally.records += 1
                        tally.size += sum(len(data) for _, data in sample.files)
                        continue
                    place = unpack_id(int(block.ids[row]))
                    if job.snapshot.interleaved:
                        _add(missing, *place)
                    if sample is None:
                        tally.absent += 1
                    else:
                        tally.fail(sample, contents.source.where(*place))
                number += len(block.ids)
                advance(len(block.ids), tar.size - before)
                if stop.is_set() and number < end:
                    raise ClosedError("pack: it was stopped")
        index = tar.finish().to_bytes()
        with writing(work.out / f"{name}{SUFFIX}"):
            write_whole(work.out / f"{name}{SUFFIX}", index)
            sync_folder(work.out)
        file.commit()
    finally:
        file.abort()
    checksums = digest.hexdigest(), hashlib.sha256(index).hexdigest()
    receipt = Receipt(tar.size, len(tar), *checksums, len(index), tally, missing)
    work.keep(k, receipt)
    return receipt


def _add(runs: list[list[int]], partition: int, position: int) -> None:
    """Put positions together into runs as they come."""
    if runs and runs[-1][::2] == [partition, position]:
        runs[-1][2] += 1
    else:
        runs.append([partition, position, position + 1])


def check_shard(job: PackJob, k: int, shard: Shard) -> None:
    """Raise DataLostError where a file of a shard is not there, or of another size. Its bytes are not looked at."""
    layout, out = job.layout or WHOLE, job.work.out
    check_parts(out, layout, layout.parts(k, shard.name, shard.size))
    check_parts(out, WHOLE, [StripePart(0, f"{shard.name}{SUFFIX}", shard.index_size)])


def finished(job: PackJob, k: int) -> Receipt | None:
    """What shard k is, where it is finished. None: it must be written."""
    receipt = job.work.receipt(k)
    try:
        if receipt is not None:
            check_shard(job, k, receipt.shard(job.plan.shard(k)))
    except DataLostError:
        return None
    return receipt


def finish(job: PackJob, receipts: Sequence[Receipt]) -> Tally:
    """Write the manifest: the set is there then, and not before. What became of all records."""
    work, tally, replay = job.work, Tally(), None
    for receipt in receipts:
        tally.add(receipt.tally)
    if job.snapshot.pin is not None and job.snapshot.interleaved:
        replay = Replay.missing(job.snapshot.pin, [run for each in receipts for run in each.missing]).as_json()
    shards = tuple(each.shard(job.plan.shard(k)) for k, each in enumerate(receipts))
    for layout in {WHOLE, job.layout or WHOLE}:  # of processes that were killed, or given up by Ray
        names = {shard.name for shard in shards} | {work.manifest.name} | {f"{each.name}{SUFFIX}" for each in shards}
        sweep(work.out, layout, names)
    work.save(Manifest(shards, dict(job.facts) | {"tally": tally.to_json()}, replay, job.layout))
    return tally
