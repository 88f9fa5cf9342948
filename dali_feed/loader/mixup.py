"""Which of a batch's columns has the labels that MixUp and CutMix mix.

The law: of columns it is the one that torchvision's default `labels_getter` finds; where that takes the first of
several, it has to be said which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.columns.column import Column, Follower
from dali_feed.columns.columns import Columns
from dali_feed.columns.image import Image
from dali_feed.columns.number import Number
from dali_feed.engines.finish import finished, mixed_up, shape_of, size_of
from dali_feed.errors import ConfigError
from dali_feed.feed.batch import MIX
from dali_feed.kernels.finish import MixArrays
from dali_feed.plan.batching import Shares
from dali_feed.records.source import LABEL
from dali_feed.transforms.mixing import Mixed, Mixing, label_pairs, mixed
from dali_feed.transforms.program import outline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dali_feed.feed import Batch, Feed
    from dali_feed.loader.functions import UserTransforms

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
