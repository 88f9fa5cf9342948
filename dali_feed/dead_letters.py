"""Dead letters: what is kept of a record that cannot be used, and the contract of where it is kept.

A dead letter is identified by its `source` and its `where`. Writing it again replaces it, so that a run which was
killed may write again what it had written; none is ever lost.

On their way from the feed thread to there (`Outbox`) the law is: a letter that was posted is written, or an error says
so. A thread of its own writes, so the feed thread waits for no disk and no broker; `drain` is what a state waits for. A
failure stays until it is tried again, and no letter behind it is written before it. Waits end: after PATIENCE seconds
without a letter written they are an error, whatever the folder or topic does.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dali_feed import sync
from dali_feed.errors import ClosedError, DataLostError, DeadLetterError, SourceChangedError
from dali_feed.records.source import Original, Records, Stage


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: a bad record, with the reason.

    where                the record's coordinates as people write them
    source               one line that names the source
    partition, position  what `sample` packs
    stage                what refused it: the source (a label, a codec, a cut file), the header check, the decoder
    reason               why
    payload              the image's bytes as they were read
    original             the whole record, if its source keeps more than the payload
    gone                 True if the source keeps whole records, but had lost this one when the letter was written
    """

    where: str
    source: str
    partition: int
    position: int
    sample: int
    stage: Stage
    reason: str
    payload: bytes
    original: Original | None = None
    gone: bool = False


class LetterWriter(Protocol):
    """Writes dead letters for one thread."""

    def write(self, letters: Sequence[Letter]) -> None:
        """Write them; when it returns they are durable. Raises DeadLetterError within a time of its own."""
        ...

    def close(self) -> None:
        """Release files and connections. Safe to call twice."""
        ...


class DeadLetters(Protocol):
    """Where dead letters are kept. Nothing is opened before the first write or read."""

    def writer(self) -> LetterWriter:
        """A new writer."""
        ...

    def read(self) -> Iterator[Letter]:
        """Every dead letter once; the last one, if several have the same `source` and `where`."""
        ...


def with_original(letter: Letter, source: Records) -> Letter:
    """The letter with the record in full, or with `gone` set where the record is gone; as it is for other sources."""
    if not source.originals:
        return letter
    try:
        original = source.original(letter.partition, letter.position)
    except (DataLostError, SourceChangedError):
        original = None
    return dataclasses.replace(letter, original=original, gone=original is None)


log = logging.getLogger("dali_feed")
PATIENCE = 120.0  # longer than the time limits of the folder and the topic
HELD_BYTES = 64 << 20  # payloads that wait; with more the feed thread waits
AT_ONCE = 64  # letters of one write: a broker and a disk are waited for once
AT_ONCE_BYTES = 16 << 20
SLICE_S = 0.1  # how often a wait looks whether the pass has ended


def _never() -> bool:
    return False


class Outbox:
    """The feed thread posts dead letters here, the training loop waits for them; with `letters` None none are kept.

    heard  whether the training loop has been given the failure, which `close` then only logs. Set by whoever gives it
    """

    def __init__(self, source: Records, letters: DeadLetters | None, *, patience: float = PATIENCE) -> None:
        self._source, self._letters, self._patience = source, letters, patience
        self._changed = sync.Condition()
        self._queue: deque[Letter] = deque()
        self._bytes = self._posted = self._written = 0
        self._failure: DeadLetterError | None = None
        self.heard = self._closed = False
        self._thread: sync.Thread | None = None

    def __str__(self) -> str:
        return str(self._letters)

    @property
    def wanted(self) -> bool:
        """Whether letters are kept at all."""
        return self._letters is not None

    def post(self, letter: Letter, stopped: Callable[[], bool] = _never) -> None:
        """Hand a letter over. Waits only where HELD_BYTES wait already.

        Raises DeadLetterError as `check` does; ClosedError behind `close`, where nobody is left to write it.
        """
        with self._changed:
            self._wait(lambda: self._bytes < HELD_BYTES or self._failure is not None, stopped)
            self._tell()
            if self._closed:
                msg = "dead letters: the loader is closed"
                raise ClosedError(msg)
            if self._thread is None:
                run, of = self._run, (self._letters,)
                thread = sync.Thread(target=run, args=of, name="dali_feed-letters", daemon=True)
                thread.start()  # where the system has none to give, no letter is waited for
                self._thread = thread
            self._queue.append(letter)
            self._posted += 1
            self._bytes += len(letter.payload)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise DeadLetterError where a letter could not be written."""
        with self._changed:
            self._tell()

    def retry(self) -> None:
        """Try again what failed."""
        with self._changed:
            self._failure, self.heard = None, False
            self._changed.notify_all()

    def drain(self, stopped: Callable[[], bool] = _never) -> None:
        """Wait until all that has been posted is durable. Raises DeadLetterError where it will not be."""
        with self._changed:
            target = self._posted
            self._wait(lambda: self._written >= target or self._failure is not None or self._closed, stopped)
            if (left := target - self._written) > 0:
                self._tell()
                raise DeadLetterError(f"{self._letters}: {left} dead letters were not written before close()")

    def close(self) -> None:
        """Wait for what is on its way, and end the thread. Raises DeadLetterError that the loop has not heard of."""
        with self._changed:
            if self._closed or self._thread is None:
                self._closed = True
                return
        try:
            self.drain()
        except DeadLetterError as error:
            if not self.heard:
                raise
            log.error("%d dead letters were not written: %s", self._posted - self._written, error)  # noqa: TRY400
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join(SLICE_S * 20)

    def _tell(self) -> None:
        if self._failure is not None:
            raise DeadLetterError(str(self._failure)) from self._failure

    def _wait(self, done: Callable[[], bool], stopped: Callable[[], bool]) -> None:
        """Wait, with the condition held; patience counts from the last letter written."""
        written, since = self._written, sync.monotonic()
        while not done():
            if stopped():
                msg = "dead letters: the pass has ended"
                raise ClosedError(msg)
            if self._written > written:
                written, since = self._written, sync.monotonic()
            seconds = sync.monotonic() - since
            if seconds >= self._patience:
                msg = (
                    f"{self._letters}: dead letters must be durable before a state counts their batches; "
                    f"{self._posted - self._written} wait and none was written for {seconds:.1f} s; look at what it "
                    "writes to"
                )
                raise DeadLetterError(msg)
            self._changed.wait(min(SLICE_S, self._patience - seconds))

    def _run(self, letters: DeadLetters) -> None:
        writer: LetterWriter | None = None
        done: list[Letter] = []
        try:
            while batch := self._next():
                try:
                    done = [with_original(letter, self._source) for letter in batch]
                    writer = writer or letters.writer()
                    writer.write(done)
                except DeadLetterError as error:
                    self._fail(error)
                except BaseException as error:  # noqa: BLE001  the trainer must hear of it, whatever it is
                    what = f"{type(error).__name__}: {error}"
                    msg = f"{batch[0].where}: its dead letter must be written to {self._letters}; found {what}"
                    failure = DeadLetterError(msg)
                    failure.__cause__ = error
                    self._fail(failure)
                else:
                    self._done(len(batch))
        finally:
            if writer is not None:
                writer.close()

    def _next(self) -> list[Letter]:
        """The letters to write next, left in the queue until they are; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._queue and self._failure is None))
            if self._closed:
                return []
            batch: list[Letter] = []
            size = 0
            for letter in self._queue:
                size += len(letter.payload)
                if batch and (size > AT_ONCE_BYTES or len(batch) == AT_ONCE):
                    break
                batch.append(letter)
            return batch

    def _done(self, count: int) -> None:
        with self._changed:
            self._bytes -= sum(len(self._queue.popleft().payload) for _ in range(count))
            self._written += count
            self._changed.notify_all()

    def _fail(self, error: DeadLetterError) -> None:
        log.error("dead letters: %s", error)
        with self._changed:
            self._failure = error
            self._changed.notify_all()
