"""A map-style dataset as a source: its `__getitem__` runs in a reader thread, and what it gives are members.

The law: a sample costs its own row only. What its `__getitem__` raises, or an image that is none, makes a bad record;
position k is dataset[k], whatever is asked of it. The header check, the rescue of a bad record, caches, transforms and
resume hold as for files, because images go on as encoded files or as PPM, which engines read without a decoder.

Whether a dataset may be called by several threads cannot be seen (one that seeks in a file it keeps open gives wrong
bytes without an error), so one thread at a time calls it unless `Tuning(readers=)` says otherwise: each loader has one
reader, and loaders over parts of one dataset, such as random_split's, take turns.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from dali_feed import sync
from dali_feed.columns import Array, Image, Number, Text
from dali_feed.errors import ClosedError, ConfigError, FormatError, SourceEmptyError
from dali_feed.external_sources.files import IMG_EXTENSIONS, load_file
from dali_feed.plan.batching import length_of
from dali_feed.records.source import (
    Block,
    Fault,
    Int64s,
    Lease,
    Member,
    Reader,
    RowReader,
    Snapshot,
    Source,
    alternatives,
    check_known,
    check_no_pin,
    fixed_snapshot,
)
from dali_feed.screen.header import UnusableError
from dali_feed.screen.pillow import levels_of
from dali_feed.screen.screen import header_of

_ENCODED = "image of "  # what stands before a member's name where its encoded image is asked for
_BYTES = (bytes, bytearray, memoryview)


_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by the id() of a dataset that has none inside it
_new_locks = sync.Lock()  # guards that
_SLICE_S = 0.1  # how long a wait may be without a look at whether it is still wanted


class Turn:
    """What a thread has while it calls a dataset: others wait that call one made of the same datasets.

    A dataset that makes a loader of itself while it is called has its turn already.
    """

    def __init__(self, dataset: Any) -> None:
        innermost = {id(part) for part in parts_of(dataset) if all(each is part for each in parts_of(part))}
        with _new_locks:
            self._locks = [_locks.setdefault(at, sync.RLock()) for at in sorted(innermost)]  # one order: no deadlock

    @contextlib.contextmanager
    def taken(self, check: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Within, it is this thread's. `check` is called while it waits, and may raise."""
        taken = list[Any]()
        try:
            for lock in self._locks:
                while not lock.acquire(timeout=_SLICE_S):
                    check()
                taken.append(lock)
            yield
        finally:
            for lock in taken:
                lock.release()


def _turn_of(turn: Turn | None, check: Callable[[], object] = lambda: None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if turn is None else turn.taken(check)


def _after_fork() -> None:
    """Threads that had a turn are the parent's."""
    global _locks, _new_locks
    _locks, _new_locks = WeakValueDictionary(), sync.Lock()


os.register_at_fork(after_in_child=_after_fork)


class DatasetSource(Source):
    """The samples of a map-style dataset, whose members are its keys, or its places: "0", "1".

    Args:
        dataset: has `__len__` and `__getitem__`. A sample is a mapping, a tuple, or one value. An image is a path that
            ends like an image's, the bytes of an encoded one, a PIL image, or uint8 (height, width, 3) or
            (height, width); a tensor may be (3, height, width) too.
        together: several threads may call it.

    Raises:
        SourceEmptyError: it has no sample.
        ConfigError: its first sample cannot be had.
    """

    def __init__(self, dataset: Any, *, together: bool = False) -> None:
        self._dataset, self._count = dataset, len(dataset)
        self._turn = None if together else Turn(dataset)
        self._title = title_of(dataset)
        if not self._count:
            raise SourceEmptyError(f"{self._title}: must have samples; found none")
        try:
            with _turn_of(self._turn):
                first = dataset[0]
        except Exception as error:
            msg = f"{self._title}: its first sample must be there; found {type(error).__name__}: {error}"
            raise ConfigError(msg) from error
        self.named = isinstance(first, Mapping)
        self._first = _members_of(first)
        with _turn_of(self._turn):
            for value in self._first.values():
                with contextlib.suppress(Exception):  # a broken one is a bad record, when it is read
                    _load((value,))  # Pillow closes its file then

    def __repr__(self) -> str:
        return self._title

    @property
    def preset(self) -> Mapping[str, Any]:
        """A column for each member of the first sample, by what it is."""
        return {name: _column_of(name, value) for name, value in self._first.items()}

    @property
    def has_image(self) -> bool:
        """Whether its first sample has an image."""
        return any(map(_is_image, self._first.values()))

    def members(self) -> tuple[Member, ...]:
        """Those of the first sample."""
        return tuple(Member(name, 1.0, _size(value)) for name, value in self._first.items())

    def image_of(self, member: str) -> str:
        """The encoded image that is made of a path, of an opened image or of pixels."""
        return ";".join(_ENCODED + name for name in alternatives(member) if name in self._first) or member

    def can_have(self, member: str) -> bool:
        """Whether its first sample has it."""
        return member.removeprefix(_ENCODED) in self._first

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """See `snapshot_of`."""
        check_no_pin(self._title, pin, "samples")
        return snapshot_of(self._dataset, self._count, max(1, sum(map(_size, self._first.values()))))

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader that calls `__getitem__`."""
        check_known((name.removeprefix(_ENCODED) for name in members), self._first, self._title)
        return _DatasetReader(self._dataset, self._title, self._count, tuple(members), stop, self._turn)

    def where(self, partition: int, position: int) -> str:
        """`Pictures#118`."""
        del partition
        return f"{type(self._dataset).__name__}#{position}"


class _DatasetReader(RowReader):
    """Calls a dataset for each position, and keeps the members that were asked for."""

    def __init__(
        self,
        dataset: Any,
        title: str,
        count: int,
        members: tuple[str, ...],
        stop: threading.Event | None,
        turn: Turn | None,
    ) -> None:
        super().__init__(title, count, stop)
        self._dataset, self._members, self._turn = dataset, members, turn

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        del partition
        values: dict[str, list[Any]] = {name: [None] * len(position) for name in self._members}
        for row, at in enumerate(position.tolist()):
            self._check_stop()
            try:
                with _turn_of(self._turn, self._check_stop):
                    sample = _members_of(self._dataset[at])
                    _load(sample.get(name.removeprefix(_ENCODED)) for name in self._members)
                for name in self._members:
                    value = sample.get(name.removeprefix(_ENCODED))
                    if name.startswith(_ENCODED) and value is not None:
                        value = _encoded(value, block.lease)
                    values[name][row] = _plain(value)
            except ClosedError:
                raise
            except FormatError as error:
                block.faults[row] = Fault("source", str(error))
            except Exception as error:  # noqa: BLE001  whatever a dataset raises is about this sample
                block.faults[row] = Fault("source", f"__getitem__ raised {type(error).__name__}: {error}")
        block.values.update(values)


def _members_of(sample: Any) -> dict[str, Any]:
    """By key, or by place."""
    if isinstance(sample, Mapping):
        return {str(name): value for name, value in sample.items()}
    if isinstance(sample, list | tuple):
        return {str(place): value for place, value in enumerate(sample)}
    return {"0": sample}


def _is_pil(value: Any) -> bool:
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return kind is not None and isinstance(value, kind)


def _load(values: Iterable[Any]) -> None:
    """Read images that Pillow has opened and no more: their file may be one that the dataset keeps open."""
    for value in values:
        if _is_pil(value):
            value.load()


def _pixels(value: Any) -> np.ndarray[Any, Any] | None:
    """uint8 pixels as an array (height, width, 3) or (height, width); None for what are none."""
    if hasattr(value, "detach"):  # a tensor of torch's
        value = value.detach().cpu().numpy()
        if value.ndim == 3 and value.shape[0] == 3 and value.shape[2] != 3:
            value = value.transpose(1, 2, 0)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return None
    return value if value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3) else None


def _is_image(value: Any) -> bool:
    if isinstance(value, str | os.PathLike):
        return os.fspath(value).lower().endswith(IMG_EXTENSIONS)
    if isinstance(value, _BYTES):
        try:
            header_of(memoryview(value))
        except UnusableError:
            return False
        return True
    return _is_pil(value) or _pixels(value) is not None


def _encoded(value: Any, lease: Lease) -> Any:
    """The bytes of an image's file. FormatError says why there are none."""
    if isinstance(value, _BYTES):
        return value
    if isinstance(value, str | os.PathLike):
        loaded = load_file(os.fspath(value), lease)
        if isinstance(loaded, str):
            raise FormatError(loaded)
        return loaded
    pixels = _of_pil(value) if _is_pil(value) else _pixels(value)
    if pixels is None:
        raise FormatError(f"an image must be a path, bytes, a PIL image or uint8 pixels; found {type(value).__name__}")
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    height, width = pixels.shape[:2]
    head = b"P6 %d %d 255\n" % (width, height)
    file = lease.room(len(head) + pixels.size)
    file[: len(head)] = head
    np.frombuffer(file, np.uint8, pixels.size, len(head)).reshape(pixels.shape)[:] = pixels
    return file


def _of_pil(image: Any) -> NDArray[np.uint8]:
    """Its pixels, of 16 bits as a file's are: the upper eight. Pillow would cut off what does not fit into 8 bits."""
    if image.mode.startswith("I;16"):
        return levels_of(image, 16)
    if image.mode in ("I", "F"):
        rule = "pixels must be of 8 or 16 bits, as their scale is not known else"
        raise FormatError(f"{rule}; found a PIL image of mode {image.mode!r}; convert it in the dataset")
    return np.asarray(image.convert("RGB"))


def _plain(value: Any) -> Any:
    """As columns take it: bytes as a view, a tensor as an array, what has no dimension as a number."""
    if hasattr(value, "detach"):  # a tensor of torch's
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and not value.ndim:
        return value[()]
    return memoryview(value) if isinstance(value, bytes | bytearray) else value


def _column_of(name: str, value: Any) -> Any:
    """What batches hold where nobody says `columns=`. ConfigError for what no batch holds by itself."""
    if _is_image(value):
        return Image(name)
    value = _plain(value)
    if isinstance(value, str):
        return Text(name)
    if isinstance(value, bool | np.bool_):
        return Number(name, "bool")
    if isinstance(value, int | np.integer):
        return Number(name)
    if isinstance(value, float | np.floating):
        return Number(name, str(np.asarray(value).dtype))
    if isinstance(value, np.ndarray):
        return Array(name)
    msg = f"dataset: member {name!r} is a {type(value).__name__}, which no batch holds by itself; give columns="
    raise ConfigError(msg)


def _size(value: Any) -> int:
    """Bytes of a member, about."""
    if isinstance(value, (*_BYTES, str)):
        return len(value)
    if _is_pil(value):
        return int(value.size[0] * value.size[1] * 3)
    return int(getattr(value, "nbytes", 0))


def title_of(dataset: Any) -> str:
    """Its class, with the module."""
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def snapshot_of(dataset: Any, count: int, record_bytes: int = 1) -> Snapshot:
    """All positions, as one partition. The fingerprint says of which class, how many, and which of a Subset."""
    title = title_of(dataset)
    digest = hashlib.sha256(f"{title} {count} {_chosen(dataset)}".encode()).hexdigest()
    counts = np.array([count], np.int64)
    return fixed_snapshot(title, (type(dataset).__name__,), counts, digest, extent=1, record_bytes=record_bytes)


def _chosen(dataset: Any) -> str:
    """What makes Subsets different from others of the same size, wherever in it they are; "" of any other dataset."""
    parts = list[str]()
    for part in parts_of(dataset):
        indices: Any = getattr(part, "indices", None)
        if length_of(indices) is not None and not callable(indices):
            parts.append(hashlib.sha256(repr(list(indices)).encode()).hexdigest()[:16])
        parts.append(str(getattr(part, "_fingerprint", "")))  # of Hugging Face's
    return " ".join(filter(None, parts))


def parts_of(dataset: Any, around: tuple[Any, ...] = ()) -> Iterator[Any]:
    """A dataset and what it is made of: a Subset's whole, the parts of a ConcatDataset. `around`: what it is inside."""
    if any(dataset is other for other in around):
        return
    yield dataset
    inside, several = getattr(dataset, "dataset", None), getattr(dataset, "datasets", None)
    for part in [inside] if inside is not None else several if isinstance(several, list | tuple) else ():
        yield from parts_of(part, (*around, dataset))
