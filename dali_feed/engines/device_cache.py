"""A cache of images on a GPU, before what makes them: images that were made are not made again.

The law: what is kept is what the maker gave, before the finish step, which is done to it as to any batch. So a batch
is bit for bit the maker's own: an image depends on its payload and parameters alone. A record that cannot be
decoded is never kept, and is found bad every time. All that is done to rows is enqueued behind what was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.device.cuda import Device
from dali_feed.engines.engine import ImageMaker, Part, Pixels
from dali_feed.engines.failures import engine_error, out_of_memory
from dali_feed.errors import ConfigError
from dali_feed.transforms.convert import UserFunction, name_of
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.host import compile_host
from dali_feed.transforms.keys import ADJUST, ERASE, FLIPS, Arrays, Key
from dali_feed.transforms.op import Op, Recipe, walk
from dali_feed.transforms.program import Finish, ImageProgram, Output, Program, Tail

__all__ = ["CachedImages", "DeviceCache", "DeviceRows"]

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
class _Ticket:
    """A batch: the keys of its slots, and the slots whose images are `missing`; `out` has the others'.

    rest  those slots, for the maker; None where nothing is missing
    """

    keys: list[RowKey]
    missing: NDArray[np.int64]
    out: torch.Tensor | None
    rest: Part | None


class CachedImages:
    """An `ImageMaker`: `inner` makes what `rows` does not have; `finish` is the step that is left then."""

    def __init__(self, inner: ImageMaker, finish: Finish | None, rows: DeviceRows, gpu: Device | None = None) -> None:
        self._inner, self._finish, self._rows, self._gpu = inner, finish, rows, gpu
        self.by_workers = inner.by_workers

    @property
    def ready(self) -> int:
        """Images that were there."""
        return self._rows.hits

    def start(self, part: Part) -> None:
        """Begin what is missing."""
        self._look(part)
        if part.ticket.rest is not None:
            self._inner.start(part.ticket.rest)

    def finish(self, part: Part) -> None:
        """Fill it, of what was kept and of what is made, which is kept; where images failed, with its bad slots."""
        if part.ticket.rest is not None:
            self._inner.finish(part.ticket.rest)
        self._fill(part)

    def drop(self, part: Part) -> None:
        """Let go of what is missing."""
        if part.ticket is not None and part.ticket.rest is not None:
            self._inner.drop(part.ticket.rest)

    def again(self, part: Part, before: Part | None, slots: Sequence[int]) -> None:
        """Make what is missing."""
        del before, slots
        self._look(part)
        if part.ticket.rest is not None:
            self._inner.again(part.ticket.rest, None, ())
        self._fill(part)

    def at_work(self, part: Part) -> Sequence[int]:
        """Of what is missing."""
        ticket: _Ticket | None = part.ticket
        if ticket is None or ticket.rest is None:
            return ()
        return [int(ticket.missing[slot]) for slot in self._inner.at_work(ticket.rest)]

    def close(self) -> None:
        """The maker, and the memory of the rows. Safe to call twice."""
        self._inner.close()
        self._rows.forget(0)

    def _look(self, part: Part) -> None:
        """Find the images that are kept."""
        (own,) = part.rows
        keys = list(zip(part.ids.tolist(), _deciding(self._finish, own, len(part.ids)), strict=True))
        at = self._rows.find(keys)
        missing = np.flatnonzero(at < 0)
        rest = None
        if len(missing) == len(keys):
            rest = Part(part.payloads, part.rows, ids=part.ids, stop=part.stop)
        elif len(missing):
            payloads = [part.payloads[slot] for slot in missing.tolist()]
            arrays = {key: rows[missing] for key, rows in own.items()}
            rest = Part(payloads, [arrays], ids=part.ids[missing], stop=part.stop)
        with self._on_stream("memory for a batch cannot be allocated"):
            part.ticket = _Ticket(keys, missing, self._rows.give(at), rest)

    def _fill(self, part: Part) -> None:
        ticket: _Ticket = part.ticket
        images: Any = ticket.out
        if ticket.rest is not None:
            if ticket.rest.bad:
                part.bad = {int(ticket.missing[slot]): why for slot, why in ticket.rest.bad.items()}
                return
            images = self._kept(ticket, ticket.rest.images[0].images)
        part.images = [Pixels(images, Tail.of(self._finish, part.rows[0]), device=self._gpu)]

    def _kept(self, ticket: _Ticket, made: Any) -> Any:
        """The batch with what was made of the missing slots, which is kept from here on."""
        with self._on_stream("a batch cannot be kept", made):
            images: torch.Tensor = made if self._gpu is None else self._gpu.view(made)
            self._rows.keep([ticket.keys[slot] for slot in ticket.missing.tolist()], images)
            if ticket.out is not None:
                ticket.out.index_copy_(0, self._rows.there(ticket.missing), images)
        return made if ticket.out is None else ticket.out

    @contextmanager
    def _on_stream(self, what: str, *read: Any) -> Iterator[None]:
        """Work behind what was sent, which `read`s that; a RuntimeError there says `what` went wrong."""
        try:
            if self._gpu is None:
                yield
                return
            with self._gpu.sending(), self._gpu.hold(*read):
                yield
        except RuntimeError as error:
            raise engine_error(_ENGINE, what, error, self._rows.device.index) from error


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
            msg = f"{SUBJECT}: keeps images in a GPU's memory; found a loader on the CPU. {cure}"
            raise ConfigError(msg)
        if not program.outputs:
            msg = f"{SUBJECT}: keeps one image of each record; found no column that is an Image. Leave device out"
            raise ConfigError(msg)
        for outputs in program.columns.values():
            _check(outputs)
        self.limit, self._device, self._each = limit, device, limit // len(program.columns)
        self._rows: list[DeviceRows] = []
        self._of: tuple[str, int] = "", 0

    def begin(self, fingerprint: str, records: int) -> None:
        """A pass over that snapshot begins, while no other is under way: what was kept of another one is dropped."""
        if self._of != (fingerprint, records):
            self._of = fingerprint, records
            for rows in self._rows:
                rows.forget(records)

    def before(self, images: ImageMaker, output: Output, gpu: Device | None) -> ImageMaker:
        """What makes that output's images, with a cache before it."""
        rows = DeviceRows(self._each, torch.device("cuda", self._device))
        rows.forget(self._of[1])
        self._rows.append(rows)
        return CachedImages(images, output.program.finish, rows, gpu)

    @property
    def counted(self) -> tuple[int, int, int, int]:
        """Images that were there, and that were not; how many are kept, and the bytes that they take. Any thread."""
        rows = self._rows
        hits, misses = sum(each.hits for each in rows), sum(each.misses for each in rows)
        return hits, misses, sum(map(len, rows)), sum(each.held for each in rows)


def _check(outputs: Sequence[Output]) -> None:
    """Raise ConfigError where what is made of a column before the finish step is another image in each epoch."""
    if len(outputs) != 1:
        rule = f"keeps one image of each record; found {len(outputs)} views of it. Leave device out"
        msg = f"{SUBJECT}: {rule}"
        raise ConfigError(msg)
    (output,) = outputs
    program, recipe = output.program, output.recipe
    if not program.fixed:
        msg = f"{SUBJECT}: keeps what torchvision's transforms make of an image; found a DALI graph. Leave it out"
        raise ConfigError(msg)
    if recipe.hardware:
        msg = (
            f"{SUBJECT}: keeps pixels that are the same in every batch; with"
            f" Decode(hardware={recipe.hardware}) they depend on the batch. Leave one of the two out"
        )
        raise ConfigError(msg)
    own = next((op for _, op in walk(recipe.ops) if isinstance(op, UserFunction)), None)
    if own is not None:
        msg = (
            f"{SUBJECT}: keeps what is the same in every epoch; found {name_of(own.function)}, a function of your own,"
            " whose result may change. Use Cache(memory, pixels=True) with it"
        )
        raise ConfigError(msg)
    first, second = (_deciding(program.finish, _drawn(program, epoch), _PROBES) for epoch in (0, 1))
    if first != second:
        msg = (
            f"{SUBJECT}: keeps images as they are before the first random transform; only flips and a RandomErasing at"
            f" the end may be random; found {_culprit(recipe.ops, output.engine)}. Put flips after crops and resizes;"
            " with other random transforms use Cache(memory, pixels=True), which keeps decoded images"
        )
        raise ConfigError(msg)


def _drawn(program: ImageProgram, epoch: int) -> Mapping[Key, NDArray[Any]]:
    """The arrays of some samples."""
    sizes = np.array([(4000, 6000), (6001, 4001)] * (_PROBES // 2), np.int32)
    return program.parameters(sizes, np.arange(_PROBES), 0, epoch).arrays


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
