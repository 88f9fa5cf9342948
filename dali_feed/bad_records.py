"""Bad records: what the user wants done with them, their count and limit, their reasons, and the dead letters of them.

How they are kept is told to a place by a protocol, `DeadLetters`, and where that is, is no business of this file.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import logging
import re
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

from dali_feed import sync
from dali_feed.checks import whole
from dali_feed.errors import (
    BadRecordError,
    BadRecordLimitError,
    ClosedError,
    ConfigError,
    DataLostError,
    DeadLetterError,
    SourceChangedError,
)
from dali_feed.records.source import Original, Records, Stage

# Dead letters: what is kept of a record that cannot be used, and the contract of where it is kept.
#
# A dead letter is identified by its `source` and its `where`. Writing it again replaces it, so that a run which was
# killed may write again what it had written; none is ever lost.
#
# On their way from the feed thread to there (`Outbox`) the law is: a letter that was posted is written, or an error
# says so. A thread of its own writes, so the feed thread waits for no disk and no broker; `drain` is what a state waits
# for. A failure stays until it is tried again, and no letter behind it is written before it. Waits end: after PATIENCE
# seconds without a letter written they are an error, whatever the folder or topic does.


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
    """Where dead letters are kept. Nothing is opened before the first write or read.

    One that has `check_source(source)` is asked by a loader whether the letters of a source can be kept there.
    """

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

    def __init__(self, source: Records, letters: DeadLetters | None) -> None:
        if (check := getattr(letters, "check_source", None)) is not None:
            check(source)
        self._source, self._letters = source, letters
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
            if seconds >= PATIENCE:
                msg = (
                    f"{self._letters}: dead letters must be durable before a state counts their batches; "
                    f"{self._posted - self._written} wait and none was written for {seconds:.1f} s; look at what it "
                    "writes to"
                )
                raise DeadLetterError(msg)
            self._changed.wait(min(SLICE_S, PATIENCE - seconds))

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


KEPT = 100
LOGGED = 20
REMEMBERED = 10_000  # bad records of a stream
_CALL = "__call__"


@dataclass(frozen=True, slots=True)
class BadRecords:
    """How many records may be bad, and what happens to them.

    action       "replace": another good record that is in memory takes its place in the batch; "raise": a
                 BadRecordError
    limit        how many of any `window` samples in a row may be bad: an int, or an exact Fraction; None: any number.
                 One more ends the run with a BadRecordLimitError. Kafka offsets that hold no record are replaced too,
                 and do not count.
    floor        so many may be bad even if a Fraction allows fewer: a hundredth of 50 images is none. Fraction(0) still
                 allows none; for an int the floor has no effect
    window       the limit holds for so many samples in a row, as one rank gets them; None: for its whole epoch. A
                 resumed run counts from where it resumes
    dead_letter  where bad records are kept, once per record, epoch and rank: a `DeadLetterFolder` or a `Producer` of
                 `dali_feed.external_sources`; None: nowhere
    """

    limit: int | Fraction | None = Fraction(1, 100)
    action: Literal["replace", "raise"] = "replace"
    dead_letter: DeadLetters | None = None
    window: int | None = None
    floor: int = 3

    def __post_init__(self) -> None:
        if self.action not in ("replace", "raise"):
            msg = f'BadRecords(action=...): must be "replace" or "raise"; found {self.action!r}'
            raise ConfigError(msg)
        if self.dead_letter is not None and not callable(getattr(self.dead_letter, "writer", None)):
            msg = (
                "BadRecords(dead_letter=...): must be a DeadLetterFolder, a Producer or None;"
                f" found {self.dead_letter!r}"
            )
            raise ConfigError(msg)
        if self.window is not None:
            whole("BadRecords(window=...) other than None", self.window, 1)
        whole("BadRecords(floor=...)", self.floor, 0)
        if self.limit is None:
            return
        if isinstance(self.limit, Fraction):
            if not 0 <= self.limit <= 1:
                msg = f"BadRecords(limit=...): a Fraction must lie in 0..1; found {self.limit}"
                raise ConfigError(msg)
            return
        if isinstance(self.limit, float | str):
            msg = (
                "BadRecords(limit=...): must be a number of records or an exact share, Fraction(1, 100) for one in a"
                f" hundred; found {self.limit!r}"
            )
            raise ConfigError(msg)
        whole("BadRecords(limit=...) other than a Fraction or None", self.limit, 0)

    def allowed(self, slots: int) -> int | None:
        """How many of `slots` samples in a row may be bad; None: any number."""
        if isinstance(self.limit, Fraction) and self.limit:
            return max(self.floor, int(self.limit * slots))
        return None if self.limit is None else int(self.limit)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be used: its sample id, why, which stage refused it, its payload if in memory."""

    sample: int
    reason: str
    stage: Stage
    payload: memoryview | None


class Quarantine:
    """The bad records of one epoch on one rank. A record counts once, at the slot where it was found bad first.

    Of an `endless` stream those of the last windows are remembered.
    """

    def __init__(self, policy: BadRecords, slots: int, *, endless: bool = False) -> None:
        self._policy = policy
        self._window = policy.window or slots
        self._allowed = policy.allowed(self._window)
        self._at: list[int] = []  # the slots of the bad ones, ascending
        self._seen: set[int] = set()
        self._endless, self._count = endless, 0
        self.recent: deque[tuple[str, str]] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return self._count

    def add(self, sample: int, slot: int, where: str, reason: str, post: Callable[[], None] = lambda: None) -> None:
        """Take a record in and, if it is new, `post` it. Raises BadRecordError or BadRecordLimitError by the policy.

        `slot` counts the slots that this rank has been given; batches come in order, the faults of one in any.
        """
        if sample in self._seen:
            return
        self._seen.add(sample)
        self._count += 1
        self.recent.append((where, reason))
        post()
        if self._policy.action == "raise":
            raise BadRecordError(where, reason)
        if self._endless and len(self._seen) > REMEMBERED:  # a record of a stream comes in one batch alone
            self._seen = {sample}
            del self._at[: bisect.bisect(self._at, slot - 2 * self._window)]
        if self._count <= LOGGED:
            log.warning("bad record replaced: %s: %s", where, reason)
        if self._allowed is not None and self._too_many(slot, self._allowed):
            shown = "; ".join(f"{w}: {r}" for w, r in list(self.recent)[-5:])
            msg = (
                f"bad records: at most {self._allowed} of {self._of()} slots may be bad"
                f" ({self._limit()}); found {self._found(slot)}, the last of them {shown}."
                " Look at the source, or raise BadRecords(limit=...)"
            )
            raise BadRecordLimitError(msg, tuple(self.recent))

    def _found(self, slot: int) -> int:
        """How many are bad in the window that ends with this slot; of an epoch all."""
        return bisect.bisect(self._at, slot) - bisect.bisect(self._at, slot - self._window)

    def _limit(self) -> str:
        """How the limit was given, for the message."""
        limit, floor = self._policy.limit, self._policy.floor
        by_floor = isinstance(limit, Fraction) and int(limit * self._window) < self._allowed == floor  # type: ignore[operator]
        return f"limit={limit!s}, floor={floor}" if by_floor else f"limit={limit!s}"

    def _of(self) -> str:
        return f"this epoch's {self._window}" if self._policy.window is None else f"any {self._window} successive"

    def _too_many(self, slot: int, allowed: int) -> bool:
        """Whether a window that this slot lies in holds more than `allowed`."""
        k = bisect.bisect(self._at, slot)
        self._at.insert(k, slot)
        firsts = range(max(0, k - allowed), min(k + 1, len(self._at) - allowed))
        return any(self._at[n + allowed] - self._at[n] < self._window for n in firsts)


def place_of(error: BaseException, function: Any) -> str:
    """`file:line in name` of the user's `function`, which this frame called: where it raised, or else where it begins.

    The innermost frame of the file that the function is in, for what it calls of others is not the user's to mend.
    Empty where that is not Python.
    """
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), _CALL, None), "__code__", None)
    if code is None:
        return ""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][1:]
    inside = [(each, line) for each, line in frames if each.co_filename == code.co_filename]
    place, line = inside[-1] if inside else (code, code.co_firstlineno)
    return f"{place.co_filename}:{line} in {place.co_name}"


# What became of the records of a run: how many are good, how many hold nothing, and which failed for which reason.


SHOWN = 3  # places of each kind of failure
KINDS = 100  # of failures that are told apart
LETTERS = 300  # of one
OTHERS = "other reasons"


def kind_of(reason: str) -> str:
    """A reason without what differs from record to record: numbers and quoted bytes."""
    plain = re.sub(r" \(starts with .*\)", "", reason, flags=re.DOTALL)
    plain = re.sub(r"b?\"[^\"]*\"|b?'[^']*'", "...", plain)
    return re.sub(r"\b[0-9a-fx]*\d[0-9a-fx]*\b", "N", plain)


@dataclass(slots=True)
class Failure:
    """Records that failed for one reason: how many, and coordinates and reason of the first."""

    count: int = 0
    first: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What became of records.

    records   that a run wrote, or found to be good
    size      bytes of their values
    absent    positions of the source that hold no record
    failures  by reason: `count`, and in `first` coordinates and reason of the first
    """

    records: int = 0
    size: int = 0
    absent: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Records that were not written, or cannot be used."""
        return sum(each.count for each in self.failures.values())

    def fail(self, reason: str, where: str) -> None:
        """Count a failure."""
        failure = self._failure(kind_of(reason))
        failure.count += 1
        if len(failure.first) < SHOWN:
            failure.first.append(f"{where}: {reason}"[:LETTERS])

    def add(self, other: Tally) -> None:
        """Count what another has counted, of records that come after those of this one."""
        self.records, self.size = self.records + other.records, self.size + other.size
        self.absent += other.absent
        for reason, more in other.failures.items():
            failure = self._failure(reason)
            failure.count += more.count
            failure.first = (failure.first + more.first)[:SHOWN]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        failures = {reason: [kind.count, kind.first] for reason, kind in self.failures.items()}
        return {"records": self.records, "bytes": self.size, "absent": self.absent, "failures": failures}

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> Tally:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        failures = {
            str(reason): Failure(int(count), [str(where) for where in first])
            for reason, (count, first) in counts["failures"].items()
        }
        return cls(int(counts["records"]), int(counts["bytes"]), int(counts["absent"]), failures)

    def _failure(self, kind: str) -> Failure:
        known = kind in self.failures or len(self.failures) < KINDS
        return self.failures.setdefault(kind if known else OTHERS, Failure())
