"""A source's records into a set of tar shards.

The laws: the same source and options give the same bytes, whoever writes them, in how many threads, however often it
was killed; what is not whole has no name; and nothing is left out in silence.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_feed.cores import whole_cores
from dali_feed.errors import ConfigError
from dali_feed.packing.on_ray import PackTask, check_ray, write_on_ray
from dali_feed.packing.runner import Output, PackJob, Receipt, ShardMaker, WorkFolder, job_of
from dali_feed.records.tally import Tally
from dali_feed.storage.striping import Layout

__all__ = ["PackedSet", "Tell", "folder_at", "pack", "place"]


# Where what is written goes: an OUT that can be no place is said before a record is read.


def place(out: str | os.PathLike[str]) -> tuple[Path, str]:
    """The folder of a set, and its name. ConfigError where it can be no set's."""
    path = folder_at(out, "a folder, or FOLDER/NAME.dfset")
    if path.suffix == ".dfset":
        if path.is_dir():
            msg = f"out: {path} must be a set's manifest, a file; found a folder; give {path}/NAME.dfset"
            raise ConfigError(msg)
        return path.parent, path.stem
    if not path.name or path.suffix == ".tar":
        msg = f"out: must be a folder, or FOLDER/NAME.dfset; found {os.fspath(out)!r}; name the set, not a shard"
        raise ConfigError(msg)
    return path, path.name


def folder_at(out: str | os.PathLike[str], rule: str = "a folder") -> Path:
    """The absolute path of a place to write at; links stay as they are.

    Raises ConfigError where it has no name, which `os.path` takes for the current folder, and where a file or a folder
    that cannot be written stands in its way.
    """
    told = os.fspath(out)
    if not told.strip():
        msg = f"out: must be {rule}; found {told!r}, which has no name; for the current folder give '.'"
        raise ConfigError(msg)
    if "://" in told:
        msg = f"out: must be {rule} of this machine; found {told!r}; write to a disk or a mount, and copy it from there"
        raise ConfigError(msg)
    path = Path(os.path.abspath(told))  # noqa: PTH100  links stay as they are
    there = path.parent if path.suffix == ".dfset" else path
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        what = "a file" if there.exists() else "a broken link"
        msg = f"out: must be {rule}; found {told!r}, where {there} is {what}; give another name, or move it away"
        raise ConfigError(msg)
    if not os.access(there, os.W_OK | os.X_OK):
        msg = (
            f"out: must be {rule} that can be written; found {told!r}; {there} cannot be written; check its "
            "permissions and owner"
        )
        raise ConfigError(msg)
    return path


TELL_SECONDS = 0.1
SHARD_BYTES = 256_000_000
ENGINES = ("threads", "ray")


@dataclass(frozen=True, slots=True)
class PackedSet:
    """How far a run is, or what it did.

    path     the set's manifest
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
    members: Mapping[str, str] | Sequence[str] | None = None,
    shard_bytes: int = SHARD_BYTES,
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
    """Write the records of a source as a set: tar shards, an index beside each, and last the manifest.

    Called again after a kill it goes on, and ends with the same bytes; called again after the end it does nothing.

    Args:
        source: a ShardSet, FileList, ArrowRows or KafkaTopic, any other source, or a dataset of Hugging Face.
        out: `folder/NAME.dfset`, or a folder: NAME is then what the folder is called.
        members: of the source, in the order wanted; or suffix -> member. None: all that there are.
        shard_bytes: about so many bytes of each shard; they have as many records each as can be.
        keys: "auto", "own" or "number": what samples are called, see `packing.keys.keys_of`.
        resize: make the shorter side of larger images so many pixels long.
        quality: 1..100, of JPEG and WebP that are encoded again; 90 with `resize`. None without it: no encoding.
        map: a function of an encoded image that gives another. It runs before `decoded`, in place of `resize`.
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
        StateError: a set of that name is under way with other options.
        SourceChangedError: it is under way of another source.
        SourceError: records cannot be read.
    """
    work = WorkFolder(*place(out))
    told: dict[str, Any] = {"members": members, "keys": keys, "resize": resize, "quality": quality, "map": map}
    told |= {"tokens": tokens, "text": text, "decoded": decoded}
    if workers is not None and workers < 1:
        msg = f"workers: must be 1 or more; found {workers!r}"
        raise ConfigError(msg)
    if shard_bytes < 1:
        msg = f"shard_bytes: must be 1 or more; found {shard_bytes!r}"
        raise ConfigError(msg)
    if engine not in ENGINES:
        msg = f"engine: must be one of {', '.join(ENGINES)}; found {engine!r}"
        raise ConfigError(msg)
    asked = PackTask(source, told) if engine == "ray" else None
    if asked is not None:
        check_ray(asked)
    with work.held():
        output = Output(work, layout)
        known = output.known()
        job = job_of(source, work, shard_bytes, told, None if known is None else known.made, layout)
        if known is not None:
            output.checked(known)
        done = _Run(job, output, workers, tell or (lambda _: None), work, asked).run()
        work.done()
        return done


class _Run:
    """A run under way."""

    def __init__(
        self, job: PackJob, output: Output, workers: int | None, tell: Tell, work: WorkFolder, asked: PackTask | None
    ) -> None:
        self._job, self._output, self._workers, self._tell = job, output, workers, tell
        self._work, self._asked = work, asked
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._own = threading.local()
        self._makers: list[ShardMaker] = []
        self._written, self._done, self._begun_at = 0, 0, time.monotonic()
        self._begun = 0

    def run(self) -> PackedSet:
        """Write what is missing."""
        plan, output = self._job.plan, self._output
        if self._job.finished:
            self._begun = self._done = plan.records
        else:
            receipts = [output.there(plan.shard(k), k) for k in range(len(plan))]
            counts = (plan.borders[1:] - plan.borders[:-1]).tolist()
            self._begun = self._done = sum(n for n, receipt in zip(counts, receipts, strict=True) if receipt)
            todo = [k for k, receipt in enumerate(receipts) if receipt is None]
            if self._asked is None:
                self._write(todo, receipts)
            else:
                self._write_on_ray(self._asked, todo, receipts)
            output.finish(self._job, [receipt for receipt in receipts if receipt is not None])
        told = output.known()
        end = self._so_far(Tally() if told is None else Tally.of(told.made["tally"]))
        self._tell(end)
        return end

    def _write(self, todo: list[int], receipts: list[Receipt | None]) -> None:
        pool = ThreadPoolExecutor(self._workers or min(8, whole_cores()), "dali-feed-pack")
        try:  # from here on: Ctrl-C while threads are begun must end those too
            waiting: set[Future[None]] = {pool.submit(self._one, k, receipts) for k in todo}
            while waiting:
                ended, waiting = wait(waiting, TELL_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    future.result()
                self._tell(self._so_far(Tally()))
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            for maker in self._makers:
                maker.close()

    def _write_on_ray(self, asked: PackTask, todo: list[int], receipts: list[Receipt | None]) -> None:
        borders = self._job.plan.borders

        def done(k: int, receipt: Receipt) -> None:
            receipts[k] = receipt
            self._advance(int(borders[k + 1] - borders[k]), receipt.size)
            self._tell(self._so_far(Tally()))

        write_on_ray(self._job, self._work, asked, todo, self._workers, done, self._output.layout)

    def _one(self, k: int, receipts: list[Receipt | None]) -> None:
        maker: ShardMaker | None = getattr(self._own, "maker", None)
        if maker is None:
            maker = self._own.maker = ShardMaker(self._job.contents, self._job.snapshot, self._job.plan, self._stop)
            with self._lock:
                self._makers.append(maker)
        receipts[k] = self._output.write(k, self._job.plan.shard(k), maker, self._advance)

    def _advance(self, records: int, size: int) -> None:
        with self._lock:
            self._done += records
            self._written += size

    def _so_far(self, tally: Tally) -> PackedSet:
        plan, seconds = self._job.plan, time.monotonic() - self._begun_at
        path = self._output.manifest
        return PackedSet(path, plan.records, self._done, self._begun, len(plan), self._written, tally, seconds)
