"""Batches: cut from the lanes' chunks, and repaired when a decoder refuses a record late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.bad_records import BadRecord, Letter, Quarantine
from dali_feed.columns.array import Room, Scaled
from dali_feed.columns.column import Column
from dali_feed.columns.columns import Columns
from dali_feed.engines.engine import Pixels, Work
from dali_feed.errors import ConfigError
from dali_feed.feed.lane import Draw, Piece
from dali_feed.feed.window import Window
from dali_feed.records.pieces import Pieces, join, take
from dali_feed.records.slabs import Reused
from dali_feed.transforms.program import Program

if TYPE_CHECKING:
    from dali_feed.engines.device.cuda import Device


MIX = "mix "  # and a name of `Mixed`'s: what goes with a batch that is mixed

ColumnsOf = Callable[[dict[str, Any], int], dict[str, Any]]  # what was kept of a batch of so many lanes -> its columns


@dataclass(slots=True)
class Due:
    """What is settled when the training loop takes a batch of a stream, and only then: until then it may be void.

    position    per partition that has moved since the batch before, where it stands behind this one
    generation  of the stream's progress when its records came
    slots       of its records, which the limit of bad ones counts
    bad         its bad records: slot, record, where it is, its dead letter if those are kept
    shown       False: none of its records is good, so the loop is not given it
    """

    position: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    slots: int = 0
    bad: list[tuple[int, BadRecord, str, Letter | None]] = field(default_factory=list)
    shown: bool = True


@dataclass(slots=True, weakref_slot=True)
class Batch(Pixels):
    """A batch as the engine gave it. It has `__dlpack__` for its finished images: `from_dlpack(batch)`.

    fields  by name the columns but the first image: arrays, lists of n values, named tuples, `Pixels` of an image
    ids     int64 (n,): the samples in the batch
    ok      bool (n,): False where another record replaces one that is absent or bad
    more    further views of the images; further image columns, in order; or what a user's pipeline gives after its
            first output
    companions  what else goes with it, arrays by name
    sent    on a GPU, those of them that can be sent to one, as tensors there, which are not to be given out
    lanes   of this rank; each has an equal part of the batch, one behind the other
    due     of a stream, what is settled when it is handed over
    """

    fields: dict[str, Any] = field(default_factory=dict)
    ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    ok: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    more: tuple[Pixels, ...] = ()
    companions: dict[str, NDArray[Any]] = field(default_factory=dict)
    sent: dict[str, Any] = field(default_factory=dict)
    lanes: int = 1
    due: Due | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def make_views(self) -> None:
        """Rows of bytes become lists of views, where they are not yet.

        The feed thread does it where the loop has batches enough to take; else the loop's thread, so that the feed
        thread goes on. A view takes a third of a microsecond with what the garbage collector adds, more than all else
        of a small record.
        """
        for name, values in self.fields.items():
            if isinstance(values, Pieces):
                self.fields[name] = values.views()


def _order(pieces: list[Piece]) -> NDArray[np.int64] | None:
    """Which row of the pieces end to end comes in each slot, int64; None where that is the slot itself."""
    if pieces[0].places is None:
        return None
    places = np.concatenate([piece.places for piece in pieces if piece.places is not None])
    return np.asarray(np.argsort(places, kind="stable"), np.int64)


@dataclass(slots=True)
class Course:
    """An epoch on its way: by what its random numbers are drawn, and what is counted of it. A stream has one."""

    epoch: int
    draw: Draw
    quarantine: Quarantine
    landed: int = 0  # slots


class Flight:
    """A batch on its way: which slots of which windows it holds, and the work an engine is given.

    With `same_size`, raises ConfigError where its images would come out in several sizes, here and when mended.
    """

    def __init__(self, pieces: list[Piece], course: Course, where: Callable[[int], str], *, same_size: bool) -> None:
        self.pieces, self.course, self._where = pieces, course, where
        self._order = _order(pieces)
        first = pieces[0].chunk
        self.rows: NDArray[np.int64] = self._whole([p.chunk.rows for p in pieces])
        self.ids: NDArray[np.int64] = self._whole([p.chunk.ids for p in pieces])
        self.ok: NDArray[np.bool_] = self._whole([p.chunk.ok for p in pieces])
        self.values = {k: self._whole([p.chunk.values[k] for p in pieces]) for k in first.values}
        rows = {k: self._whole([p.chunk.drawn[k] for p in pieces]) for k in first.drawn}
        images = {k: self._whole([p.chunk.images[k] for p in pieces]) for k in first.images}
        self.work = Work(self.ids, images, rows, self.values)
        self._size: Any = None
        if same_size:
            sizes = self._whole([p.chunk.sizes for p in pieces])
            self._size = sizes[0]
            for slot in np.flatnonzero((sizes != self._size).any(axis=1))[:1].tolist():
                raise self._several_sizes(sizes[slot], slot)

    def _several_sizes(self, size: NDArray[Any], slot: int) -> ConfigError:
        """The error for images of several sizes, which make no batch."""
        a, b = self._where(int(self.ids[0])), self._where(int(self.ids[slot]))
        view = int(np.flatnonzero(size != self._size)[0]) // 2  # of the image; there is one, but for several transforms
        here, there = (tuple(sizes[2 * view : 2 * view + 2].tolist()) for sizes in (self._size, size))
        return ConfigError(
            "transform: the images of a batch must come out in one size;"
            f" found {here} from {a} and {there} from {b}."
            " Add RandomResizedCrop(size), CenterCrop(size) or Resize((height, width))"
        )

    @property
    def epoch(self) -> int:
        """Whose it is."""
        return self.course.epoch

    def __len__(self) -> int:
        return len(self.rows)

    def _whole(self, chunks: list[Any]) -> Any:
        """Values of the batch, slot by slot, out of those of the chunks that its pieces are of."""
        if len(chunks) == 1 and self._order is None:
            return chunks[0][self.pieces[0].start : self.pieces[0].stop]
        whole = join([values[p.start : p.stop] for values, p in zip(chunks, self.pieces, strict=True)])
        return whole if self._order is None else take(whole, self._order)

    def place(self, slot: int) -> tuple[Window, int]:
        """The window of a slot of this batch, and the window's slot it is."""
        slot = slot if self._order is None else int(self._order[slot])
        for piece in self.pieces:
            if slot < len(piece):
                return piece.chunk.window, piece.chunk.first + piece.start + slot
            slot -= len(piece)
        msg = f"slot {slot} past the end of a batch of {len(self)}"
        raise IndexError(msg)

    def own_faults(self) -> list[tuple[int, BadRecord]]:
        """Slots whose own record is bad; absent ones have no fault; borrowed ones are reported by their own window."""
        faults: list[tuple[int, BadRecord]] = []
        for slot in np.flatnonzero(~self.ok).tolist():
            window, at = self.place(slot)
            row = int(window.order[at])
            if row in window.faults and not window.borrowed:
                faults.append((slot, window.bad_record(row)))
        return faults

    def refused(self, bad: dict[int, str]) -> list[tuple[int, BadRecord]]:
        """Slots whose payload the decoder refused."""
        payloads = {slot: self.place(slot)[0].payload(int(self.rows[slot])) for slot in bad}
        return [(slot, BadRecord(int(self.ids[slot]), why, "decode", payloads[slot])) for slot, why in bad.items()]

    def mend(self) -> list[int]:
        """Replace what the decoder refused by the rule of slots, with the random numbers of the new record.

        Gives the slots that changed; the work is another one then.
        """
        for slot, reason in self.work.bad.items():
            window, _ = self.place(slot)
            window.mark_bad(int(self.rows[slot]), reason)
        self.rows, self.ids, self.ok = self.rows.copy(), self.ids.copy(), self.ok.copy()
        self.values = {k: values.copy() for k, values in self.values.items()}
        rows = {k: v.copy() for k, v in self.work.rows.items()}
        images = {k: list(each) for k, each in self.work.payloads.items()}
        mended = [slot for slot in range(len(self)) if not self.place(slot)[0].usable[self.rows[slot]]]
        for slot in mended:
            window, at = self.place(slot)
            row, ok = window.deal(at, at + 1)
            self.rows[slot], self.ok[slot], self.ids[slot] = row[0], ok[0], window.ids[row[0]]
            for name, each in window.good_images(row).items():
                images[name][slot] = each[0]
            own = window.good_values(row)
            for name, values in own.items():
                self.values[name][slot] = values[0]
            fresh, sizes = self.course.draw(window.sizes(row), window.ids[row], window.turn, own)
            for key, values in fresh.items():
                rows[key][slot] = values[0]
            if self._size is not None and slot == mended[0] and len(mended) == len(self):
                self._size = sizes[0]  # there is no other image that it must be like
            if self._size is not None and (sizes[0] != self._size).any():
                raise self._several_sizes(sizes[0], slot)
        self.work = Work(self.ids, images, rows, self.values)
        return mended

    def done(self, columns_of: ColumnsOf, lanes: int = 1) -> Batch:
        """The finished batch, of so many lanes; its windows learn that these slots have left the engine.

        `columns_of` makes columns of what was kept, while the memory of their views is still there.
        """
        work, further = self.work, [*self.work.payloads][1:]
        first, *more = work.outputs or [Pixels(None)]
        named = dict(zip(further, more, strict=bool(further)))
        fields = columns_of(self.values | work.columns | named, lanes)
        for piece in self.pieces:
            piece.chunk.window.retire(len(piece))
        work.release()  # else its memory would not serve again before the next batch lands
        return Batch(first.images, first.tail, fields, self.ids, self.ok, tuple(more), lanes=lanes, device=first.device)


# Arrays that go with the images of a batch: made, and sent to a GPU, by the feed thread.
#
# The law: when the training loop takes a batch, no random number is left to draw, and nothing is copied from memory
# that would make its thread wait for the GPU.


Companions = Callable[[Batch, int], Mapping[str, NDArray[Any]]]


def none(batch: Batch, epoch: int) -> Mapping[str, NDArray[Any]]:
    """The default: nothing goes with a batch."""
    del batch, epoch
    return {}


class Uploads:
    """Adds to each batch what goes with it: `companions` of (batch, epoch). Used by one thread at a time."""

    def __init__(self, companions: Companions, device: Device | None = None) -> None:
        self._companions, self.device, self._parcels = companions, device, None
        self._rehearsed = set[object]()  # the kinds of batches that the training loop need not wait for
        self.room: Room = Reused()  # memory for a batch's arrays
        if device is not None:
            from dali_feed.engines.device.parcel import Parcels  # torch: there since an engine was made

            self._parcels = Parcels(device)
            self.room = self._parcels.room

    def __call__(self, batch: Batch, epoch: int) -> None:
        """Call it before `batch` is handed over: it is complete then, on a GPU too.

        Errors of a companion go on; EngineError where something cannot be sent.
        """
        batch.companions = dict(self._companions(batch, epoch))
        if self._parcels is None or self.device is None:
            return
        batch.device, shown = self.device, (batch, *batch.more)
        try:
            tails, batch.sent = self._parcels.with_tails([each.tail for each in shown], batch.companions)
            for each, tail in zip(shown, tails, strict=True):
                each.tail = tail
                self._rehearse(each, self.device, mixed=f"{MIX}partner" in batch.sent)
            self._rehearse_scaled(batch.fields, self.device)
            self.device.wait()
        except RuntimeError as error:
            from dali_feed.engines.failures import engine_error

            subject, what = "feed", "what goes with a batch cannot be sent to the GPU"
            raise engine_error(subject, what, error, self.device.number) from error

    def _rehearse(self, pixels: Pixels, device: Device, *, mixed: bool) -> None:
        """Have ready what finishes such a batch, before the training loop asks for the first of its kind."""
        if pixels.tail is None:
            return
        from dali_feed.engines.finish import rehearse, size_of

        kind = pixels.tail.finish, size_of(pixels.images), mixed
        if kind not in self._rehearsed:
            rehearse(pixels.images, pixels.tail, device, mixed=mixed)
            self._rehearsed.add(kind)

    def _rehearse_scaled(self, fields: Mapping[str, Any], device: Device) -> None:
        """The same of what is left of columns."""
        for values in fields.values():
            if isinstance(values, Scaled) and (kind := values.rows.dtype) not in self._rehearsed:
                from dali_feed.engines.finish import rehearse_scaled

                rehearse_scaled(values, device)
                self._rehearsed.add(kind)


# A batch without records: what a rank is given that has none, so that it need not keep the others waiting.
#
# Its dtypes and shapes are those that transforms and columns say; where they do not, those of the batch before it.


class EmptyBatches:
    """Makes them. Used by one thread at a time."""

    def __init__(self, program: Program, columns: Columns, device: int | None, companions: Companions) -> None:
        self._program, self._columns, self._device, self._companions = program, columns, device, companions
        self._open = not program.sized  # sizes are learnt from batches
        self._seen: dict[int, Any] = {}
        self._fields: dict[str, Any] | None = None

    def saw(self, batch: Batch) -> None:
        """A batch with records: later empty ones are as it is."""
        if self._fields is None:
            self._fields = {name: _none_of(values) for name, values in batch.fields.items()}
        if self._open and self._program.outputs and batch.tail is None:
            from dali_feed.engines.finish import like  # torch: there since an engine made images

            self._seen = {view: like(each.images) for view, each in enumerate((batch, *batch.more))}

    def batch(self) -> Batch:
        """A batch of no rows."""
        images: list[Pixels] = []
        if self._program.outputs:
            from dali_feed.engines.finish import no_images

            images = [Pixels(each, None) for each in no_images(self._program, self._device, self._seen)]
        more = iter(images[1:])
        columns = self._columns
        known = self._fields or {name: _column(columns.by_name[name]) for name in columns.others}  # none seen yet
        fields = {name: next(more) if isinstance(values, Pixels) else values for name, values in known.items()}
        first = images[0].images if images else None
        batch = Batch(first, None, fields, np.zeros(0, np.int64), np.zeros(0, bool), tuple(images[1:]))
        batch.companions = dict(self._companions(batch, 0))
        return batch


def _none_of(values: Any) -> Any:
    """No rows of such values."""
    if isinstance(values, Scaled):
        return np.zeros((0, *values.rows.shape[1:]), np.float32)
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*map(_none_of, values))
    if isinstance(values, Pixels):
        return values
    if isinstance(values, Pieces):
        return Pieces.none(0)
    return values[:0].copy() if isinstance(values, np.ndarray) else []


def _column(column: Column) -> Any:
    """No rows of a column, where it can say; a list where the first record is needed for that."""
    try:
        return _none_of(column.of_lanes(column.read([], {}), 1))
    except Exception:  # noqa: BLE001  it may be a user's own, and need not think of no records
        return []
