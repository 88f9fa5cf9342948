"""What a batch is made of, and the stage that makes it: a block of members becomes one of columns.

The law: row k stays row k. A column never sees a missing value: its `default` stands there, or the record is a bad one.
Bounded sources and streams go the same way, in the threads that read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.array import Array, Room
from dali_feed.columns.column import Bytes, Column, Faults
from dali_feed.columns.follow import Follower
from dali_feed.columns.image import Image, Images, drawn_as
from dali_feed.columns.request import Request, lacks, open_reader
from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.plan.order import canonical
from dali_feed.records import pieces as rows_of
from dali_feed.records.pieces import ArrayPieces, Pieces
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Fault, Reader, Records, Source

_LOOKED_AT = 64  # records, for the first that a column can be settled by

Fits = Callable[[NDArray[Any]], Mapping[int, str]]  # sizes of images -> why those of some rows cannot be transformed


class Columns:
    """What batches of a source hold: its columns by name, in order; threads share it.

    Attributes:
        by_name: all of them, with the loader's way to decode.
        reads: by column what is asked of the source.
        as_tuple: whether a batch is a tuple of them, not a dict.
        alone: whether it is not even that, but its one image.
        preset: whether they are the source's own.
        images: those that are images, in order.
        drawn_as: image column -> the one whose random numbers it takes.
        late: those that are made when their batch is run.
        lacks: by column what the source says of a record without its member, where it says anything.
        fits: by image column what tells which sizes its transform cannot take; the feed knows it.
    """

    def __init__(
        self,
        source: Records,
        columns: Mapping[str, Column] | Sequence[Column] | None = None,
        transform: object = None,
        decode: Decode = Decode(),
    ) -> None:
        """Name what batches of that source hold.

        Args:
            source: whose preset it is where nothing else is given.
            columns: by name, for batches that are dicts; a sequence for tuples; None: the source's preset.
            transform: of the preset's images.
            decode: how images are decoded, and which are refused.

        Raises:
            ConfigError: what are no columns; a transform beside `columns`, or for no image; draws of no image column;
                a follower of none; a member that no record can have.
        """
        self.preset = columns is None
        if columns is None:
            columns, self.as_tuple = preset_of(source, transform), not source.named
        elif transform is not None:
            msg = "transform: with columns=, each column has its own; write Image(member, transform) in columns"
            raise ConfigError(msg)
        else:
            self.as_tuple = not isinstance(columns, Mapping)
        if not isinstance(columns, Iterable):
            rule = "must name columns, as {'text': Text('txt')}, or be a sequence of them"
            raise ConfigError(f"columns: {rule}; found {columns!r}")
        named = dict(columns) if isinstance(columns, Mapping) else {str(k): each for k, each in enumerate(columns)}
        if not named:
            msg = "columns: must name at least one; found none. Leave columns out for what the source gives"
            raise ConfigError(msg)
        for name, column in named.items():
            if not isinstance(name, str):
                raise ConfigError(f"columns: each must have a text as its name; found {name!r}")
            if not isinstance(column, Column):
                msg = f"columns: {name!r} must be a class of dali_feed.columns such as Text('txt'); found {column!r}"
                raise ConfigError(msg)
        self.reads = {
            name: source.image_of(column.member) if column.stage == "screen" else column.member
            for name, column in named.items()
        }
        self.by_name = {name: column.decoding(decode) for name, column in named.items()}
        self.images = {name: column for name, column in self.by_name.items() if isinstance(column, Image)}
        self.drawn_as = drawn_as(self.images)
        self.alone = self.preset and self.as_tuple and len(named) == 1 and bool(self.images)
        self.late = {name: column for name, column in self.by_name.items() if isinstance(column, Bytes) and column.late}
        self.lacks = {name: reason for name, member in self.reads.items() if (reason := lacks(source, member))}
        self.fits: Mapping[str, Fits] = {}
        self._unit = source.unit
        self._lock = threading.Lock()  # guards that columns are settled once
        self._settled: dict[str, Column] | None = None
        self._defaults: dict[str, Any] = {}  # of the settled: a row of what each keeps, where it has a default
        if not self.preset and source.known:
            Request(source, self.members, self.optional)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(self.by_name)

    @property
    def image(self) -> str | None:
        """The first image column, whose bytes a dead letter keeps."""
        return next(iter(self.images), None)

    @property
    def others(self) -> tuple[str, ...]:
        """All but the images."""
        return tuple(name for name in self.by_name if name not in self.images)

    @property
    def joined(self) -> bool:
        """Whether a column makes something of several records of a lane together."""
        return any(type(column).of_lanes is not Column.of_lanes for column in self.by_name.values())

    @property
    def members(self) -> tuple[str, ...]:
        """What they are made from, each name once, as columns have it."""
        return tuple(dict.fromkeys(self.reads.values()))

    @property
    def optional(self) -> frozenset[str]:
        """The members that a record may lack without being a bad one."""
        needed = {self.reads[name] for name, column in self.by_name.items() if not column.optional}
        return frozenset(self.members) - needed

    @property
    def followers(self) -> dict[str, dict[str, Follower]]:
        """For each image column what is moved with it. ConfigError for a column that follows none."""
        by_image: dict[str, dict[str, Follower]] = {name: {} for name in self.images}
        for name, column in self.by_name.items():
            if isinstance(column, Follower):
                if column.of not in by_image:
                    images = ", ".join(map(repr, by_image)) or None
                    rule = f"{name!r} is changed together with the image column {column.of!r}, which must be there"
                    raise ConfigError(f"columns: {rule}; found {images}. Give of=")
                by_image[column.of][name] = column
        return by_image

    def title(self, name: str) -> str:
        """A column before the reason why a record is bad; empty for the only image."""
        if name in self.images and len(self.images) == 1:
            return ""
        return f"column {name!r} of member {self.by_name[name].member!r}: "

    def reader(self, source: Source, stop: threading.Event | None = None, *stages: Callable[[Block], Block]) -> Reader:
        """A reader of a bounded source that gives what `stages` make of the columns' `members`."""
        return open_reader(source, self.members, stop, self.optional, *stages)

    # What the first record tells.

    @property
    def open(self) -> bool:
        """Whether a column leaves something to the first record that has not been seen yet."""
        return self._settled is None and any(column.open for column in self.by_name.values())

    def settle(self, block: Block | None) -> None:
        """Settle each open column by the first record of a block of members that has its member and is no fault.

        None where no column is open. The second call does nothing. ConfigError where that tells too little, and for a
        default that cannot be.
        """
        with self._lock:
            if self._settled is None:
                self._settle(block)

    def settle_by(self, source: Source) -> None:
        """The same by the first records of a bounded source, in canonical order: they are read where it is needed."""
        if self._settled is not None:
            return
        with self._lock:
            if self._settled is not None:
                return
            if not any(column.open for column in self.by_name.values()):
                self._settle(None)
                return
            snapshot = source.snapshot()
            first = snapshot.located(canonical(snapshot, snapshot.extent)[:1])
            few = Extents(first.partition[:1], first.start[:1], first.stop[:1].clip(max=first.start[:1] + _LOOKED_AT))
            reader, lease = self.reader(source), SlabPool().lease(0)
            try:
                self._settle(reader.read(few, lease))
            finally:
                lease.release()
                reader.close()

    def _settle(self, block: Block | None) -> None:
        """With the lock held. A block is needed only where a column is open."""
        settled = {
            name: column if block is None or not column.open else _settled(column, block, self.reads[name])
            for name, column in self.by_name.items()
        }
        self._defaults = {name: _default(name, column) for name, column in settled.items() if column.optional}
        self._settled = settled

    def settled(self) -> dict[str, Column]:
        """The columns with what the first records told. ConfigError before any has come."""
        if self.open:
            rule = "the dtype or shape of a column is taken from the first record of the stream, and none has come"
            raise ConfigError(f"columns: {rule}; give dtype= and shape= to the column")
        if self._settled is None:
            self.settle(None)
        return self._settled or {}

    # The stage, and what becomes of its rows.

    def __call__(self, block: Block) -> Block:
        """A block of members becomes one of columns; what is missing, malformed or refused is a fault of its row.

        Of a stream the first block with records settles what is open.
        """
        if self._settled is None:
            if self.open and not len(block.ids):
                return Block(block.ids, {}, block.lease, block.faults, block.absent)
            self.settle(block)
        there = None if block.whole else block.usable()
        faults, kept = dict(block.faults), dict[str, Any]()
        first = self.image
        # The first image comes last: what else is wrong with a record is said before what is wrong with that.
        for name, column in sorted(self.settled().items(), key=lambda each: each[0] == first):
            kept[name] = self._read(name, column, block.values[self.reads[name]], there, faults)
        for name, fits in self.fits.items():
            for row, why in fits(kept[name].sizes).items():
                faults.setdefault(row, self._refused(name, why))
        if first is not None:
            self._keep_refused(kept[first], block)
        values = {name: kept[name] for name in self.by_name}
        return Block(block.ids, values, block.lease, faults, block.absent)

    def _read(
        self, name: str, column: Column, values: Any, there: NDArray[np.bool_] | None, faults: dict[int, Fault]
    ) -> Any:
        """What a column keeps of these values; a row that is not `there` has none, and is no fault of it. None: all."""
        lacks, own = _missing(values), Faults()
        if lacks is None and there is None:
            kept = column.read(values, own)
            for row, why in own.items():
                faults.setdefault(row, self._refused(name, why))
            return list(kept) if isinstance(kept, ArrayPieces) else kept
        there = np.ones(len(values), bool) if there is None else there
        at = np.flatnonzero(there if lacks is None else there & ~lacks)
        kept = column.read(rows_of.take(values, at), own)
        for row, why in own.items():
            faults.setdefault(int(at[row]), self._refused(name, why))
        whole = rows_of.put(rows_of.room(kept, len(there)), at, kept)
        gaps = at[:0] if lacks is None else np.flatnonzero(there & lacks)
        if len(gaps) and column.optional:
            return rows_of.put(whole, gaps, rows_of.take(self._defaults[name], np.zeros(len(gaps), np.int64)))
        for row in gaps.tolist():
            faults.setdefault(row, Fault("source", self._lacks(name), column.member))
        return whole

    def _keep_refused(self, images: Images, block: Block) -> None:
        """Records that the source has refused keep the bytes of their first image, for a dead letter; without a size.

        So no decoder sees them.
        """
        values = block.values[self.reads[str(self.image)]]
        for row in block.faults:
            value = values[row]
            if isinstance(value, memoryview | bytes | bytearray):
                images.payloads[row] = memoryview(value)

    def _lacks(self, name: str) -> str:
        """Why a record without the member of a column is a bad one."""
        title, reason = self.title(name), self.lacks.get(name)
        if reason and name in self.images:
            return f"{title}a record must hold an image; this one {reason}"
        if not title:
            return f"the {self._unit} has no image member"
        return f"{title}the record {reason or 'has no such member'}"

    def _refused(self, name: str, why: str) -> Fault:
        column = self.by_name[name]
        return Fault(column.stage, self.title(name) + why, column.member)

    def batch(
        self, kept: Mapping[str, Any], lanes: int, room: Room | None = None, *, gpu: bool = False
    ) -> dict[str, Any]:
        """The columns of a batch, of rows that were kept, equally many of each lane.

        Large arrays lie in memory of `room`; what a `gpu` does is left to it.
        """
        columns, out = self.settled(), dict[str, Any]()
        for name, values in kept.items():
            column = columns[name]
            if room is not None and isinstance(column, Array):
                out[name] = column.batch(values, room, gpu=gpu)
            else:
                out[name] = column.of_lanes(values, lanes)
        return out


def preset_of(source: Records, transform: object) -> dict[str, Column]:
    """The source's own columns, its first image with this transform. ConfigError for a transform and no image."""
    preset: dict[str, Column] = dict(source.preset)
    image = next((name for name, column in preset.items() if isinstance(column, Image)), None)
    if image is not None:
        return preset | {image: replace(preset[image], transform=transform)}  # type: ignore[call-arg]  # an Image
    if transform is not None:
        raise ConfigError(
            f"transform: is for images; {source!r} gives rows without change. If its rows are images, give"
            " columns={'image': Image('row', transform)}"
        )
    return preset


def _settled(column: Column, block: Block, member: str) -> Column:
    """The column with what the first record tells that has the member; where none has, the error says why."""
    there = block.usable()
    values = (value for row, value in enumerate(block.values[member]) if there[row])
    first = next((value for value in values if value is not None), None)
    try:
        return column.settled(first)
    except ConfigError as error:
        if first is None and block.faults:
            raise ConfigError(f"{error}; of the first record: {block.faults[min(block.faults)].reason}") from error
        raise


def _default(name: str, column: Column) -> Any:
    """A row of what stands for a record without the member; ConfigError where it cannot be."""
    faults: Faults = {}
    try:
        kept = column.read_default(faults)
    except (TypeError, ValueError) as error:
        faults[0] = str(error)
    if faults:
        msg = f"columns: {name!r}: default= must be a value of that column; found {column.default!r}: {faults[0]}"
        raise ConfigError(msg)
    return kept


def _missing(values: Any) -> NDArray[np.bool_] | None:
    """Which rows have no value, bool (n,); None: all have one. A look at each in Python is spared where it can be."""
    if isinstance(values, Images | np.ndarray):
        return None
    if isinstance(values, ArrayPieces):
        values = values.pieces
    if isinstance(values, Pieces):
        return None if values.even or not values.missing.any() else values.missing
    if type(None) not in set(map(type, values)):
        return None
    return np.array([value is None for value in values], bool)
