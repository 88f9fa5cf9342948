"""`dali-feed verify` and `dead-letters`: a whole source looked at, and what was kept of it looked at again.

The law: every position is looked at once, whoever reads it, and what is in memory does not grow with the source. Each
record is read and screened as a training run would, and decoded where that is wanted. Threads take runs of a few MB in
turn, each with a reader of its own; their parts are counted in the source's own order.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

from dali_feed import packing
from dali_feed.bad_records import DeadLetters, Letter, Tally, with_original
from dali_feed.cli.inspect import look, no_labels
from dali_feed.cli.judging import HEADERS, NO_LABEL, all_members, judging
from dali_feed.cli.members import size_of
from dali_feed.cli.targets import Access, dead_letters_at, sources
from dali_feed.cli.view import Report, plural, show, size_text, steps
from dali_feed.columns.columns import Columns
from dali_feed.columns.request import open_reader
from dali_feed.errors import ConfigError
from dali_feed.external_sources import MDS
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Block, Extents, Fault, Reader, Snapshot, Source, unpack_id
from dali_feed.screen.screen import MAX_PIXELS, screen

RUN_BYTES = 8 << 20  # of a read
RUN = 8192  # positions of a read at most: the mean size is an estimate
LOOKED_AT = 256  # records that say whether a topic has labels
AT_ONCE = 64  # letters
PATIENCE = 2.0  # seconds for a thread to end in
_NOTHING = memoryview(b"")
_WHO = {"source": "source", "screen": "screen", "decode": "decoder"}
Refusal = Callable[[memoryview], str | None]


@dataclass(slots=True)
class Survey(Tally):
    """What became of records that were looked at: `records` are the good ones, `size` bytes of all of them.

    labelled  good records that have a label
    letters   of bad records, where they are wanted, until they are written
    """

    labelled: int = 0
    letters: list[Letter] = field(default_factory=list)


def verify_all(
    targets: Sequence[str], access: Access, *, decode: bool = False, dead_letter: str | None = None, readers: int = 4
) -> int:
    """Go over each target, show what it holds, and return how many records are bad, and files of sets damaged."""
    letters = None if dead_letter is None else dead_letters_at(dead_letter, access)
    sets = [target for target in targets if target.endswith(".dfset")]
    bad = sum(map(verify_set, sets))
    left = [target for target in targets if target not in sets or (decode and not bad)]
    for source in sources(left, access):
        images = judging(source) is not None
        if not images and decode:
            raise ConfigError(f"{source!r}: --decode is for images; found none; leave it out, and records are read")
        snapshot = source.snapshot()
        if isinstance(source, MDS) and (count := source.check_hashes()):
            show(Report(notes=[(f"  {count:,} shard{plural(count)} without a hash that can be checked", "yellow")]))
        with steps(snapshot.positions) as advance:
            survey = verify(source, snapshot, decode=decode, letters=letters, readers=readers, advance=advance)
        show(report_of(source, snapshot, survey, decoded=decode, images=images))
        bad += survey.failed
    return bad


def verify_set(target: str) -> int:
    """Read every byte of a set, show what is not as it was packed, and return how many files that are."""
    from dali_feed.storage.manifest import load_manifest

    with steps(sum(shard.size for shard in load_manifest(target).shards), "bytes") as advance:
        result = packing.verify(target, advance=advance)
    count = len(result.damages)
    shards = f"{result.shards:,} with {result.samples:,} samples, {size_text(result.size)}"
    report = Report(f"set {target}", [("shards", shards), ("damaged", f"{count:,} file{plural(count)}")])
    report.notes += [(f"    {damage}", "yellow") for damage in result.damages]
    show(report)
    return count


def report_of(source: Source, snapshot: Snapshot, survey: Survey, *, decoded: bool, images: bool) -> Report:
    """Counts, and each kind of fault with its first places."""
    how = "decoded" if decoded else "by their headers" if images else "read"
    count = survey.records + survey.failed
    facts = [
        ("records", f"{count:,} of {snapshot.positions:,} positions; {survey.absent:,} absent"),
        ("payloads", size_text(survey.size)),
        ("good", f"{survey.records:,}, {how}"),
        ("bad", f"{survey.failed:,}"),
    ]
    if images and survey.labelled == 0 < survey.records:
        facts.append(("labels", no_labels(source)))
    report = Report(snapshot.source, facts)
    report.fail(survey)
    report.note("")
    return report


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
    letters: DeadLetters | None = None,
    readers: int = 4,
    advance: Callable[[int], None] = lambda _: None,
) -> Survey:
    """Look at every record: images are screened, and decoded with `decode`; of a source without any records are read.

    `letters` keeps bad records, `advance` hears of positions that are done.
    """
    columns = judging(source)
    if columns is not None:
        if HEADERS in columns.names and LABEL in look(source, columns, snapshot, LOOKED_AT).fields:
            columns = judging(source, labelled=True) or columns
        columns.settle_by(source)
    judge = _Judge(source, snapshot.source, columns, keep=letters is not None)
    survey, writer = Survey(), None if letters is None else letters.writer()
    try:
        with closing(_parts(judge, runs(snapshot), decode=decode, readers=readers)) as parts:
            for part in parts:
                for first in range(0, len(part.letters), AT_ONCE):
                    if writer is not None:
                        writer.write(part.letters[first : first + AT_ONCE])
                survey.add(part)
                survey.labelled += part.labelled
                advance(part.records + part.failed + part.absent)
    finally:
        if writer is not None:
            writer.close()
    return survey


@dataclass(frozen=True)
class _Judge:
    """Decides which records of a block are bad; by these columns, or where they are None by whether they can be read.

    pool  what reads are put into; all threads share it
    """

    _source: Source
    _name: str
    _columns: Columns | None
    keep: bool
    pool: SlabPool = field(default_factory=SlabPool)

    def reader(self, stop: threading.Event) -> Reader:
        """A thread's own."""
        if self._columns is None:
            return open_reader(self._source, all_members(self._source), stop)
        return open_reader(self._source, self._columns.members, stop, self._columns.optional)

    def read(self, reader: Reader, extents: Extents, refusal: Refusal | None) -> Survey:
        """The survey of a read."""
        lease = self.pool.lease()
        try:
            block = reader.read(extents, lease)
            return self.part(block if self._columns is None else self._columns(block), refusal)
        finally:
            lease.release()

    def part(self, block: Block, refusal: Refusal | None) -> Survey:
        """A block's own survey, with letters of its bad records where they are wanted."""
        absent = set(block.absent_rows())
        part = Survey(absent=len(absent))
        images = None if self._columns is None else block.values[str(self._columns.image)]
        for row in range(len(block.ids)):
            if row in absent:
                continue
            payload = (None if images is None else images.payloads[row]) or _NOTHING
            part.size += size_of(block, row) if images is None else len(payload)
            fault = block.faults.get(row)
            if fault is None and images is not None and refusal is not None:
                reason = refusal(images[row].payload)
                fault = None if reason is None else Fault("decode", reason)
            if fault is None:
                part.records += 1
                part.labelled += LABEL in block.values and block.values[LABEL][row] != NO_LABEL
            else:
                self._bad(part, int(block.ids[row]), fault, payload)
        return part

    def _bad(self, part: Survey, sample: int, fault: Fault, payload: memoryview) -> None:
        partition, position = unpack_id(sample)
        where = self._source.where(partition, position)
        part.fail(fault.reason, where)
        if self.keep:
            letter = Letter(where, self._name, partition, position, sample, fault.stage, fault.reason, bytes(payload))
            part.letters.append(with_original(letter, self._source))


def _parts(judge: _Judge, every: Iterator[Extents], *, decode: bool, readers: int) -> Generator[Survey, None, None]:
    """A part for each, in order, at most two per thread at a time; raises what a thread raised.

    Threads read and judge. They are daemons: a read or a decoder that hangs does not keep the process.
    """
    stop, ahead = threading.Event(), deque[Future[Survey]]()
    todo: queue.SimpleQueue[tuple[Extents, Future[Survey]] | None] = queue.SimpleQueue()

    def work() -> None:
        reader, refusal = None, None
        try:
            while (task := todo.get()) is not None and not stop.is_set():
                extents, part = task
                try:
                    refusal = refusal or (_refusal(stop) if decode else None)
                    reader = reader or judge.reader(stop)
                    part.set_result(judge.read(reader, extents, refusal))
                except BaseException as error:  # noqa: BLE001  the main thread must hear of it, whatever it is
                    part.set_exception(error)
        finally:
            if reader is not None:
                reader.close()

    def ask(count: int) -> None:
        for extents in islice(every, count):
            ahead.append(Future())
            todo.put((extents, ahead[-1]))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(readers)]
    try:  # from here on: an interrupt may come while threads are begun
        ask(2 * readers)
        for thread in threads:
            thread.start()
        while ahead:
            part = ahead.popleft().result()
            ask(1)
            yield part
    finally:
        stop.set()  # which readers see
        for _ in threads:
            todo.put(None)
        for thread in threads:
            if thread.is_alive():
                thread.join(PATIENCE)


def _refusal(stop: threading.Event) -> Refusal:
    """What decodes in this thread, for which the end of the interpreter waits: native code cannot be stopped."""
    from dali_feed.engines.host.decode import new_decoder, refusal
    from dali_feed.engines.workers import linger

    linger(threading.current_thread())  # by itself: nobody else may come to it, as when it was just begun
    decoder = new_decoder()
    return lambda payload: None if stop.is_set() else refusal(decoder, payload)


def list_letters(target: str, access: Access, *, check: bool) -> int:
    """Show each dead letter of a folder or a topic; with `check`, return how many are still bad."""
    letters = dead_letters_at(target, access)
    show(Report(str(letters)))
    stages: Counter[str] = Counter()
    bad = 0
    for letter in letters.read():
        stages[letter.stage] += 1
        reason = _still_bad(letter) if check else letter.reason
        bad += reason is not None
        word, style = ("good", "green") if reason is None else ("bad ", "yellow")
        gone = "; the record itself was gone" if letter.gone else ""
        more = f"({letter.stage}, {size_text(len(letter.payload))}{gone})"
        show(Report(notes=[(f"  {word}  {letter.where}: {reason or letter.reason}  {more}", style)]))
    total = sum(stages.values())
    by_stage = ", ".join(f"{count:,} by the {_WHO[stage]}" for stage, count in sorted(stages.items()))
    summary = f"{total:,} dead letter{plural(total)}{': refused ' + by_stage if total else ''}"
    again = f"; {total - bad:,} good now, {bad:,} still bad" if check else ""
    show(Report(notes=[(f"  {summary}{again}", "")]))
    return bad if check else 0


def _still_bad(letter: Letter) -> str | None:
    """Check it again; decode it too, where the decoder had refused it. A reason of the source stays."""
    payload = memoryview(letter.payload)
    reason = screen([payload], MAX_PIXELS).reasons.get(0)
    if reason is None and letter.stage == "decode":
        from dali_feed.engines.host.decode import new_decoder, refusal

        reason = refusal(new_decoder(), payload)
    if reason is None and letter.stage == "source":
        reason = f"{letter.reason}; the image itself is good"
    return reason
