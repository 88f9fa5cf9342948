"""Items: a feed's batch as the tuples, or dicts, of tensors that a training loop is given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.columns.array import Scaled
from dali_feed.columns.packed import PackedBatch
from dali_feed.columns.ragged import Jagged
from dali_feed.engines.engine import Pixels
from dali_feed.engines.finish import finished, scaled
from dali_feed.errors import ConfigError
from dali_feed.feed import Batch, Feed
from dali_feed.loader.arguments import moved
from dali_feed.loader.functions import UserTransforms
from dali_feed.loader.mixup import Mixes
from dali_feed.records.extents import unpack_id
from dali_feed.transforms.mixing import Mixing

# Columns as they were made, given to a training loop: arrays as tensors, all else as it is.
#
# A column of a batch is an array, a list of n values, or a named tuple of those: a user's own too.


def arrays_of(name: str, values: Any) -> dict[str, NDArray[Any]]:
    """The arrays of numbers in a column, by `name`, or by "name.part" for each part of a named tuple."""
    if isinstance(values, Scaled):
        return {name: _sound(values.rows)}
    if _is_named(values):
        return {f"{name}.{part}": _sound(each) for part, each in values._asdict().items() if _is_numbers(each)}
    return {name: _sound(values)} if _is_numbers(values) else {}


def as_tensors(
    name: str, values: Any, tensor_for: Callable[[str], torch.Tensor], moved: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    """A column with tensors on the device in place of arrays of numbers.

    `tensor_for` has what `arrays_of` named; `moved` takes a tensor there: of an array of one record, as its boxes.
    """
    if isinstance(values, Scaled):
        return tensor_for(name)
    if _is_named(values):
        parts = values._asdict().items()
        whole = type(values)(*(as_tensors(f"{name}.{part}", each, tensor_for, moved) for part, each in parts))
        return nested(whole) if isinstance(whole, Jagged) else whole
    if _is_numbers(values):
        return tensor_for(name)
    if type(values) is not list:
        return values
    return [moved(torch.from_numpy(_sound(value))) if _is_numbers(value) else value for value in values]


def per_sample(values: Any) -> list[Any]:
    """A column as a list of one value per sample, for a collate_fn; tensors are on the CPU.

    A column of numbers, (n,), gives Python's, as torch's datasets do; a named tuple one of tensors per sample. Views
    become bytes, which torch's own collate_fn takes.
    """
    if isinstance(values, Jagged):
        values = values.split()
    if isinstance(values, Scaled):
        values = values.whole()
    if _is_named(values):
        parts = ([torch.as_tensor(v) for v in each] if _is_numbers(each) else per_sample(each) for each in values)
        return [type(values)(*row) for row in zip(*parts, strict=True)]
    if isinstance(values, np.ndarray) and values.ndim == 1:
        numbers: list[Any] = values.tolist()
        return numbers
    return [
        torch.from_numpy(_sound(value)) if _is_numbers(value) else bytes(value) if type(value) is memoryview else value
        for value in values
    ]


def nested(rows: Jagged) -> torch.Tensor:
    """Rows that are tensors, as a nested tensor over them."""
    offsets = torch.nn.functional.pad(rows.count.cumsum(0), (1, 0))
    return torch.nested.nested_tensor_from_jagged(rows.rows, offsets)


def _is_named(values: Any) -> bool:
    return isinstance(values, tuple) and hasattr(values, "_fields")


def _is_numbers(values: Any) -> bool:
    """Whether it is an array of what torch can hold."""
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.dtype.isnative


def _sound(array: NDArray[Any]) -> NDArray[Any]:
    """The array, copied where torch takes none of its kind: read-only, or read backwards as `image[..., ::-1]` is."""
    return array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()


_COLUMN = "column "  # and its name: what goes with a batch


@dataclass(frozen=True, slots=True)
class Info:
    """Which records a batch holds.

    ids    int64 (n,), on the CPU: (partition << 40) | position of the records in the slots
    ok     bool (n,), on the CPU: False where another record replaces one that is absent or bad
    where  the same records' coordinates as people write them
    """

    ids: torch.Tensor
    ok: torch.Tensor
    where: tuple[str, ...]


class Items:
    """Makes a dict or a tuple of a batch's columns, with `info` behind it, or what collate_fn makes of the samples.

    Where the source's own columns are one image it makes just that. It keeps nothing of the feed, which has its
    `companions`.
    """

    def __init__(
        self,
        feed: Feed,
        device: torch.device,
        collate_fn: Callable[[list[Any]], Any] | Mixing | None,
        own: Sequence[UserTransforms | None] = (None,),
        *,
        info: bool,
    ) -> None:
        source: Any = feed.source
        self._where: Callable[[int], str] = lambda sample: source.where(*unpack_id(sample))
        self._device, self._wants_info = device, info
        mixing = collate_fn if isinstance(collate_fn, Mixing) else Mixing.lowered(collate_fn)
        self.mixes = None if mixing is None else Mixes(mixing, feed, self._where, own)
        plain = None if isinstance(collate_fn, Mixing) or mixing is not None else collate_fn
        self._collate = None if plain is torch.utils.data.default_collate else plain
        self._columns, self._images = feed.columns, tuple(feed.columns.images)
        self._last = feed.program.recipe.layout == "NHWC"
        self._several = feed.program.several
        self._channels = [output.recipe.channels for output in feed.program.outputs]
        self._own = [*own, *[None] * len(self._channels)][: len(self._channels)]

    def __call__(self, batch: Batch) -> Any:
        """The item of a batch."""
        with batch.reading():
            return self._whole_item(batch)

    def _whole_item(self, batch: Batch) -> Any:
        if self.mixes is not None:
            return self._whole(batch, self._mixed(batch, self.mixes), self._others(batch))
        shown = (batch, *batch.more) if self._channels else ()
        views = [self._cut(self._shown(each), view) for view, each in enumerate(shown)]
        changed = [
            None if own is None or not len(batch) else own(view, lambda slot: self._where(int(batch.ids[slot])))
            for view, own in zip(views, self._own, strict=True)
        ]
        if self._collate is None:
            joined = [view if each is None else self._joined(each) for view, each in zip(views, changed, strict=True)]
            return self._whole(batch, joined if self._several else joined[0] if joined else None, self._others(batch))
        lists = [self._listed(batch.fields[name]) for name in self._columns.others]
        alone = [view.unbind(0) if each is None else each for view, each in zip(views, changed, strict=True)]
        images = list(map(list, zip(*alone, strict=True))) if self._several else (alone or [[None] * len(batch)])[0]
        samples = [self._item(*sample) for sample in zip(images, *lists, strict=True)]
        item = moved(self._collate(samples), self._device)
        return (item, self._info(batch)) if self._wants_info else item

    def _item(self, images: Any, *others: Any) -> Any:
        """Images and the other columns as they are given out: a dict of columns, a tuple, or images alone."""
        columns = self._columns
        if columns.alone:
            return images
        values = dict(zip(columns.others, others, strict=True))
        values |= zip(self._images, images if len(self._images) > 1 else [images], strict=False)
        item = {name: values[name] for name in columns.names}
        return tuple(item.values()) if columns.as_tuple else item

    def _whole(self, batch: Batch, images: Any, others: list[Any]) -> Any:
        item = self._item(images, *others)
        if not self._wants_info:
            return item
        return (*item, self._info(batch)) if isinstance(item, tuple) else (item, self._info(batch))

    def companions(self, batch: Batch, epoch: int) -> dict[str, NDArray[Any]]:
        """What the feed thread prepares with a batch, and sends to a GPU: random numbers, columns that make arrays."""
        arrays = {} if self.mixes is None else self.mixes.drawn(batch, epoch)
        for name in self._columns.others if self._collate is None else ():
            if self.mixes is None or name != self.mixes.labels_in:
                arrays |= arrays_of(_COLUMN + name, batch.fields[name])
        return arrays

    def _mixed(self, batch: Batch, mixes: Mixes) -> torch.Tensor:
        plain = self._shown(batch) if batch.tail is None else None
        if plain is not None and not len(batch):  # of a stream on which nothing comes
            return self._cut(plain, 0)
        images = mixes.images(batch, plain)
        images = images.permute(0, 3, 1, 2) if plain is None and self._last else images
        return self._cut(images, 0)

    def _others(self, batch: Batch) -> list[Any]:
        """The columns but images, arrays as tensors on the device; mixed labels as they are mixed."""
        tensor_for, move = functools.partial(self._sent, batch), functools.partial(moved, device=self._device)
        return [
            self.mixes.labels(tensor_for)
            if self.mixes is not None and name == self.mixes.labels_in
            else as_tensors(_COLUMN + name, batch.fields[name], tensor_for, move)
            for name in self._columns.others
        ]

    def _sent(self, batch: Batch, name: str) -> torch.Tensor:
        """What went with a batch, copied: labels that are kept would else keep the whole block they came in."""
        if name in batch.sent and batch.device is not None:
            values = batch.fields.get(name.removeprefix(_COLUMN))
            if isinstance(values, Scaled):
                return scaled(batch.sent[name], values, batch.device)
            return batch.device.copy(batch.sent[name])
        there: torch.Tensor = moved(torch.from_numpy(batch.companions[name]), self._device)
        return there

    def _joined(self, each: list[Any]) -> Any:
        """What the user's functions made of the images, as torch joins samples."""
        joined = moved(torch.utils.data.default_collate(each), self._device)
        if self._last and isinstance(joined, torch.Tensor) and joined.ndim == 4:
            return joined.contiguous(memory_format=torch.channels_last)
        return joined

    @staticmethod
    def _listed(values: Any) -> list[Any]:
        if isinstance(values, PackedBatch):
            raise ConfigError(
                "collate_fn: it is called with a list of records, but a row of Packed has several records; leave "
                "one of the two out"
            )
        return per_sample(values)

    def _info(self, batch: Batch) -> Info:
        where = tuple(map(self._where, batch.ids.tolist()))
        return Info(torch.from_numpy(batch.ids), torch.from_numpy(batch.ok), where)

    def _shown(self, pixels: Pixels) -> torch.Tensor:
        """The finished images, in torch's order of dimensions."""
        images = finished(pixels.images, pixels.tail, pixels.device)
        return images.permute(0, 3, 1, 2) if self._last else images

    def _cut(self, images: torch.Tensor, view: int) -> torch.Tensor:
        """With as many channels as the user's transform gives: where that is one, the engine gives three equal ones."""
        channels = self._channels[view]
        return images if channels == 3 else images[:, :channels].contiguous()
