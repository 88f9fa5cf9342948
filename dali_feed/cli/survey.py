"""Goes over a whole source: every record is read and screened as a training run would, and decoded where asked for.

The law: every position is looked at once, whoever reads it, and what is held does not grow with the
source. Threads take runs of a few MB in turn, each with a reader of its own; the report keeps counts and, of each
kind of fault, the first places in the source's own order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from dali_feed.cli.findings import look, size_of
from dali_feed.cli.labels import missing_label, odd_label
from dali_feed.cli.report import Report
from dali_feed.cli.targets import HEADERS
from dali_feed.errors import ClosedError
from dali_feed.quarantine.letters import DeadLetters, Letter, Stage, with_original
from dali_feed.records.source import LABEL, Block, Extents, Snapshot, Source, unpack_id
from dali_feed.screen.screen import MAX_PIXELS, screen

__all__ = ["runs", "verify"]

RUN_BYTES = 8 << 20  # of a read
RUN = 8192  # positions of a read at most: the mean size is an estimate
LOOKED_AT = 256  # records that say whether a topic has labels
AT_ONCE = 64
_NOTHING = memoryview(b"")


def runs(snapshot: Snapshot) -> Iterator[Extents]:
    """Everything, in runs of about RUN_BYTES."""
    step = min(RUN, max(1, RUN_BYTES // snapshot.record_bytes))
    for partition, (start, stop) in enumerate(zip(snapshot.starts.tolist(), snapshot.stops.tolist(), strict=True)):
        for first in range(start, stop, step):
            yield Extents.one(partition, first, min(first + step, stop))


def verify(
    source: Source,
    snapshot: Snapshot,
    *,
    decode: bool = False,
    images: bool = True,
    letters: DeadLetters | None = None,
    readers: int = 4,
    advance: Callable[[int], None] = lambda _: None,
) -> Report:
    """Look at every record; `advance` is called with the number of positions done.

    images  whether there are any to be screened; else records are read, and what the source says of them counts
    """
    labelled = images and LABEL in look(source, snapshot, LOOKED_AT).fields
    judge = _Judge(source, snapshot.source, labelled=labelled, images=images, keep=letters is not None)
    report, writer = Report(), None if letters is None else letters.writer()
    work = _Work(source, runs(snapshot), judge, decode=decode, readers=readers)
    try:
        for part in work.parts():
            for first in range(0, len(part.letters), AT_ONCE):
                if writer is not None:
                    writer.write(part.letters[first : first + AT_ONCE])
            report.add(part)
            advance(part.records + part.absent)
    finally:
        work.close()
        if writer is not None:
            writer.close()
    return report


class _Judge:
    """Decides which records of a block are bad."""

    def __init__(self, source: Source, name: str, *, labelled: bool, images: bool, keep: bool) -> None:
        self._images = images
        self._source, self._name, self._labelled, self._keep = source, name, labelled, keep

    def part(self, block: Block, refusal: Callable[[memoryview], str | None] | None) -> Report:
        """A block's own report, with letters of its bad records where they are wanted."""
        found = Report()
        screened = screen(block.payloads, MAX_PIXELS).reasons if self._images else {}
        for row, held in enumerate(block.payloads):
            if held is None and row not in block.faults:
                found.absent += 1
                continue
            payload = _NOTHING if held is None else held
            found.records += 1
            found.size += len(payload) if self._images else size_of(block, row)
            stage: Stage = "source"
            reason = block.faults.get(row) or self._label(block, row)
            if reason is None:
                stage, reason = "screen", screened.get(row)
            if reason is None and refusal is not None:
                stage, reason = "decode", refusal(payload)
            if reason is None:
                found.labelled += LABEL in (block.fields[HEADERS][row] if HEADERS in block.fields else block.fields)
            else:
                self._bad(found, int(block.ids[row]), stage, reason, payload)
        return found

    def _label(self, block: Block, row: int) -> str | None:
        """A Kafka record's label, where its topic has labels; other sources report theirs as faults."""
        if HEADERS not in block.fields:
            return None
        headers = block.fields[HEADERS][row]
        if LABEL in headers:
            return odd_label(headers[LABEL])
        return missing_label() if self._labelled else None

    def _bad(self, found: Report, sample: int, stage: Stage, reason: str, payload: memoryview) -> None:
        partition, position = unpack_id(sample)
        where = self._source.where(partition, position)
        found.blame(sample, where, reason)
        if self._keep:
            letter = Letter(where, self._name, partition, position, sample, stage, reason, bytes(payload))
            found.letters.append(with_original(letter, self._source))


class _Work:
    """Threads that read and judge; their parts come out as they are done."""

    def __init__(self, source: Source, todo: Iterator[Extents], judge: _Judge, *, decode: bool, readers: int) -> None:
        self._source, self._todo, self._judge, self._decode = source, todo, judge, decode
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._done: queue.Queue[Report | BaseException | None] = queue.Queue(maxsize=readers)
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(readers)]

    def parts(self) -> Iterator[Report]:
        """All parts; raises what a thread raised. Whoever closes it is known by now: an interrupt may come here."""
        for thread in self._threads:
            thread.start()
        left = len(self._threads)
        while left:
            part = self._done.get()
            if isinstance(part, BaseException):
                raise part
            if part is None:
                left -= 1
            else:
                yield part

    def close(self) -> None:
        """End the threads; readers see the stop event."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2)

    def _put(self, item: Report | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._done.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def _run(self) -> None:
        reader = None
        try:
            refusal: Callable[[memoryview], str | None] | None = None
            if self._decode:
                from dali_feed.engines.host.decode import Trial
                from dali_feed.engines.lingering import linger

                linger(threading.current_thread())  # by itself: nobody else may come to it, as when it was just begun
                trial = Trial()

                def refusal(payload: memoryview) -> str | None:
                    return None if self._stop.is_set() else trial.refusal(payload)

            reader = self._source.reader(None, self._stop)
            while not self._stop.is_set():
                with self._lock:
                    extents = next(self._todo, None)
                if extents is None:
                    break
                block = reader.read(extents)
                try:
                    part = self._judge.part(block, refusal)
                finally:
                    block.payloads.clear()
                    block.lease.release()
                self._put(part)
            self._put(None)
        except ClosedError:
            self._put(None)
        except BaseException as error:  # noqa: BLE001  the main thread must hear of it, whatever it is
            self._put(error)
        finally:
            if reader is not None:
                reader.close()
