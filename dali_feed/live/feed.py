"""LiveFeed: batches of a source that never ends, with a state that says how far the loop is.

The counterpart of `dali_feed.feed.Feed`, which is for sources that end. `dali_feed.DataLoader` adds torch tensors and
torch's argument names to both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

from dali_feed import sync
from dali_feed.bad_records import Quarantine
from dali_feed.columns.column import Column
from dali_feed.columns.columns import Columns
from dali_feed.columns.request import Request, RequestReader
from dali_feed.dead_letters import Outbox
from dali_feed.draws import check_seed
from dali_feed.engines.choose import compile_images
from dali_feed.errors import ClosedError, ConfigError, DeadLetterError, WaitError
from dali_feed.feed.batch import Batch, Companions, Due, none
from dali_feed.feed.describe import running
from dali_feed.feed.machine import Machine
from dali_feed.feed.meter import Meter
from dali_feed.feed.passes import Life
from dali_feed.feed.stats import Stats
from dali_feed.live import state as states
from dali_feed.live.gather import Gatherer
from dali_feed.live.run import EmptyBatches, LiveRun
from dali_feed.options import BadRecords, Decode, Tuning, check_groups
from dali_feed.plan.batching import Dealt, Shares
from dali_feed.records.gauges import summed
from dali_feed.records.live import LiveReader, Progress, Stream
from dali_feed.records.source import unpack_id

__all__ = ["LiveFeed"]


# The batches of a stream, as the training loop sees them: each one that is taken moves the position.
#
# The law: only the newest iterator gives batches, and an iterator that is left loses nothing: the next one goes on
# behind the last batch that the loop was handed.


def _itself(batch: Batch) -> Batch:
    return batch


class LiveBatches:
    """An iterator without an end."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed

    def __iter__(self) -> LiveBatches:
        return self

    def __len__(self) -> int:
        msg = "loader: a stream does not end, so it has no number of batches"
        raise TypeError(msg)

    def at_end(self) -> bool:
        """Never."""
        return False

    def take(self, timeout: float | None = None, make: Callable[[Batch], Any] = _itself) -> Any:
        """What `make` makes of the next batch; WaitError, with the pass going on, after `timeout` seconds.

        Asking says that the batch before is finished. The position moves when the batch is made: one that the loop
        never got, because `make` raised, does not count. One that became void on its way is dropped.
        """
        run, progress = self._feed.running(self)
        ends = None if timeout is None else sync.monotonic() + timeout
        while True:
            progress.asked()
            try:
                batch = run.take(None if ends is None else max(0.0, ends - sync.monotonic()))
                due = batch.due or Due()
                void = due.generation != progress.generation  # it costs nothing to look before it is made
                made = None if void or not due.shown else make(batch)
                taken = not void and progress.took(due.position, due.generation, lambda due=due: run.settle(due))  # type: ignore[misc]
            except WaitError:
                raise
            except BaseException as error:
                if not run.cut:  # else another thread has ended it, and a newer iterator may be under way
                    self._feed.failed()
                if isinstance(error, StopIteration):  # which would end the loop without a word
                    msg = "collate_fn, transform: must not raise StopIteration"
                    raise ConfigError(msg) from error
                raise
            if taken and due.shown:
                self._feed.meter.given(len(batch))
                return made

    def __next__(self) -> Batch:
        batch: Batch = self.take()
        return batch


PATIENCE = 5.0  # seconds that a state waits for the source to say where it begins
WINDOW = 10_000  # records in a row that BadRecords(limit=...) is of, where window= does not say

log = logging.getLogger("dali_feed")


class LiveFeed(Dealt):
    """Batches of a stream, for ever.

    Args:
        source: where records come from: a `Stream` of `dali_feed.records.live`, as `KafkaStream`.
        batch_size: records per batch on this rank, at most.
        transform: torchvision transforms, a DALI graph function, or None; a list of transforms gives several
            views of each image, the further ones in `Batch.more`.
        decode: which engine makes images, how, and which are too large.
        device: a CUDA device's number, or None for the CPU.
        seed: of augmentation. A record's random numbers are those of epoch 0, whatever batch it comes in.
        rank, world_size: which part of the partitions this process takes.
        bad: what is done with records that cannot be used. A bad record's slot goes to the next good one of its batch;
            a batch without a good record is not handed over. `limit` is of any `window` records in a row, 10,000
            unless said.
        tuning: threads, prefetch, memory.
        columns: what a batch holds, by name or as a sequence, of `dali_feed.columns`; None: the source's own.

    Raises ConfigError for values that are not allowed; a SourceError, in its place, where records cannot be read.
    """

    def __init__(  # noqa: PLR0913  what a run is made of; tuning and policy come in groups
        self,
        source: Stream,
        batch_size: int = 1,
        *,
        transform: object = None,
        decode: Decode = Decode(),
        device: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        bad: BadRecords = BadRecords(),
        tuning: Tuning = Tuning(),
        columns: Mapping[str, Column] | Sequence[Column] | None = None,
    ) -> None:
        check_groups(decode=decode, bad=bad, tuning=tuning)
        self.decode, self.tuning = decode, tuning
        self.device, self.seed = device, check_seed(seed)
        if self.tuning.cache is not None:
            msg = "Tuning(cache=...): keeps records for later epochs, and a stream has no epochs. Leave it out"
            raise ConfigError(msg)
        if tuning.readers == "auto":
            msg = 'Tuning(readers="auto"): a stream has one reader for all its partitions. Leave readers out'
            raise ConfigError(msg)
        self.source, self._name = source, repr(source)
        self.columns = Columns.of(source, columns, transform, decode)
        self._request = Request.of(source, self.columns.members, self.columns.optional)
        self.ranks = Shares(batch_size, rank, world_size, lanes=world_size)
        self.bad = replace(bad, window=bad.window or WINDOW)
        self.program = compile_images(self.columns, decode, device)
        self.companions: Companions = none  # what a loader wants with each batch; the feed thread asks for it
        self._outbox = Outbox(self.source, self.bad.dead_letter)
        self._machine = Machine(
            source, self.columns, self.program, self.batch_size, device, decode, self.tuning, self._outbox
        )
        self._life = Life()
        self._lock = sync.Lock()
        self._at: dict[str, Any] | None = None  # a mark that was loaded
        self._progress = Progress(self._letters_kept)
        self._run: LiveRun | None = None
        self._leaving: LiveRun | None = None  # a run that is over, while its thread is still inside a decoder
        self._token: LiveBatches | None = None

    def where(self, sample: int) -> str:
        """The coordinates of the record of that id, as people write them."""
        return self.source.where(*unpack_id(sample))

    # What a stream does not have.

    def __len__(self) -> int:  # noqa: PLE0303  there is none
        self._endless("batches")

    @property
    def batches_left(self) -> int:
        """A TypeError."""
        self._endless("batches left")

    @property
    def epoch(self) -> int:
        """0: a stream has none, and its random numbers are those of epoch 0."""
        return 0

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: a stream has no epochs."""

    def last_step(self) -> None:
        """There is none."""

    def _endless(self, what: str) -> NoReturn:
        msg = f"{self._name}: a stream does not end, so it has no number of {what}"
        raise TypeError(msg)

    # Batches.

    def check(self) -> None:
        """Raise ClosedError after close(), ConfigError in another process."""
        self._life.check()

    def __iter__(self) -> LiveBatches:
        """Batches from where the loop is; an iterator before this one gives no more, and what it had read is kept."""
        self.check()
        if self._run is None:
            self._begin()
        self._token = LiveBatches(self)
        return self._token

    def _begin(self) -> None:
        if self._leaving is not None:
            self._leaving.wait()
            self._leaving = None
        self._outbox.retry()
        at = self._mark()
        progress = self._progress = Progress(self._letters_kept)
        self._at = at
        setting = self._machine.parts(
            self._name, self.seed, 0, owner=self, where=self.where, companions=self.companions
        )
        request, stage, memory = self._request, self._machine.stage, self.tuning.memory_bytes

        def opened(stop: sync.Event) -> LiveReader:
            reader = self.source.live(
                at, request.members, rank=self.rank, world_size=self.world_size, stop=stop, progress=progress
            )
            return RequestReader(reader, request, stage)

        slabs = self._machine.slabs
        gatherer = Gatherer(self._name, opened, self.source.pace, self.batch_size, progress, slabs, memory)
        empty = EmptyBatches(self.program, self.columns, self.device, self.companions)
        quarantine = Quarantine(self.bad, WINDOW, endless=True)
        self._run = LiveRun(setting, gatherer, progress, self.columns, empty, quarantine)
        try:
            self._run.begin()
        except BaseException:  # Ctrl-C: a pass that has not begun gives no batches
            self._end()
            raise

    def running(self, token: LiveBatches) -> tuple[LiveRun, Progress]:
        """What gives the batches of that iterator. ClosedError where it is not the newest, or the run is over."""
        self._life.check()
        if token is not self._token or self._run is None:
            ended = "an error, a newer iterator of the same loader or load_state_dict() has ended this one"
            msg = f"iterator: {ended}; call iter(loader) again"
            raise ClosedError(msg)
        return self._run, self._progress

    @property
    def meter(self) -> Meter:
        """Counts what the loop is handed."""
        return self._machine.meter

    def _letters_kept(self, seconds: float) -> bool:
        """Wait so long for the dead letters of what the loop was handed; whether they are kept."""
        ends = sync.monotonic() + seconds
        try:
            self._outbox.drain(lambda: sync.monotonic() >= ends)
        except (ClosedError, DeadLetterError):
            return False
        return True

    def failed(self) -> None:
        """A batch is missing: the next iterator reads it again."""
        self._end()

    def _end(self) -> None:
        run, self._token = self._run, None
        if run is not None:
            run.close()  # which an interrupt may end: it is closed again then
            self._leaving = run if run.alive else self._leaving
        self._run = None

    # State.

    def _mark(self) -> dict[str, Any] | None:
        """Where the loop is; None where nothing has been read, as before the first iterator."""
        position = self._progress.state(0.0 if self._run is None else PATIENCE)
        if position is None:
            return self._at
        return self.source.mark(position, rank=self.rank, world_size=self.world_size)

    def state_dict(self) -> dict[str, Any]:
        """The loop's position on this rank: plain JSON. Counts batches handed over, not prefetched.

        Waits until the dead letters of those batches are on disk or in their topic; DeadLetterError where that fails.
        """
        mark = self._mark()
        self._outbox.drain()  # behind the mark: a batch that another thread takes meanwhile is not in it
        info = {
            "engine": self.program.engine,
            **self.decode.informing,
            "rank": self.rank,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
        }
        return states.pack(self._made_for(), mark, info)

    def _made_for(self) -> dict[str, Any]:
        return states.made_for(self.seed, self.decode)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where `state` was taken on this rank, or where a list of all ranks' states was, at any world size.

        Raises StateError that lists every difference where it was made for something else; what is under way goes on
        then.
        """
        self._life.check()
        found = states.check(state)
        states.compare(found, self._made_for())
        several = not isinstance(state, Mapping)
        marks = [each["stream"] for each in found]
        at = self.source.merged(marks) if several and None not in marks else marks[0]
        self._end()
        self._at, self._progress = at, Progress(self._letters_kept)

    def commit(self) -> None:
        """Publish how far the loop is, where the source can: call it after a checkpoint, or when results are written.

        It says that all batches that the loop was handed are finished; their dead letters are kept before. A failure is
        one warning in the log.
        """
        self._life.check()
        run = self._run
        position = self._progress.done()
        reader = None if run is None else run.gatherer.reader
        if reader is None or not position:
            return
        try:
            self._outbox.drain()
            reader.commit(position)
        except Exception as error:  # noqa: BLE001  what is published must not end a loop
            said = str(error)  # a record in a log must not keep the frames, and the connection, alive
            log.warning("commit: %s. The loop goes on, and the next commit includes this one", said)

    # The rest.

    def describe(self) -> str:
        """What the batches are made of."""
        pace = self.source.pace
        timeout = "when full" if pace.timeout is None else f"after {pace.timeout:g} s at most"
        size = "" if pace.size is None else f", of {pace.size:,} bytes at most"
        idle = "" if pace.idle is None else f"; empty ones after {pace.idle:g} s without a record"
        return "\n".join(
            (
                f"{self._name}: a stream",
                f"batches: up to {self.batch_size:,} per rank, {self.world_size} ranks, {timeout}{size}{idle}",
                f"engine: {running(self.program.engine, self.device, self.program.recipe)}",
            )
        )

    def stats(self) -> Stats:
        """Counts and waits since the start; empty batches do not count."""
        found, run = self._machine.stats(), self._run
        kafka = None if run is None else summed([run.gatherer.reader])
        return found if kafka is None else replace(found, kafka=kafka.at_positions(self._progress.state(0) or {}))

    def close(self) -> None:
        """Stop all threads and release engine and connections. Safe to call twice and in any state.

        Waits for dead letters on their way; DeadLetterError where they cannot be written and no error has said so yet.
        """
        if self._life.closed or not self._life.here:
            return
        self._life.closed = True
        self._end()
        leaving = self._leaving
        self._machine.close((lambda call: call()) if leaving is None else leaving.at_end)
        self.companions = none  # it belongs to a loader, which holds this feed
        self._outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
