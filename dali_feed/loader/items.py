"""Items: a feed's batch as the tuples, or dicts, of tensors that a training loop is given; MixUp and CutMix of them."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.columns.array import Jagged, Scaled
from dali_feed.columns.column import Column, Number
from dali_feed.columns.columns import Columns
from dali_feed.columns.follow import Follower
from dali_feed.columns.image import Image
from dali_feed.columns.packed import PackedBatch
from dali_feed.engines.engine import Pixels
from dali_feed.engines.finish import finished, mixed_up, scaled, shape_of, size_of
from dali_feed.errors import ConfigError
from dali_feed.feed import Batch, Feed
from dali_feed.feed.batch import MIX
from dali_feed.kernels.finish import MixArrays
from dali_feed.loader.functions import UserTransforms
from dali_feed.plan.batching import Shares
from dali_feed.records.extents import unpack_id
from dali_feed.records.source import LABEL
from dali_feed.transforms.mixing import Mixed, Mixing, label_pairs, mixed
from dali_feed.transforms.program import outline

# Which of a batch's columns has the labels that MixUp and CutMix mix.
#
# The law: of columns it is the one that torchvision's default `labels_getter` finds; where that takes the first of
# several, it has to be said which.


_MIX = "collate_fn: MixUp and CutMix mix"


def labels_of(columns: Columns) -> str:
    """The column's name. ConfigError where there is none, or where columns hold what mixing would falsify."""
    if not columns.preset:
        return _column(columns.by_name, as_tuple=columns.as_tuple)
    if LABEL not in columns.others:
        what = ", ".join(columns.others) or "none"
        raise ConfigError(f"{_MIX} labels; the source's columns must have {LABEL!r}, found {what}")
    return LABEL


def _column(columns: Mapping[str, Column], *, as_tuple: bool) -> str:
    images = [name for name, each in columns.items() if isinstance(each, Image)]
    if len(images) != 1:
        msg = f"{_MIX} images with labels; columns must have one Image, found {_named(images) or _named(columns)}"
        raise ConfigError(msg)
    followers = [name for name, each in columns.items() if isinstance(each, Follower)]
    if followers:
        raise ConfigError(
            f"{_MIX} images with labels, and cannot mix masks, boxes and keypoints, as torchvision's cannot; found"
            f" {_named(followers)}. Leave them out, or collate_fn"
        )
    if as_tuple:
        name = list(columns)[1] if len(columns) > 1 else ""
        if not _is_label(columns.get(name)):
            raise ConfigError(
                f"{_MIX} labels; in a sequence of columns they are the second one, which must be a Number of "
                f"whole numbers, found {columns.get(name, 'none')}. Put it there, or give columns as a dict"
            )
        return name
    names = [name for name in columns if name.lower() == "labels"]
    names = names or [name for name in columns if "label" in name.lower()]
    labels = [name for name in names if _is_label(columns[name])]
    if len(labels) == 1:
        return labels[0]
    what = f"{_named(labels)}, and one must be chosen. Name it 'labels'" if labels else f"{_named(names or columns)}"
    cure = "" if labels else ". Name it 'label'"
    raise ConfigError(f"{_MIX} labels, a column of whole Numbers with 'label' in its name; found {what}{cure}")


def _is_label(column: Column | None) -> bool:
    return isinstance(column, Number) and np.dtype(column.dtype).kind in "iu"


def _named(names: object) -> str:
    return ", ".join(map(repr, names))  # type: ignore[call-overload]


# MixUp and CutMix, given as collate_fn: a batch's images and labels mixed by our random numbers.
#
# The law: a sample's partner and weights are a function of (seed, epoch, sample, the slot before it). So a
# resumed run mixes as it would have, at any world size.


_NAMES = tuple(field.name for field in dataclasses.fields(Mixed))
_LABELS, _WEIGHTS = "labels that meet", "weights of both"


class Mixes:
    """Applies a `Mixing` to the batches of a feed, of which it keeps nothing; the column `labels_in` has their labels.

    Raises ConfigError for batches that cannot be mixed: no labels, several views, uint8 images, lanes of one sample.
    """

    def __init__(
        self, mixing: Mixing, feed: Feed, where: Callable[[int], str], own: Sequence[UserTransforms | None] = ()
    ) -> None:
        program = feed.program
        self._mixing, self._seed, self._where = mixing, feed.seed, where
        self._channels_last = program.recipe.layout == "NHWC"
        self.labels_in = labels_of(feed.columns)
        if program.several:
            raise ConfigError("collate_fn: MixUp and CutMix mix one image per sample; found several views of it")
        if any(own):
            msg = "collate_fn: MixUp and CutMix mix the images that transforms made; found your own function after them"
            raise ConfigError(msg)
        if program.fixed and outline(program.recipe).dtype == "uint8":
            raise self._not_float(torch.uint8)
        self.check(feed.ranks)  # whose records have not been looked at yet

    def check(self, shares: Shares) -> None:
        """Raise ConfigError where each sample of a batch is alone in its lane, though the batch has others."""
        if shares.per_lane == 1 and shares.lanes > 1:
            rule = "mix a sample with the one before it in its lane, which must be another one"
            what = f"found lanes={shares.lanes} in global batches of {shares.batch_size * shares.world_size} samples"
            raise ConfigError(f"collate_fn: MixUp and CutMix {rule}; {what}. Give a larger batch_size, or fewer lanes")

    def _not_float(self, what: object) -> ConfigError:
        cure = "Let the transform end in ToDtype(torch.float32, scale=True)"
        return ConfigError(f"collate_fn: MixUp and CutMix mix floats; found images of {what}. {cure}")

    def drawn(self, batch: Batch, epoch: int) -> dict[str, NDArray[Any]]:
        """Arrays that go with a batch: the random numbers, and both labels of each sample with their weights.

        Nothing where its images cannot be mixed, for which `images` raises. Raises ConfigError for labels that are no
        classes, and names the first record where one is outside them.
        """
        size = self._size(batch)
        if size is None:
            return {}
        drawn = mixed(self._mixing, batch.ids, self._seed, epoch, size, batch.lanes)
        pairs, weights = label_pairs(self._checked(batch), drawn)
        return {
            **{MIX + name: getattr(drawn, name) for name in _NAMES},
            _LABELS: pairs,
            _WEIGHTS: weights,
        }

    def _size(self, batch: Batch) -> tuple[int, int] | None:
        if batch.tail is not None:
            return size_of(batch.images)
        shape = shape_of(batch.images)
        if len(shape) != 4:
            return None
        height, width, channels = shape[1:] if self._channels_last else (*shape[2:], shape[1])
        return (height, width) if channels == 3 else None

    def _checked(self, batch: Batch) -> NDArray[Any]:
        mixing, labels = self._mixing, batch.fields[self.labels_in]
        if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu":
            what = labels.dtype if isinstance(labels, np.ndarray) else type(labels[0]).__name__
            msg = f"collate_fn: MixUp and CutMix mix labels that are whole numbers of classes; found {what}"
            raise ConfigError(msg)
        if mixing.classes is None:
            return labels
        for slot in np.flatnonzero((labels < 0) | (labels >= mixing.classes))[:1].tolist():
            rule = f"labels must lie in 0..{mixing.classes - 1}, because classes={mixing.classes}"
            raise ConfigError(f"collate_fn: {rule}; found {labels[slot]} in {self._where(int(batch.ids[slot]))}")
        return labels.astype(np.int64, copy=False)  # which all of them fit, for a comparison on the device

    def images(self, batch: Batch, plain: torch.Tensor | None) -> torch.Tensor:
        """The batch's images (n, 3, height, width), mixed.

        `plain`: the images where nothing is left to finish; their memory is written to.
        """
        if plain is not None and not plain.is_floating_point():
            raise self._not_float(plain.dtype)
        if plain is not None and _LABELS not in batch.companions:
            cure = "Let a graph of your own end in channels, height, width"
            msg = f"collate_fn: MixUp and CutMix mix images (n, 3, height, width); found {tuple(plain.shape)}. {cure}"
            raise ConfigError(msg)
        known = batch.companions if plain is not None and not plain.is_cuda else batch.sent
        drawn = {name: known[MIX + name] for name in _NAMES}
        if plain is None:
            return finished(batch.images, batch.tail, batch.device, _on_gpu(drawn))
        if plain.is_cuda:
            return mixed_up(plain, _on_gpu(drawn))
        return mix_in_place(plain, Mixed(**drawn), batch.lanes)

    def labels(self, tensor_for: Callable[[str], torch.Tensor]) -> Any:
        """Labels as a distribution, float32 (n, classes); without `classes` both labels and their weights, (n, 2) each.

        `tensor_for`: what went with the batch, by name, on the device.
        """
        mixing, pairs, weights = self._mixing, tensor_for(_LABELS), tensor_for(_WEIGHTS)
        if mixing.classes is None:
            return pairs, weights
        return spread(pairs, weights, mixing.classes, mixing.smoothing)


def _on_gpu(drawn: dict[str, Any]) -> MixArrays:
    return MixArrays(drawn["partner"], drawn["weight"], drawn["box"])


def spread(pairs: torch.Tensor, weights: torch.Tensor, classes: int, smoothing: float) -> torch.Tensor:
    """`soft_labels` of label_pairs, bit for bit, on the device that they are on, without a wait.

    Element by element: what adds to chosen places has no fixed order on a GPU, or waits in torch's deterministic mode.
    """
    numbers = torch.arange(classes, device=pairs.device)
    shares = weights * float(np.float32(1 - smoothing))
    soft = torch.full((len(pairs), classes), smoothing / classes, dtype=torch.float32, device=pairs.device)
    for k in range(2):
        soft += torch.where(numbers == pairs[:, k : k + 1], shares[:, k : k + 1], 0.0)
    return soft


def mix_in_place(images: torch.Tensor, drawn: Mixed, lanes: int = 1) -> torch.Tensor:
    """Mix images (n, 3, height, width) of any float on the CPU, in float32 as the kernel does, one by one in its cache.

    From the last sample of a lane's part to its first each meets the one before it, which is still itself; just the
    last is kept for the first.
    """
    part, spare = len(images) // lanes, torch.empty(images.shape[1:])
    for first in range(0, len(images), max(part, 1)):
        last = images[first + part - 1].clone()
        for slot in reversed(range(first, first + part)):
            other = images[slot - 1] if slot > first else last
            _mix(images[slot], other, drawn.weight[slot], drawn.box[slot].tolist(), spare)
    return images


def _mix(image: torch.Tensor, other: torch.Tensor, weight: np.float32, box: list[int], spare: torch.Tensor) -> None:
    if weight != 1:
        torch.mul(other.float(), float(np.float32(1) - weight), out=spare)
        image.copy_(image.float().mul_(float(weight)).add_(spare))
    y, x, height, width = box
    if height and width:
        image[:, y : y + height, x : x + width] = other[:, y : y + height, x : x + width]


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
    if not any(issubclass(kind, np.ndarray) for kind in set(map(type, values))):
        return values  # as bytes and texts are: no look at each of them
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
        mixing = None if collate_fn is None else Mixing.lowered(collate_fn)
        self.mixes = None if mixing is None else Mixes(mixing, feed, self._where, own)
        calls = mixing is None and collate_fn is not torch.utils.data.default_collate
        self._collate: Any = collate_fn if calls else None
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


# A batch of any kind on its way to the device.


def moved(item: Any, device: torch.device) -> Any:
    """A batch with its tensors on the device, inside any lists, tuples and mappings; unchanged on the CPU."""
    if device.type == "cpu":
        return item
    if isinstance(item, torch.Tensor):
        return _pinned(item, device).to(device, non_blocking=True)
    if callable(getattr(item, "to", None)):
        return item.to(device)
    if isinstance(item, MutableMapping):
        out = copy.copy(item)  # of its own class
        out.update({key: moved(value, device) for key, value in item.items()})
        return out
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(moved(value, device) for value in item))
    if isinstance(item, list | tuple):
        there = [moved(value, device) for value in item]
        return tuple(there) if isinstance(item, tuple) else there
    return item


def _pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """In page-locked memory where it goes to a GPU: a copy from other memory waits for the GPU's queued work."""
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.requires_grad
    if device.type == "cuda" and tensor.device.type == "cpu" and plain and not tensor.is_pinned():
        return tensor.pin_memory()  # of a tensor with a class of its own it would make a plain one
    return tensor
