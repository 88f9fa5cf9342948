"""A cache of images on a GPU, before an engine: images that it made are not made again.

The law: what is kept is what the engine gave, before the finish step, which is done to it as to any batch. So a batch
is bit for bit the engine's own: an engine's image depends on its payload and parameters alone. A record that cannot be
decoded is never kept, and is found bad every time. No thread waits for a GPU: all that is done to rows is enqueued on
one stream, and the consumer's stream waits for that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import Finish, Program, View
from dali_feed.engines.choose import Compiled
from dali_feed.engines.engine import Engine, EngineWork, Result, Tail, Work, Wrapping, work_of
from dali_feed.engines.failures import engine_error, out_of_memory
from dali_feed.engines.gpu.device import Uploaded, keep, viewed
from dali_feed.errors import ConfigError
from dali_feed.transforms.convert import UserFunction, name_of
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.keys import ADJUST, ERASE, FLIPS, Arrays, Key
from dali_feed.transforms.op import Op, Recipe, walk

__all__ = ["CachingEngine", "DeviceCache", "DeviceRows"]

log = logging.getLogger("dali_feed")

SUBJECT = "Cache(device=...)"
_ENGINE = "cache on the device"  # its name in errors
_FINISH = frozenset((*FLIPS.values(), ERASE, ADJUST))  # the rows that only a finish step takes
_PROBES = 64
_AXES = {"x": "Horizontal", "y": "Vertical"}

RowKey = tuple[int, bytes]  # a sample, and all that decides beside its payload what the engine makes of it


class DeviceRows:
    """Images of one shape, in up to `limit` bytes of `device`, each for its key. Used by one thread, on one stream.

    The law: a row is given for the key that it was made with, and for no other. Nothing is taken away until all is.
    Where the device has no memory, nothing is kept; that is never an error.
    """

    def __init__(self, limit: int, device: torch.device) -> None:
        self._limit, self.device = limit, device
        self.hits = self.misses = 0
        self.forget(0)

    def forget(self, records: int) -> None:
        """Let all go: from here on rows are of another snapshot, of so many records."""
        self._most, self._full = records, False
        self._at: dict[RowKey, int] = {}
        self._rows: torch.Tensor | None = None  # its memory is taken with the first batch

    def __len__(self) -> int:
        return len(self._at)

    @property
    def held(self) -> int:
        """Bytes that are taken now."""
        return 0 if self._rows is None else self._rows.nbytes

    def find(self, keys: Sequence[RowKey]) -> NDArray[np.int64]:
        """The row of each key; -1 where there is none."""
        at = np.fromiter((self._at.get(key, -1) for key in keys), np.int64, len(keys))
        there = int((at >= 0).sum())
        self.hits, self.misses = self.hits + there, self.misses + len(at) - there
        return at

    def give(self, at: NDArray[np.int64]) -> torch.Tensor | None:
        """A batch of these rows, in new memory; any pixels where a number is -1. None where all are."""
        if self._rows is None or not (at >= 0).any():
            return None
        return self._rows.index_select(0, self.there(np.maximum(at, 0)))

    def keep(self, keys: Sequence[RowKey], images: torch.Tensor) -> None:
        """Keep images whose keys are not there yet, as many as there is room for."""
        if self._rows is None and not self._full:
            self._rows, self._full = self._taken(images), True
        if self._rows is None or (self._rows.shape[1:], self._rows.dtype) != (images.shape[1:], images.dtype):
            return
        used, fresh = len(self._at), {key: slot for slot, key in enumerate(keys) if key not in self._at}
        slots = list(fresh.values())[: len(self._rows) - used]
        if slots:
            there = self.there(np.array(slots, np.int64))
            self._rows[used : used + len(slots)].copy_(images.index_select(0, there))
            self._at.update(zip(fresh, range(used, used + len(slots)), strict=False))

    def there(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """Numbers on the device, without a wait."""
        here = torch.from_numpy(numbers)
        return here if self.device.type == "cpu" else here.pin_memory().to(self.device, non_blocking=True)

    def _taken(self, images: torch.Tensor) -> torch.Tensor | None:
        """Memory for all images like these that there may be; None where there is none."""
        size = images[0].numel() * images.itemsize
        count = min(self._most, self._limit // size)
        try:
            return torch.empty((count, *images.shape[1:]), dtype=images.dtype, device=self.device) if count else None
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            missing = f"{self.device} has no {count * size / 1e6:,.0f} MB for {count:,} images; none are kept there"
            log.warning("%s: %s. Give a smaller size", SUBJECT, missing)
            return None


@dataclass(slots=True)
class _Flight:
    """A batch: the keys of its slots, and the slots whose images are `missing`; `out` has the others'."""

    work: Work
    keys: list[RowKey]
    missing: NDArray[np.int64]
    out: torch.Tensor | None


class CachingEngine(Wrapping):
    """`inner` makes what `rows` does not have; `finish` is the step that is left then. See `Engine`."""

    def __init__(self, inner: Engine, finish: Finish | None, rows: DeviceRows) -> None:
        super().__init__(inner)
        self._finish, self._rows = finish, rows
        on_gpu = rows.device.type == "cuda"
        self._stream = torch.cuda.Stream(rows.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._flying: deque[_Flight] = deque()
        self._awaited: _Flight | None = None

    def submit(self, work: Work) -> None:
        """Start what is missing."""
        flight = self._begun(work)
        if len(flight.missing):
            self._inner.submit(_part(work, flight.missing))
        self._flying.append(flight)

    def take(self) -> Result:
        """The oldest batch; where images failed, its bad slots."""
        return self._whole(self._flying.popleft(), self._inner.take)

    def discard(self) -> None:
        """Drop the oldest batch."""
        if len(self._flying.popleft().missing):
            self._inner.discard()

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """Run what is missing."""
        del failed, slots
        flight = self._begun(work)
        return self._whole(flight, lambda: self._inner.redo(_part(work, flight.missing)))

    def at_work(self) -> Sequence[int]:
        """Of what `take` or `redo` waits for."""
        flight = self._awaited
        return () if flight is None else [int(flight.missing[slot]) for slot in self._inner.at_work()]

    def worked(self) -> EngineWork | None:
        """The engine's work, for all images, those too that it did not make."""
        own = work_of(self._inner)
        return None if own is None else EngineWork(own.threads, own.seconds, own.images + self._rows.hits)

    def close(self) -> None:
        """The engine, and the memory of the rows. Safe to call twice."""
        self._flying.clear()
        super().close()
        self._rows.forget(0)

    def _begun(self, work: Work) -> _Flight:
        """A batch with the images that are kept."""
        keys = list(zip(work.ids.tolist(), _deciding(self._finish, work.arrays, len(work.ids)), strict=True))
        at = self._rows.find(keys)
        with self._on_stream("memory for a batch cannot be allocated"):
            return _Flight(work, keys, np.flatnonzero(at < 0), self._rows.give(at))

    def _whole(self, flight: _Flight, make: Callable[[], Result]) -> Result:
        """The batch of what was kept and of what `make` makes, which is kept."""
        images: Any = flight.out
        if len(flight.missing):
            self._awaited = flight
            try:
                result = make()
            finally:
                self._awaited = None
            if result.bad:
                return Result(None, {int(flight.missing[slot]): why for slot, why in result.bad.items()})
            images = self._kept(flight, result.images)
        tail = Tail.of(self._finish, flight.work.arrays)
        if self._stream is None or flight.out is None:
            return Result(images, tail=tail)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(self._stream)
        return Result(Uploaded(flight.out, done), tail=tail)

    def _kept(self, flight: _Flight, made: Any) -> Any:
        """The batch with what the engine made of the missing slots, which is kept from here on."""
        with self._on_stream("a batch cannot be kept"):
            if self._stream is None:
                images: torch.Tensor = made
            else:
                images = made.on(self._stream) if isinstance(made, Uploaded) else viewed(made, self._rows.device)
            self._rows.keep([flight.keys[slot] for slot in flight.missing.tolist()], images)
            if flight.out is not None:
                flight.out.index_copy_(0, self._rows.there(flight.missing), images)
            if self._stream is not None and not isinstance(made, Uploaded):
                keep(made, self._stream)  # DALI's memory
        return made if flight.out is None else flight.out

    @contextmanager
    def _on_stream(self, what: str) -> Iterator[None]:
        """Work on our stream; a RuntimeError there says `what` went wrong."""
        try:
            with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                yield
        except RuntimeError as error:
            raise engine_error(_ENGINE, what, error, self._rows.device.index) from error


def _part(work: Work, slots: NDArray[np.int64]) -> Work:
    """Some slots of a batch, for an engine that takes no fields."""
    if len(slots) == len(work.payloads):
        return work
    arrays = {key: rows[slots] for key, rows in work.arrays.items()}
    return Work([work.payloads[slot] for slot in slots.tolist()], arrays, ids=work.ids[slots])


def _deciding(finish: Finish | None, arrays: Arrays, count: int) -> list[bytes]:
    """All that decides, with the payload, what stands before the finish step, for each of `count` samples."""
    own = [np.ascontiguousarray(arrays[key]) for key in sorted(arrays) if finish is None or key not in _FINISH]
    flat = [rows.reshape(count, -1).view(np.uint8) for rows in own if rows.size]
    return [row.tobytes() for row in np.concatenate(flat, axis=1)] if flat else [b""] * count


class DeviceCache:
    """What the engines of one feed keep on CUDA device `device`: of each image column a part of `limit` bytes.

    Raises ConfigError without a GPU, and where images change from epoch to epoch before the finish step.
    """

    def __init__(self, made: Compiled, limit: int, device: int | None) -> None:
        if device is None:
            cure = "Give device='cuda', or Cache(memory, pixels=True), which keeps decoded images"
            msg = f"{SUBJECT}: keeps images in a GPU's memory; found a loader on the CPU. {cure}"
            raise ConfigError(msg)
        programs: list[tuple[str, Program]] = [(each.engine, each.picture.view) for each in made.columns]
        programs = programs or [(made.engine, made.program)]
        for engine, program in programs:
            _check(engine, program)
        self.limit, self._device, self._each = limit, device, limit // len(programs)
        self._rows: list[DeviceRows] = []
        self._of: tuple[str, int] = "", 0

    def begin(self, fingerprint: str, records: int) -> None:
        """A pass over that snapshot begins, while no other is under way: what was kept of another one is dropped."""
        if self._of != (fingerprint, records):
            self._of = fingerprint, records
            for rows in self._rows:
                rows.forget(records)

    def before(self, engine: Engine, program: Program) -> Engine:
        """An engine of that program, with a cache before it."""
        rows = DeviceRows(self._each, torch.device("cuda", self._device))
        rows.forget(self._of[1])
        self._rows.append(rows)
        return CachingEngine(engine, program.views[0].finish, rows)

    @property
    def counted(self) -> tuple[int, int, int, int]:
        """Images that were there, and that were not; how many are kept, and the bytes that they take. Any thread."""
        rows = self._rows
        hits, misses = sum(each.hits for each in rows), sum(each.misses for each in rows)
        return hits, misses, sum(map(len, rows)), sum(each.held for each in rows)


def _check(engine: str, program: Program) -> None:
    """Raise ConfigError where what an engine makes before the finish step is another image in each epoch."""
    if len(program.views) != 1:
        found = f"{len(program.views)} views of it" if program.views else "no column that is an Image"
        msg = f"{SUBJECT}: keeps one image of each record; found {found}. Leave device out"
        raise ConfigError(msg)
    if not program.fixed:
        msg = f"{SUBJECT}: keeps what torchvision's transforms make of an image; found a DALI graph. Leave it out"
        raise ConfigError(msg)
    (view,) = program.views
    if view.recipe.hardware:
        msg = (
            f"{SUBJECT}: keeps pixels that are the same in every batch; with"
            f" Decode(hardware={view.recipe.hardware}) they depend on the batch. Leave one of the two out"
        )
        raise ConfigError(msg)
    own = next((op for _, op in walk(view.recipe.ops) if isinstance(op, UserFunction)), None)
    if own is not None:
        msg = (
            f"{SUBJECT}: keeps what is the same in every epoch; found {name_of(own.function)}, a function of your own,"
            " whose result may change. Use Cache(memory, pixels=True) with it"
        )
        raise ConfigError(msg)
    first, second = (_deciding(view.finish, _drawn(view, epoch), _PROBES) for epoch in (0, 1))
    if first != second:
        msg = (
            f"{SUBJECT}: keeps images as they are before the first random transform; only flips and a RandomErasing at"
            f" the end may be random; found {_culprit(view.recipe.ops, engine)}. Put flips after crops and resizes;"
            " with other random transforms use Cache(memory, pixels=True), which keeps decoded images"
        )
        raise ConfigError(msg)


def _drawn(view: View, epoch: int) -> Mapping[Key, NDArray[Any]]:
    """The arrays of some samples."""
    sizes = np.array([(4000, 6000), (6001, 4001)] * (_PROBES // 2), np.int32)
    return view.parameters(sizes, np.arange(_PROBES), 0, epoch).arrays


def _culprit(ops: tuple[Op, ...], engine: str) -> str:
    """The first op whose rows differ between epochs; a graph leaves flips to the finish step wherever they stand."""
    known: set[Key] = set()
    for n, op in enumerate(ops):
        first, second = (_drawn(compile_host(Recipe(ops[: n + 1])), epoch) for epoch in (0, 1))
        new = first.keys() - known
        known |= new
        if isinstance(op, Flip) and engine == "dali":
            continue
        if any(not np.array_equal(first[key], second[key]) for key in new):
            return f"Random{_AXES[op.axis]}Flip" if isinstance(op, Flip) else op.title
    return "a random transform"
