"""A cache of images on a GPU, before what makes them: images that were made are not made again.

The law: what is kept is what the maker gave, before the finish step, which is done to it as to any batch. So a batch
is bit for bit the maker's own: an image depends on its payload and parameters alone. A record that cannot be
decoded is never kept, and is found bad every time. All that is done to rows is enqueued behind what was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.device.cuda import Device
from dali_feed.engines.engine import ImageMaker, Part, Pixels
from dali_feed.engines.failures import engine_error, out_of_memory
from dali_feed.errors import ConfigError
from dali_feed.transforms.convert import UserFunction, name_of
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.op import ADJUST, AUGMENT, ERASE, FLIPS, SHARES, Arrays, Draws, walk
from dali_feed.transforms.program import Finish, ImageProgram, Output, Program, Tail

log = logging.getLogger("dali_feed")

SUBJECT = "Cache(device=...)"
_ENGINE = "cache on the device"  # its name in errors
_FINISH = frozenset((*FLIPS.values(), ERASE, ADJUST, AUGMENT, SHARES))  # the rows that only a finish step takes
_PROBES = 64

RowKey = tuple[int, bytes]  # a sample, and all that decides beside its payload what the engine makes of it


@dataclass(slots=True)
class _Ticket:
    """A batch: the keys of its slots, and the slots whose images are `missing`; `out` has the others'.

    rest  those slots, for the maker; None where nothing is missing
    """

    keys: list[RowKey]
    missing: NDArray[np.int64]
    out: torch.Tensor | None
    rest: Part | None


class CachedImages(ImageMaker):
    """`maker` makes what is not kept yet; `finish` is the step that is left then.

    Images of one shape are kept, in up to `limit` bytes of the GPU, each for its key; none is taken away until all are.
    Where the GPU has less memory, half as many are kept, or a quarter, or none, which is never an error. Used by one
    thread.
    """

    def __init__(self, maker: ImageMaker, finish: Finish | None, limit: int, gpu: Device) -> None:
        self._maker, self._finish, self._limit, self._gpu = maker, finish, limit, gpu
        self.by_workers = maker.by_workers
        self.hits = self.misses = 0
        self.forget(0)

    def forget(self, records: int) -> None:
        """Let all go: from here on images are of another snapshot, of so many records."""
        self._most, self._tried = records, False
        self._at: dict[RowKey, int] = {}
        self._rows: torch.Tensor | None = None  # its memory is taken with the first batch

    def __len__(self) -> int:
        return len(self._at)

    @property
    def nbytes(self) -> int:
        """Bytes that are taken now."""
        return 0 if self._rows is None else self._rows.nbytes

    @property
    def ready(self) -> int:
        return self.hits

    def start(self, part: Part) -> None:
        self._look(part)
        if part.ticket.rest is not None:
            self._maker.start(part.ticket.rest)

    def finish(self, part: Part) -> None:
        if part.ticket.rest is not None:
            self._maker.finish(part.ticket.rest)
        self._fill(part)

    def drop(self, part: Part) -> None:
        if part.ticket is not None and part.ticket.rest is not None:
            self._maker.drop(part.ticket.rest)

    def again(self, part: Part, before: Part | None, slots: Sequence[int]) -> None:
        del before, slots
        self._look(part)
        if part.ticket.rest is not None:
            self._maker.again(part.ticket.rest, None, ())
        self._fill(part)

    def at_work(self, part: Part) -> Sequence[int]:
        ticket: _Ticket | None = part.ticket
        if ticket is None or ticket.rest is None:
            return ()
        return [int(ticket.missing[slot]) for slot in self._maker.at_work(ticket.rest)]

    def close(self) -> None:
        self._maker.close()
        self.forget(0)

    def _look(self, part: Part) -> None:
        (own,) = part.rows
        keys = list(zip(part.ids.tolist(), _deciding(self._finish, own, len(part.ids)), strict=True))
        at = np.array([self._at.get(key, -1) for key in keys], np.int64)
        missing = np.flatnonzero(at < 0)
        self.hits, self.misses = self.hits + len(at) - len(missing), self.misses + len(missing)
        out = rest = None
        if self._rows is not None and len(missing) < len(at):
            with self._on_copy_stream("memory for a batch cannot be allocated"):
                out = self._rows.index_select(0, self._there(np.maximum(at, 0)))  # any pixels where one is missing
        if len(missing):
            payloads = [part.payloads[slot] for slot in missing.tolist()]
            arrays = {key: rows[missing] for key, rows in own.items()}
            rest = Part(payloads, [arrays], ids=part.ids[missing], stop=part.stop)
        part.ticket = _Ticket(keys, missing, out, rest)

    def _fill(self, part: Part) -> None:
        ticket: _Ticket = part.ticket
        images: Any = ticket.out
        if ticket.rest is not None:
            if ticket.rest.bad:
                part.bad = {int(ticket.missing[slot]): why for slot, why in ticket.rest.bad.items()}
                return
            fresh_images = ticket.rest.images[0].images
            with self._on_copy_stream("a batch cannot be kept", fresh_images):
                fresh = self._gpu.view(fresh_images)
                self._keep([ticket.keys[slot] for slot in ticket.missing.tolist()], fresh)
                if ticket.out is not None:
                    ticket.out.index_copy_(0, self._there(ticket.missing), fresh)
            images = fresh_images if ticket.out is None else ticket.out
        part.images = [Pixels(images, Tail.of(self._finish, part.rows[0]), device=self._gpu)]

    def _keep(self, keys: Sequence[RowKey], images: torch.Tensor) -> None:
        """Keep images whose keys are not there yet, as many as there is room for."""
        if self._rows is None and not self._tried:
            self._rows, self._tried = self._memory(images), True
        if self._rows is None or (self._rows.shape[1:], self._rows.dtype) != (images.shape[1:], images.dtype):
            return
        used, fresh = len(self._at), {key: slot for slot, key in enumerate(keys) if key not in self._at}
        slots = np.array(list(fresh.values())[: len(self._rows) - used], np.int64)
        if len(slots):
            self._rows[used : used + len(slots)].copy_(images.index_select(0, self._there(slots)))
            self._at.update(zip(fresh, range(used, used + len(slots)), strict=False))

    def _memory(self, images: torch.Tensor) -> torch.Tensor | None:
        """Memory for all images like these that there may be; None where there is none."""
        size = images[0].numel() * images.itemsize
        count = wanted = min(self._most, self._limit // size)
        memory = None
        while count and memory is None:
            try:
                memory = self._gpu.empty((count, *images.shape[1:]), images.dtype)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                count //= 2
        if count < wanted:
            kept = f"{count:,}" if count else "none"
            missing = f"{wanted * size / 1e6:,.0f} MB for {wanted:,} images; {kept} are kept there"
            log.warning("%s: cuda:%d has no %s. Give a smaller size", SUBJECT, self._gpu.number, missing)
        return memory

    def _there(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        here = self._gpu.pinned(numbers.shape, torch.int64)
        here.copy_(torch.from_numpy(numbers))
        return self._gpu.send(here)

    @contextmanager
    def _on_copy_stream(self, what: str, *read: Any) -> Iterator[None]:
        """Work on the copy stream, which `read`s that; a RuntimeError there says `what` went wrong."""
        try:
            with self._gpu.sending(), self._gpu.hold(*read):
                yield
        except RuntimeError as error:
            raise engine_error(_ENGINE, what, error, self._gpu.number) from error


def _deciding(finish: Finish | None, arrays: Arrays, count: int) -> list[bytes]:
    """All that decides, with the payload, what stands before the finish step, for each of `count` samples."""
    own = [np.ascontiguousarray(arrays[key]) for key in sorted(arrays) if finish is None or key not in _FINISH]
    flat = [rows.reshape(count, -1).view(np.uint8) for rows in own if rows.size]
    return [row.tobytes() for row in np.concatenate(flat, axis=1)] if flat else [b""] * count


class DeviceCache:
    """What the makers of one feed's images keep on CUDA device `device`: of each column a part of `limit` bytes.

    Raises ConfigError without a GPU, and where images change from epoch to epoch before the finish step.
    """

    def __init__(self, program: Program, limit: int, device: int | None) -> None:
        if device is None:
            cure = "Give device='cuda', or Cache(memory, pixels=True), which keeps decoded images"
            _refuse(f"images in a GPU's memory; found a loader on the CPU. {cure}")
        if not program.outputs:
            _refuse("one image of each record; found no column that is an Image. Leave device out")
        for outputs in program.columns.values():
            _check(outputs)
        self.limit, self._each = limit, limit // len(program.columns)
        self._images: list[CachedImages] = []
        self._of: tuple[str, int] = "", 0

    def begin(self, fingerprint: str, records: int) -> None:
        """A pass over that snapshot begins, while no other is under way: what was kept of another one is dropped."""
        if self._of != (fingerprint, records):
            self._of = fingerprint, records
            for images in self._images:
                images.forget(records)

    def before(self, images: ImageMaker, output: Output, gpu: Device) -> ImageMaker:
        """What makes that output's images, with a cache before it."""
        cached = CachedImages(images, output.program.finish, self._each, gpu)
        cached.forget(self._of[1])
        self._images.append(cached)
        return cached

    @property
    def counted(self) -> tuple[int, int, int, int]:
        """Images that were there, and that were not; how many are kept, and the bytes that they take. Any thread."""
        each = self._images
        hits, misses = sum(images.hits for images in each), sum(images.misses for images in each)
        return hits, misses, sum(map(len, each)), sum(images.nbytes for images in each)


def _refuse(why: str) -> NoReturn:
    raise ConfigError(f"{SUBJECT}: keeps {why}")


def _check(outputs: Sequence[Output]) -> None:
    """Raise ConfigError where what is made of a column before the finish step is another image in each epoch."""
    if len(outputs) != 1:
        _refuse(f"one image of each record; found {len(outputs)} views of it. Leave device out")
    (output,) = outputs
    program, recipe = output.program, output.recipe
    if not program.fixed:
        _refuse("what torchvision's transforms make of an image; found a DALI graph. Leave it out")
    if recipe.hardware:
        why = f"with Decode(hardware={recipe.hardware}) they depend on the batch"
        _refuse(f"pixels that are the same in every batch; {why}. Leave one of the two out")
    own = next((op for _, op in walk(recipe.ops) if isinstance(op, UserFunction)), None)
    if own is not None:
        why = f"found {name_of(own.function)}, a function of your own, whose result may change"
        _refuse(f"what is the same in every epoch; {why}. Use Cache(memory, pixels=True) with it")
    changing = next((op.title for op in recipe.ops if op.by_boxes), "")  # which needs them to draw
    if changing or _changes(program):
        _refuse(
            "images as they are before the first random transform; only flips, a RandomErasing at the end and, on the"
            f" dali engine, what is done to colours (ColorJitter, RandAugment) may be random; found"
            f" {changing or _culprit(output)}. Put flips after crops and resizes; with other random transforms use"
            " Cache(memory, pixels=True), which keeps decoded images"
        )


def _changes(program: ImageProgram) -> bool:
    ops = program.recipe.ops
    one, other = (program.taken(_draws(program, epoch).through(enumerate(ops))).arrays for epoch in (0, 1))
    return _deciding(program.finish, one, _PROBES) != _deciding(program.finish, other, _PROBES)


def _draws(program: ImageProgram, epoch: int) -> Draws:
    sizes = np.array([(4000, 6000), (6001, 4001)] * (_PROBES // 2), np.int32)
    return Draws(program.streams, sizes, np.arange(_PROBES), 0, epoch)


def _culprit(output: Output) -> str:
    """The first op whose rows differ between epochs; a graph leaves flips to the finish step wherever they stand."""
    one, other = (_draws(output.program, epoch) for epoch in (0, 1))
    for n, op in enumerate(output.recipe.ops):
        known = set(one.arrays)
        first, second = (each.through([(n, op)]).arrays for each in (one, other))
        differs = any(not np.array_equal(first[key], second[key]) for key in first.keys() - known)
        if differs and not (isinstance(op, Flip) and output.engine == "dali"):
            return op.title
    return "a random transform"
