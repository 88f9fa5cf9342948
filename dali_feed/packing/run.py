"""A source's records into a set of tar shards, or into the files of others.

The laws: the same source and options give the same bytes, whoever writes them, in how many threads, however often it
was killed; what is not whole has no name; and nothing is left out in silence.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.bad_records import Tally
from dali_feed.errors import ConfigError, SourceNotFoundError
from dali_feed.options import whole_cores
from dali_feed.packing.job import PackJob, PackTask, as_source, job_of
from dali_feed.packing.on_ray import RayTasks, check_ray
from dali_feed.packing.others import SHARD_BYTES, Conversion
from dali_feed.packing.plan import Plan
from dali_feed.packing.runner import Advance, check_shard, finish, finished, write_shard
from dali_feed.packing.work import Receipt, WorkFolder, place
from dali_feed.records.extents import Present
from dali_feed.storage.manifest import load_manifest
from dali_feed.storage.striping import Layout

TELL_SECONDS = 0.1
TAR_BYTES = 256_000_000
FORMATS = ("tar", "tfrecord", "mds")
ENGINES = ("threads", "ray")
EVERYWHERE = ("members", "shard_bytes", "keys")  # options that every format has; keys decide parts
USUAL = {"text": "txt", "engine": "threads", "decoded": False}


@dataclass(frozen=True, slots=True)
class PackedSet:
    """How far a run is, or what it did.

    path     the set's manifest, or the folder of TFRecords or MDS
    total    records of the source, those too that hold none
    done     of them, how many are in a shard or are counted in `tally`, whichever process did it
    begun    of them, how many were when this process began; above 0 where it went on
    shards   of the set
    written  bytes that this process has written so far
    tally    at the end: the records in the set, bytes of their members, and the failures by reason
    seconds  since this process began
    """

    path: Path
    total: int
    done: int
    begun: int
    shards: int
    written: int
    tally: Tally
    seconds: float


Tell = Callable[[PackedSet], None]


def pack(  # noqa: PLR0913  an option each
    source: Any,
    out: str | os.PathLike[str],
    *,
    to: str = "tar",
    members: Mapping[str, str] | Sequence[str] | None = None,
    shard_bytes: int | None = None,
    keys: str = "auto",
    resize: int | None = None,
    quality: int | None = None,
    map: Callable[[bytes], bytes] | None = None,  # noqa: A002  what it is
    tokens: str | os.PathLike[str] | None = None,
    text: str = "txt",
    decoded: bool = False,
    layout: Layout | None = None,
    workers: int | None = None,
    engine: str = "threads",
    tell: Tell | None = None,
) -> PackedSet:
    """Write a source's records as a set: tar shards, an index beside each, last the manifest; or otherwise.

    Called again after a kill it goes on, and ends with the same bytes; called again after the end it does nothing.
    TFRecords and MDS are written by one thread into a folder that appears whole or not at all.

    Args:
        source: a ShardSet, FileList, Table or KafkaTopic, any other source but a Mix, or a dataset of Hugging Face.
        out: `folder/NAME.dfset`, or a folder: NAME is then what the folder is called. Of other formats a folder that is
            not there yet, for `NAME-00000-of-00007.tfrecord`, or for index.json and `shard.00000.mds`.
        to: "tar"; "tfrecord", each record a tf.train.Example; or "mds". These take `members`, `shard_bytes` and `tell`.
        members: of the source, in the order wanted; or suffix -> member, in other formats name -> member. None: all
            that there are; the image is then called `image/encoded` or `image` in other formats, the label
            `image/class/label` or `label`, the others as they are. There `cls` is a whole number, `txt` a text.
        shard_bytes: about so many bytes of each shard; they have as many records each as can be. None: 256 MB, of MDS
            64 MiB.
        keys: "auto", "own" or "number": what samples are called, see `packing.keys.keys_of`.
        resize: make the shorter side of larger images so many pixels long. Of a mask, a file of one channel without
            loss beside an image in colour, each pixel keeps a value that it had.
        quality: 1..100, of JPEG and WebP that are encoded again; 90 with `resize`. None without it: no encoding.
        map: a function of an encoded image that gives another. It runs before `decoded`, in place of `resize`. A run
            goes on with the same code alone, and of an object with the same attributes, or the same `facts` if it has
            an attribute of that name.
        tokens: a tokenizer's file: samples get `tokens.npy`, int64 (n,).
        text: suffix of the text that `tokens` is of.
        decoded: images as pixels, binary PPM.
        layout: folders that the shards lie in, as stripes or in turn; a relative one is beside the manifest. They must
            be there. None: each shard is a file beside the manifest.
        workers: threads, a shard each. None: as many as there are CPUs, at most 8.
        engine: "threads" of this process, or "ray": a task per shard on a cluster, whose machines see the same source
            and the same `out`; `workers` is then how many tasks at a time. The set is the same.
        tell: hears how far it is, every tenth of a second.

    Raises:
        ConfigError: an argument that is not allowed, a place that cannot be written, one that holds something else.
        SourceDeniedError: a shard cannot be written to its disk.
        StateError: a set of that name is under way with other options.
        SourceChangedError: it is under way of another source.
        SourceError: records cannot be read.
    """
    options: dict[str, Any] = {"members": members, "keys": keys, "resize": resize, "quality": quality, "map": map}
    options |= {"tokens": tokens, "text": text, "decoded": decoded}
    more: dict[str, Any] = {"layout": layout, "workers": workers, "engine": engine}
    if to != "tar" and keys != "auto":
        raise _of_tar("keys", to)
    return pack_some(source, out, to=to, shard_bytes=shard_bytes, tell=tell, **more, **options)


def pack_some(  # noqa: PLR0913  an option each
    source: Any,
    out: str | os.PathLike[str],
    *,
    present: Present | None = None,
    to: str = "tar",
    shard_bytes: int | None = None,
    layout: Layout | None = None,
    workers: int | None = None,
    engine: str = "threads",
    tell: Tell | None = None,
    **options: Any,
) -> PackedSet:
    """`pack`, of the records at the positions of `present` alone; `options` are those that decide a sample's bytes."""
    as_source(source)
    check_options(to, engine, shard_bytes=shard_bytes, layout=layout, workers=workers, **options)
    packed, run = PackTask(source, options, present), _Run(tell or (lambda _: None))
    if to != "tar":
        packed = PackTask(source, {**options, "keys": "number"}, present)
        return run.convert(packed, out, to, shard_bytes or SHARD_BYTES[to])
    work = WorkFolder(*place(out))
    if engine == "ray":
        check_ray(packed)
    with work.alone():
        try:
            known = load_manifest(str(work.manifest))
        except SourceNotFoundError:
            known = None
        job = job_of(packed, work, shard_bytes or TAR_BYTES, layout, None if known is None else known.made)
        if known is None:
            done = run.pack(job, engine, workers)
        else:
            for k, shard in enumerate(known.shards):
                check_shard(job, k, shard)
            done = run.end(work.manifest, job.plan, Tally.of(known.made["tally"]), begun=job.plan.records)
        work.done()
        return done


def check_options(to: str = "tar", engine: str = "threads", **options: Any) -> None:
    """Raise ConfigError for options of `pack` that cannot be, or that records in the format `to` do not have."""
    for name, word, words in (("to", to, FORMATS), ("engine", engine, ENGINES)):
        if word not in words:
            raise ConfigError(f"{name}: must be one of {', '.join(words)}; found {word!r}")
    for name in ("workers", "shard_bytes"):
        if (number := options.get(name)) is not None and not (isinstance(number, int | np.integer) and number >= 1):
            raise ConfigError(f"{name}: must be 1 or more; found {number!r}; give a whole number")
    if to != "tar":
        for name, value in {"engine": engine, **options}.items():
            if name not in EVERYWHERE and value != USUAL.get(name):
                raise _of_tar(name, to)


def _of_tar(name: str, to: str) -> ConfigError:
    return ConfigError(f"{name}: is of tar shards; found to={to!r}; leave one of the two out")


class _Run:
    """How far a run is; `_lock` guards its figures, which several threads bring forward."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._lock, self._since = tell, threading.Lock(), time.monotonic()
        self._done = self._begun = self._written = 0

    def pack(self, job: PackJob, engine: str, workers: int | None) -> PackedSet:
        """Write what is missing of a set."""
        receipts = [finished(job, k) for k in range(len(job.plan))]
        counts = zip(np.diff(job.plan.borders).tolist(), receipts, strict=True)
        self._begun = self._done = sum(count for count, receipt in counts if receipt is not None)
        left = iter([k for k, receipt in enumerate(receipts) if receipt is None])
        waiting: dict[Future[Any], int] = {}
        pool = (RayTasks if engine == "ray" else Threads)(job, workers, self._advance)
        try:  # from here on: Ctrl-C while threads are begun must end those too
            while True:
                while len(waiting) < pool.at_once and (k := next(left, None)) is not None:
                    waiting[pool.submit(k)] = k
                if not waiting:
                    break
                for future in wait(waiting, TELL_SECONDS, FIRST_COMPLETED).done:
                    k = waiting.pop(future)
                    receipts[k] = pool.receipt(k, future)
                self._tell(self._so_far(job.work.manifest, job.plan))
        finally:
            pool.close()
        tally = finish(job, [receipt for receipt in receipts if receipt is not None])
        return self.end(job.work.manifest, job.plan, tally, self._begun)

    def convert(self, packed: PackTask, out: str | os.PathLike[str], to: str, size: int) -> PackedSet:
        """Write all of a folder of others."""

        def advance(records: int, written: int) -> None:
            self._advance(records, written)
            self._tell(self._so_far(conversion.out, conversion.plan))

        conversion = Conversion(packed, out, to, size, advance)
        conversion.run()
        return self.end(conversion.out, conversion.plan, conversion.tally)

    def end(self, path: Path, plan: Plan, tally: Tally, begun: int = 0) -> PackedSet:
        """What was done, which is told too."""
        self._done, self._begun = plan.records, begun
        end = replace(self._so_far(path, plan), tally=tally)
        self._tell(end)
        return end

    def _advance(self, records: int, size: int) -> None:
        with self._lock:
            self._done += records
            self._written += size

    def _so_far(self, path: Path, plan: Plan) -> PackedSet:
        seconds = time.monotonic() - self._since
        return PackedSet(path, plan.records, self._done, self._begun, len(plan), self._written, Tally(), seconds)


class Threads:
    """Shards by threads of this process; as `RayTasks` has it.

    at_once  how many shards are written at a time
    """

    def __init__(self, job: PackJob, workers: int | None, advance: Advance) -> None:
        self.at_once = workers or min(8, whole_cores())
        self._job, self._advance, self._stop = job, advance, threading.Event()
        self._pool = ThreadPoolExecutor(self.at_once, "dali-feed-pack")

    def submit(self, k: int) -> Future[Receipt]:
        """Have shard k written."""
        return self._pool.submit(write_shard, self._job, k, self._advance, self._stop)

    def receipt(self, _: int, future: Future[Receipt]) -> Receipt:
        """What became of a shard, once that is known; raises what went wrong."""
        return future.result()

    def close(self) -> None:
        """End what is under way: readers see the stop event."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
