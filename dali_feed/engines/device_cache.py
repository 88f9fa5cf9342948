"""An engine before which a cache stands on the device: images that it made are not made again.

The law: what is kept is what the engine gave, before the steps that random numbers change, and those are done to it as
to any batch. So a batch is bit for bit the engine's own: an engine's image depends on its payload and parameters alone.
A record that cannot be decoded is never kept, and is found bad every time. No thread waits for a GPU: all that is done
to rows is enqueued on one stream, and the consumer's stream waits for that.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.compiler.drawless import Crop, Drawless
from dali_feed.compiler.host import HostProgram
from dali_feed.engines.engine import Engine, EngineWork, Result, Tail, Work, work_of
from dali_feed.engines.failures import engine_error, out_of_memory
from dali_feed.engines.gpu.device import Uploaded, keep, viewed
from dali_feed.engines.host.image import ImageSteps, Pool
from dali_feed.engines.no_images import DTYPES
from dali_feed.engines.workers import Crew, Job
from dali_feed.errors import DaliFeedError, EngineError
from dali_feed.options import Tuning
from dali_feed.transforms.keys import SIZE, Arrays
from dali_feed.transforms.settings import as_list

__all__ = ["CachingEngine", "DeviceRows", "cut_out"]


# Images in the memory of a device, a row for each record: what a cache there keeps.
#
# The law: a row is given for the record and the parameters that it was made with, and for no others. Nothing is taken
# away until all is. Where the device has no memory left, nothing more is kept; it is never an error.


FIRST = 64 << 20  # bytes; then each time as many as are held: few pieces, of which the last may be empty in part

log = logging.getLogger("dali_feed")

Rows = NDArray[np.int64]


class DeviceRows:
    """Rows of one shape, in up to `limit` bytes of `device`; `forget` says of how many records, before the first.

    first  bytes that are taken first
    held   bytes that are taken now
    Used by one thread, on whatever stream is current there: always the same one.
    """

    def __init__(self, limit: int, device: torch.device) -> None:
        self._limit, self._device, self.first = limit, device, FIRST
        self.hits = self.misses = 0
        self.forget(0)

    def forget(self, records: int) -> None:
        """Let all go: from here on rows are of another snapshot, of so many records."""
        self._most = records
        self._at: dict[int, int] = {}
        self._pieces: list[tuple[int, torch.Tensor]] = []  # the number of the first row, and (rows, bytes of one)
        self._room = 0  # rows that all of them have
        self._kind: tuple[tuple[int, ...], torch.dtype] | None = None
        self._keys = np.zeros((0, 0), np.uint8)
        self._full = False
        self.held = 0  # bytes

    def __len__(self) -> int:
        return len(self._at)

    def find(self, ids: NDArray[np.int64], keys: NDArray[np.uint8]) -> Rows:
        """The rows of records whose parameters are `keys` (n, bytes); -1 where there is none."""
        get = self._at.get
        at = np.fromiter((get(sample, -1) for sample in ids.tolist()), np.int64, len(ids))
        if not self._at or self._keys.shape[1] != keys.shape[1]:
            at[:] = -1
        else:
            at[(self._keys[at] != keys).any(axis=1)] = -1
        found = int((at >= 0).sum())
        self.hits, self.misses = self.hits + found, self.misses + len(ids) - found
        return at

    def new(self, count: int) -> torch.Tensor:
        """Memory for a batch of rows, of which there are some."""
        shape, dtype = self._kind or ((), torch.uint8)
        return torch.empty((count, *shape), dtype=dtype, device=self._device)

    def give(self, at: Rows, slots: Rows, out: torch.Tensor) -> None:
        """Copy the rows to these slots of a batch."""
        flat = _bytes(out)
        for first, piece in self._pieces:
            here = (at >= first) & (at < first + len(piece))
            if here.any():
                flat.index_copy_(0, self.there(slots[here]), piece.index_select(0, self.there(at[here] - first)))

    def row(self, number: int) -> torch.Tensor:
        """An image where it lies."""
        shape, dtype = self._kind or ((), torch.uint8)
        first, piece = next(each for each in reversed(self._pieces) if each[0] <= number)
        return piece[number - first].view(dtype).view(shape)

    def there(self, numbers: NDArray[Any]) -> torch.Tensor:
        """Numbers on the device, without a wait."""
        here = torch.from_numpy(np.ascontiguousarray(numbers))
        return here if self._device.type == "cpu" else here.pin_memory().to(self._device, non_blocking=True)

    def keep(self, ids: NDArray[np.int64], keys: NDArray[np.uint8], images: torch.Tensor) -> None:
        """Keep images of records that are not there yet, as many as there is room for."""
        if self._full or not len(ids):
            return
        if self._kind is None:
            self._kind = tuple(images.shape[1:]), images.dtype
            self._keys = np.zeros((0, keys.shape[1]), np.uint8)
        if self._kind != (tuple(images.shape[1:]), images.dtype) or self._keys.shape[1] != keys.shape[1]:
            return
        fresh = {sample: slot for slot, sample in enumerate(ids.tolist()) if sample not in self._at}
        flat, wanted = _bytes(images), np.array(list(fresh.values()), np.int64)
        while len(wanted) and (len(self._at) < self._room or self._grown(flat.shape[1])):
            first, piece = self._pieces[-1]
            used = len(self._at) - first
            now, wanted = wanted[: len(piece) - used], wanted[len(piece) - used :]
            whole = len(now) == len(flat)
            piece[used : used + len(now)].copy_(flat if whole else flat.index_select(0, self.there(now)))
            self._keys[first + used : first + used + len(now)] = keys[now]
            self._at.update(zip(ids[now].tolist(), range(first + used, first + used + len(now)), strict=True))

    def _grown(self, row: int) -> bool:
        """Take memory for more rows of so many bytes."""
        rows = min(max(1, self.first // row, self._room), self._most - self._room, (self._limit - self.held) // row)
        if self._full or rows <= 0:
            self._full = True
            return False
        try:
            piece = torch.empty((rows, row), dtype=torch.uint8, device=self._device)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            self._full = True
            log.warning(
                "Cache(device=...): %s has no memory for %.0f MB more; %s images in %.0f of %.0f MB stay there,"
                " and no more are added",
                self._device,
                rows * row / 1e6,
                f"{len(self._at):,}",
                self.held / 1e6,
                self._limit / 1e6,
            )
            return False
        self._pieces.append((self._room, piece))
        self._keys = np.concatenate([self._keys, np.zeros((rows, self._keys.shape[1]), np.uint8)])
        self._room, self.held = self._room + rows, self.held + rows * row
        return True


def _bytes(images: torch.Tensor) -> torch.Tensor:
    """Dense images as bytes (n, bytes of one): a view."""
    return images.reshape(len(images), math.prod(images.shape[1:])).view(torch.uint8)


# Windows cut out of a batch of images, each its own, on the device where they lie.
#
# The law: a pixel is the image's own, or the colour outside it: as `transforms.edges.crop` cuts one image, bit for bit.


def cut_out(images: torch.Tensor, corners: torch.Tensor, size: tuple[int, int], colour: torch.Tensor) -> torch.Tensor:
    """Of images (n, height, width, 3) the windows of `size` from `corners` (n, 2: y, x) on; `colour` outside them.

    All are on one device, corners int64, colour of the images' dtype; enqueued on the current stream there.
    """
    count, high, wide = images.shape[:3]
    y = corners[:, :1] + torch.arange(size[0], device=images.device)
    x = corners[:, 1:] + torch.arange(size[1], device=images.device)
    inside = ((y >= 0) & (y < high))[:, :, None] & ((x >= 0) & (x < wide))[:, None, :]
    which = torch.arange(count, device=images.device)[:, None, None]
    taken = images[which, y.clamp(0, high - 1)[:, :, None], x.clamp(0, wide - 1)[:, None, :]]
    return torch.where(inside[..., None], taken, colour)


_ENGINE = "cache on the device"  # its name in errors


class _Steps:
    """A program's steps on single images, and the seconds that threads have worked on them."""

    def __init__(self, program: HostProgram) -> None:
        self._steps, self._lock = ImageSteps(program), threading.Lock()
        self.seconds = 0.0

    def run(self, image: torch.Tensor, arrays: Arrays, slot: int, out: torch.Tensor) -> None:
        """One image (height, width, 3)."""
        begun = time.perf_counter()
        self._steps.run_on(image.permute(2, 0, 1), arrays, slot, out)
        with self._lock:
            self.seconds += time.perf_counter() - begun


@dataclass(slots=True)
class _Flight:
    """A batch: the rows of its slots, -1 where the engine makes the image: in the slots `missing`.

    `out` has the others' images, where there are any and the CPU has nothing left to do to them.
    """

    work: Work
    keys: NDArray[np.uint8]
    at: NDArray[np.int64]
    missing: NDArray[np.int64]
    out: torch.Tensor | None = None
    resting: _Rest | None = None


@dataclass(slots=True)
class _Failed(Result):
    """A result with bad slots, and what the engine needs to run it again."""

    inner: Result = field(default_factory=lambda: Result(None))
    flight: _Flight | None = None


class _Rest(Job):
    """What is left to be done to each image, on the CPU: of one that is kept in its row, of one of `made` there."""

    def __init__(
        self, steps: _Steps, rows: DeviceRows, flight: _Flight, made: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        super().__init__(range(len(out)))
        self._steps, self._rows, self._made, self.out = steps, rows, made, out
        self._arrays, self._at = flight.work.arrays, flight.at.tolist()
        self._places = {slot: k for k, slot in enumerate(flight.missing.tolist())}

    def run(self, slot: int) -> None:
        """One image."""
        made = self._made if slot in self._places else None
        image = self._rows.row(self._at[slot]) if made is None else made[self._places[slot]]
        self._steps.run(image, self._arrays, slot, self.out[slot])


class CachingEngine:
    """`inner` runs `parts.head` on what `rows` does not have. See `engines.engine.Engine`."""

    def __init__(self, inner: Engine, parts: Drawless, rows: DeviceRows, *, device: int | None, tuning: Tuning) -> None:
        self.name, self.depth = inner.name, inner.depth
        self._inner, self._parts, self._rows = inner, parts, rows
        self._device = None if device is None else torch.device("cuda", device)
        self._number = device
        self._stream = None if device is None else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._rest, self._steps = parts.rest, None if parts.rest is None else _Steps(parts.rest)
        self._crew, self._pool = Crew(tuning.cpu_threads, "dali_feed-rest"), Pool()
        self._flying: deque[_Flight] = deque()
        self._awaited: _Flight | None = None

    def enter(self) -> None:
        """As the engine does."""
        self._inner.enter()

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """As the engine takes them."""
        return self._inner.prepare(payloads)

    def submit(self, work: Work) -> None:
        """Start what is missing."""
        flight = self._begun(work)
        if len(flight.missing):
            self._inner.submit(_part(work, flight.missing))
        else:  # nothing has to be waited for
            flight.resting = self._resting(flight, None)
        self._flying.append(flight)

    def take(self) -> Result:
        """The oldest batch; where images failed, its bad slots."""
        flight = self._awaited = self._flying.popleft()
        try:
            return self._whole(flight, self._inner.take() if len(flight.missing) else None)
        finally:
            self._awaited = None

    def discard(self) -> None:
        """Drop the oldest batch."""
        if len(self._flying.popleft().missing):
            self._inner.discard()

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """Run what is missing again, or of a batch that failed there what has changed."""
        before = failed if isinstance(failed, _Failed) else None
        flight = None if before is None else before.flight
        places: dict[int, int] = {} if flight is None else {s: k for k, s in enumerate(flight.missing.tolist())}
        inner, again = None, list[int]()
        if before is None or flight is None or not places.keys() >= set(slots):
            flight = self._begun(work)
        else:
            flight = replace(flight, work=work, keys=self._parts.rows(work.arrays, len(work.ids)))
            inner, again = before.inner, [places[slot] for slot in slots]
        self._awaited = flight
        try:
            some = len(flight.missing) > 0
            made = self._inner.redo(_part(work, flight.missing), inner, again) if some else None
            return self._whole(flight, made)
        finally:
            self._awaited = None

    def halt(self) -> None:
        """As the engine does, and what is left to be done to images is left."""
        self._inner.halt()
        self._crew.halt()

    def resume(self) -> None:
        """Both."""
        self._crew.resume()
        self._inner.resume()

    def at_work(self) -> Sequence[int]:
        """Of what `take` or `redo` waits for."""
        flight = self._awaited
        return () if flight is None else [int(flight.missing[slot]) for slot in self._inner.at_work()]

    def worked(self) -> EngineWork | None:
        """The engine's work and what is left to be done behind it, of all images, those too that it did not make."""
        own = work_of(self._inner)
        if own is None:
            return None
        seconds = own.seconds + (0.0 if self._steps is None else self._steps.seconds)
        return EngineWork(own.threads, seconds, own.images + self._rows.hits)

    def close(self) -> None:
        """Both, and the memory of the rows. Safe to call twice."""
        self._flying.clear()
        self._crew.close()
        self._inner.close()
        self._rows.forget(0)

    def _on_stream(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _begun(self, work: Work) -> _Flight:
        """A batch with the images that are kept."""
        keys = self._parts.rows(work.arrays, len(work.ids))
        at = self._rows.find(work.ids, keys)
        flight, there = _Flight(work, keys, at, np.flatnonzero(at < 0)), np.flatnonzero(at >= 0)
        if self._steps is None and len(there):
            try:
                with self._on_stream():
                    flight.out = self._rows.new(len(at))
                    self._rows.give(at[there], there, flight.out)
            except RuntimeError as error:
                raise engine_error(_ENGINE, "memory for a batch cannot be allocated", error, self._number) from error
        return flight

    def _whole(self, flight: _Flight, result: Result | None) -> Result:
        """The batch of what was kept and what was made, which is kept."""
        if result is not None and result.bad:
            bad = {int(flight.missing[slot]): why for slot, why in result.bad.items()}
            return _Failed(result.images, dict(sorted(bad.items())), inner=result, flight=flight)
        images: Any = flight.out
        if result is not None:
            try:
                images = self._kept(flight, result.images)
            except RuntimeError as error:
                raise engine_error(_ENGINE, "a batch cannot be kept", error, self._number) from error
        if resting := flight.resting or self._resting(flight, images):
            return self._rested(resting)
        tail = Tail.of(self._parts.finish, flight.work.arrays)
        cropped = None if self._parts.crop is None else self._cropped(self._parts.crop, images, flight.work.arrays)
        ours = flight.out if cropped is None else cropped
        if self._stream is None or ours is None:
            return Result(images if ours is None else ours, tail=tail)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(self._stream)
        return Result(Uploaded(ours, done), tail=tail)

    def _cropped(self, crop: Crop, images: Any, arrays: Arrays) -> torch.Tensor:
        """A window of each image, in new memory."""
        try:
            with self._on_stream():
                there = self._here(images)
                corners = self._rows.there(arrays[crop.key][:, :2].astype(np.int64))
                colour = torch.tensor(as_list(crop.fill)).to(there.dtype)  # as `transforms.edges.crop` has it
                return cut_out(there, corners, crop.size, self._rows.there(colour.numpy()))
        except RuntimeError as error:
            raise engine_error(_ENGINE, "memory for a batch cannot be allocated", error, self._number) from error

    def _kept(self, flight: _Flight, made: Any) -> Any:
        """The batch with what the engine made of the missing slots, which is kept from here on."""
        with self._on_stream():
            images = self._here(made)
            self._rows.keep(flight.work.ids[flight.missing], flight.keys[flight.missing], images)
            if flight.out is not None:
                flight.out.index_copy_(0, self._rows.there(flight.missing), images)
            if self._stream is not None and not isinstance(made, Uploaded):
                keep(made, self._stream)  # DALI's memory
        return made if flight.out is None else flight.out

    def _here(self, made: Any) -> torch.Tensor:
        """An engine's images, or ours, for work that is enqueued on our stream."""
        if self._stream is None or isinstance(made, torch.Tensor):
            tensor: torch.Tensor = made
            return tensor
        return made.on(self._stream) if isinstance(made, Uploaded) else viewed(made, self._stream.device)

    def _resting(self, flight: _Flight, made: torch.Tensor | None) -> _Rest | None:
        """Begin what is left to be done to a batch's images, those that the engine made among them."""
        if self._rest is None or self._steps is None:
            return None
        arrays, count = flight.work.arrays, len(flight.at)
        height, width = self._rest.size or arrays[SIZE][0].tolist()
        shape = (count, 3, height, width) if self._rest.layout == "NCHW" else (count, height, width, 3)
        (out,) = self._pool.take([(shape, DTYPES[self._rest.dtype])])
        resting = _Rest(self._steps, self._rows, flight, made, out)
        self._crew.add(resting)
        return resting

    def _rested(self, resting: _Rest) -> Result:
        try:
            self._crew.wait(resting)
        except (DaliFeedError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            msg = f"{_ENGINE}: a step failed on an image that can be decoded; {type(error).__name__}: {error}"
            raise EngineError(msg) from error
        return Result(resting.out)


def _part(work: Work, slots: NDArray[np.int64]) -> Work:
    """Some slots of a batch, for an engine that takes no fields."""
    if len(slots) == len(work.payloads):
        return work
    arrays = {key: rows[slots] for key, rows in work.arrays.items()}
    return Work([work.payloads[slot] for slot in slots.tolist()], arrays, ids=work.ids[slots])
