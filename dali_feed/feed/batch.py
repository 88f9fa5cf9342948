"""Batches: cut from the lanes' chunks, and repaired when a decoder refuses a record late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.bad_records import Fault
from dali_feed.columns.array import Room
from dali_feed.dead_letters import Letter
from dali_feed.engines.engine import Result, Tail, Work
from dali_feed.errors import ConfigError
from dali_feed.feed.lane import Draw, Piece, Prepare
from dali_feed.feed.window import WindowRecords
from dali_feed.records.pieces import Pieces
from dali_feed.records.slabs import Reused

if TYPE_CHECKING:
    from dali_feed.engines.gpu.parcel import Parcels

__all__ = ["Batch", "Beside", "Companions", "Due", "Flight", "Made", "Pixels", "none"]


# Pixels: images as an engine gave them, with the finish step that is left. They support DLPack.


@dataclass(slots=True)
class Pixels:
    """Images of a batch: `from_dlpack(pixels)` gives them finished.

    images  dense; with `tail`, uint8 NHWC on the device, for the finish step; without, an array with `__dlpack__`
    """

    images: Any
    tail: Tail | None

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, number) of the device, as DLPack counts them: (1, 0) is the CPU, (2, n) a CUDA device."""
        kind, number = self.images.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """The finished images; without a copy where nothing is left to finish. On a GPU they are ready on `stream`.

        (n, 3, height, width), or (n, height, width, 3) with `Feed(layout="NHWC")`. `stream`: as DLPack says. Each call
        that has to finish makes a new array. So does each for what a user's graph left in DALI's memory on a GPU:
        DALI would wait for the device to release it.
        """
        from dali_feed.engines.gpu.device import is_foreign  # torch: there since an engine made them

        if self.tail is None and not is_foreign(self.images):
            return self.images.__dlpack__(**({} if stream is None else {"stream": stream}), **options)
        from dali_feed.engines.gpu.finish import exported  # CuPy: on a GPU only

        return exported(self.images, self.tail, self.__dlpack_device__()[1], stream, options)


Made = Callable[[dict[str, Any], int], dict[str, Any]]  # fields of a batch of so many lanes -> its columns


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
    bad: list[tuple[int, Fault, str, Letter | None]] = field(default_factory=list)
    shown: bool = True


@dataclass(slots=True, weakref_slot=True)
class Batch(Pixels):
    """A batch as the engine gave it. It has `__dlpack__` for its finished images: `from_dlpack(batch)`.

    fields  per field of the source an array or list of n values; `Pixels` of an image column behind the first
    ids     int64 (n,): the samples in the batch
    ok      bool (n,): False where another record replaces one that is absent or bad
    more    further views of the images; further image columns, in order; or what a user's pipeline gives after its
            first output
    beside  what else goes with it, arrays by name
    sent    on a GPU, those of them that can be sent to one: `dali_feed.engines.gpu.parcel.Sent`
    due     of a stream, what is settled when it is handed over
    """

    fields: dict[str, Any]
    ids: NDArray[np.int64]
    ok: NDArray[np.bool_]
    more: tuple[Pixels, ...] = ()
    beside: dict[str, NDArray[Any]] = field(default_factory=dict)
    sent: dict[str, Any] = field(default_factory=dict)
    due: Due | None = None

    def __len__(self) -> int:
        return len(self.ids)


def _joined(parts: list[Any]) -> Any:
    """Arrays, lists or `Pieces` end to end; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Pieces) for part in parts):
        return Pieces.joined(parts)
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [value for part in parts for value in part]


def _order(pieces: list[Piece]) -> NDArray[np.int64] | None:
    """Which row of the pieces end to end comes in each slot, int64; None where that is the slot itself."""
    if pieces[0].places is None:
        return None
    places = np.concatenate([piece.places for piece in pieces if piece.places is not None])
    return np.asarray(np.argsort(places, kind="stable"), np.int64)


class Flight:
    """A batch on its way: which slots of which windows it holds, and the work an engine is given.

    With `same_size`, raises ConfigError where its images would come out in several sizes, here and when mended.
    """

    def __init__(self, pieces: list[Piece], where: Callable[[int], str], *, same_size: bool) -> None:
        self.pieces, self._where = pieces, where
        self._order = _order(pieces)
        first = pieces[0].chunk
        self.rows: NDArray[np.int64] = self._whole([p.chunk.rows for p in pieces])
        self.ids: NDArray[np.int64] = self._whole([p.chunk.ids for p in pieces])
        self.ok: NDArray[np.bool_] = self._whole([p.chunk.ok for p in pieces])
        self.fields = {k: self._whole([p.chunk.fields[k] for p in pieces]) for k in first.fields}
        arrays = {k: self._whole([p.chunk.parameters.arrays[k] for p in pieces]) for k in first.parameters.arrays}
        payloads = self._whole([p.chunk.payloads for p in pieces])
        self.work = Work(payloads, arrays, self.fields, self.ids)
        self._size: Any = None
        if same_size:
            sizes = self._whole([p.chunk.parameters.sizes for p in pieces])
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

    def __len__(self) -> int:
        return len(self.rows)

    def _whole(self, chunks: list[Any]) -> Any:
        """Values of the batch, slot by slot, out of those of the chunks that its pieces are of."""
        if len(chunks) == 1 and self._order is None:
            return chunks[0][self.pieces[0].start : self.pieces[0].stop]
        whole = _joined([values[p.start : p.stop] for values, p in zip(chunks, self.pieces, strict=True)])
        if self._order is None:
            return whole
        taken = isinstance(whole, np.ndarray | Pieces)
        return whole[self._order] if taken else [whole[k] for k in self._order.tolist()]

    def place(self, slot: int) -> tuple[WindowRecords, int]:
        """The window of a slot of this batch, and the window's slot it is."""
        slot = slot if self._order is None else int(self._order[slot])
        for piece in self.pieces:
            if slot < len(piece):
                return piece.chunk.window, piece.chunk.first + piece.start + slot
            slot -= len(piece)
        msg = f"slot {slot} past the end of a batch of {len(self)}"
        raise IndexError(msg)

    def own_faults(self) -> list[tuple[int, Fault]]:
        """Slots whose own record is bad; absent ones have no reason; borrowed ones are reported by their own window."""
        faults: list[tuple[int, Fault]] = []
        for slot in np.flatnonzero(~self.ok).tolist():
            window, at = self.place(slot)
            row = int(window.order[at])
            if row in window.reasons and not window.borrowed:
                faults.append((slot, window.fault(row)))
        return faults

    def refused(self, bad: dict[int, str]) -> list[tuple[int, Fault]]:
        """Slots whose payload the decoder refused."""
        payloads = {slot: self.place(slot)[0].payloads[int(self.rows[slot])] for slot in bad}
        return [(slot, Fault(int(self.ids[slot]), why, "decode", payloads[slot])) for slot, why in bad.items()]

    def mend(self, bad: dict[int, str], draw: Draw, prepare: Prepare) -> list[int]:
        """Replace what the decoder refused by the rule of slots, with the random numbers of the new record.

        Gives the slots that changed.
        """
        for slot, reason in bad.items():
            window, _ = self.place(slot)
            window.condemn(int(self.rows[slot]), reason)
        self.rows, self.ids, self.ok = self.rows.copy(), self.ids.copy(), self.ok.copy()
        self.fields = {k: values.copy() for k, values in self.fields.items()}
        arrays = {k: v.copy() for k, v in self.work.arrays.items()}
        self.work = Work(list(self.work.payloads), arrays, self.fields, self.ids)
        mended: list[int] = []
        for slot in range(len(self)):
            window, at = self.place(slot)
            if window.usable[self.rows[slot]]:
                continue
            mended.append(slot)
            row, ok = window.deal(at, at + 1)
            self.rows[slot], self.ok[slot], self.ids[slot] = row[0], ok[0], window.ids[row[0]]
            self.work.payloads[slot] = prepare(window.good_payloads(row))[0]
            for name, values in window.good_fields(row).items():
                self.fields[name][slot] = values[0]
            fresh = draw(window.sizes[row], window.ids[row], window.turn)
            for name, values in fresh.arrays.items():
                self.work.arrays[name][slot] = values[0]
            if self._size is not None and (fresh.sizes[0] != self._size).any():
                raise self._several_sizes(fresh.sizes[0], slot)
        return mended

    def done(self, result: Result, made: Made | None = None, lanes: int = 1) -> Batch:
        """The finished batch, of so many lanes; its windows learn that these slots have left the engine.

        `made` makes the fields into columns, while the memory of their views is still there.
        """
        more = tuple(Pixels(images, tail) for images, tail in result.more)
        named = dict(zip(result.names, more, strict=bool(result.names)))
        fields = self.fields if made is None else made(self.fields | result.columns | named, lanes)
        for piece in self.pieces:
            piece.chunk.window.retire(len(piece))
        return Batch(result.images, result.tail, fields, self.ids, self.ok, more)


# Arrays that go with the images of a batch: made, and sent to a GPU, by the feed thread.
#
# The law: when the training loop takes a batch, no random number is left to draw, and nothing is copied from memory
# that would make its thread wait for the GPU.


Companions = Callable[[Batch, int], Mapping[str, NDArray[Any]]]


def none(batch: Batch, epoch: int) -> Mapping[str, NDArray[Any]]:
    """The default: nothing goes with a batch."""
    del batch, epoch
    return {}


class Beside:
    """Adds to each batch what goes with it: `companions` of (batch, epoch). Used by one thread at a time."""

    def __init__(self, companions: Companions, parcels: Parcels | None, device: int | None = None) -> None:
        self._companions, self._parcels, self._device = companions, parcels, device
        self.room: Room = Reused() if parcels is None else parcels.room  # memory for a batch's arrays

    @classmethod
    def on(cls, device: int | None, companions: Companions) -> Beside:
        """For the batches of a CUDA device, or of the CPU."""
        if device is None:
            return cls(companions, None)
        from dali_feed.engines.gpu.device import Uploads
        from dali_feed.engines.gpu.parcel import Parcels

        return cls(companions, Parcels(Uploads(device)), device)

    def __call__(self, batch: Batch, epoch: int) -> None:
        """Call it before `batch` is handed over. Errors of a companion go on; EngineError where it cannot be sent."""
        batch.beside = dict(self._companions(batch, epoch))
        if self._parcels is not None:
            shown = (batch, *batch.more)
            try:
                tails, batch.sent = self._parcels.with_tails([each.tail for each in shown], batch.beside)
            except RuntimeError as error:
                from dali_feed.engines.failures import engine_error

                subject, what = "feed", "what goes with a batch cannot be sent to the GPU"
                raise engine_error(subject, what, error, self._device) from error
            for each, tail in zip(shown, tails, strict=True):
                each.tail = tail
