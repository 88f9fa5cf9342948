"""AutoAugment and its kind by torchvision's own v2 classes, which are handed our draws in place of torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import _auto_augment

from dali_feed.draws import uniforms
from dali_feed.transforms.auto_augment import AugMix


class Scripted:
    """torch, with numbers that are given: what `randint` and `rand` are asked for, in turn."""

    def __init__(self, numbers: Iterator[float]) -> None:
        self._numbers = numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, size: tuple[int, ...]) -> torch.Tensor:
        """One uniform number."""
        assert size == ()
        return torch.tensor(next(self._numbers), dtype=torch.float64)

    def randint(self, *bounds: int, size: tuple[int, ...] = (), low: int = 0, high: int = 0) -> torch.Tensor:
        """One int below the bound, or from `low` on."""
        most = bounds[0] if bounds else high
        return torch.tensor(low + int(next(self._numbers) * (most - low))).reshape(size)


def replayed(transform: Any, image: torch.Tensor, sample: int, number: int = 0) -> torch.Tensor:
    """What `transform`, standing `number`th in a recipe, makes of the image of a sample, in epoch 0 of seed 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_auto_augment, "torch", Scripted(_numbers(transform, sample, number)))
        out: torch.Tensor = transform(image)
    return out


def drawn(sample: int, stream: int) -> list[float]:
    """A stream's four numbers."""
    values: list[float] = uniforms(0, 0, np.array([sample]), [stream])[:, 0].astype(np.float64).tolist()
    return values


def _numbers(transform: Any, sample: int, number: int) -> Iterator[float]:
    """Our draws in the order in which torchvision asks for them."""
    first = 16 * number
    match type(transform).__name__:
        case "AutoAugment":
            which, *chances = drawn(sample, first)
            yield which
            policy = transform._policies[int(which * len(transform._policies))]
            for (name, p, _), chance, sign in zip(policy, chances, drawn(sample, first + 1), strict=False):
                yield chance
                if chance < p and transform._AUGMENTATION_SPACE[name][1]:
                    yield sign
        case "RandAugment":
            for k in range(transform.num_ops):
                yield from _step(transform._AUGMENTATION_SPACE, drawn(sample, first + k), strong=False)
        case "TrivialAugmentWide":
            yield from _step(transform._AUGMENTATION_SPACE, drawn(sample, first))
        case "AugMix":
            every, part = transform._AUGMENTATION_SPACE, transform._PARTIAL_AUGMENTATION_SPACE
            for k in range(transform.mixture_width):
                start = 16 * (number + ((k + 1) << 8)) + 8
                depth = transform.chain_depth
                if depth <= 0:
                    chance = drawn(sample, start)[3]
                    yield chance
                    depth = 1 + int(chance * 3)
                for step in range(depth):
                    yield from _step(every if transform.all_ops else part, drawn(sample, start + step))


def _step(space: dict[str, Any], numbers: list[float], *, strong: bool = True) -> Iterator[float]:
    which, bin_, sign, _ = numbers
    yield which
    strengths, signed = list(space.values())[int(which * len(space))]
    if strong and strengths(10, 9, 9) is not None:
        yield bin_
    if signed:
        yield sign


def with_weights(transform: Any, weights: np.ndarray[Any, Any]) -> Any:
    """An AugMix that mixes by our weights: of the image itself, and of each chain."""
    own, chains = torch.from_numpy(weights[:1]), torch.from_numpy(weights[1:])
    answers = iter([torch.stack([own, torch.ones(1)], dim=1), chains[None]])
    transform._sample_dirichlet = lambda _: next(answers)
    return transform


def applied_auto(image: torch.Tensor, op: Any, row: Any, weights: Any) -> torch.Tensor:
    """The operations of a row of choices, by torchvision's own dispatcher and tables of strengths."""
    transform: Any = getattr(_auto_augment, type(op).__name__)()
    space = transform._AUGMENTATION_SPACE
    if isinstance(op, AugMix) and not op.all_ops:
        space = transform._PARTIAL_AUGMENTATION_SPACE
    bins = getattr(op, "bins", 10)

    def run(image: torch.Tensor, chain: Any) -> torch.Tensor:
        for which, strong, sign in chain:
            if which >= 0:
                name, (strengths, _) = list(space.items())[which]
                found = strengths(bins, *image.shape[-2:])
                strength = 0.0 if found is None else float(found[strong]) * sign
                fill = {"others": list(op.fill) if isinstance(op.fill, tuple) else op.fill}
                image = transform._apply_image_or_video_transform(image, name, strength, op.interpolation, fill)
        return image

    if not isinstance(op, AugMix):
        return run(image, row[0])
    mixed = torch.tensor(weights[0], dtype=torch.float32).reshape(1, 1, 1, 1) * image[None]
    for chain, weight in zip(row, weights[1:], strict=True):
        mixed += torch.tensor(weight, dtype=torch.float32).reshape(1, 1, 1, 1) * run(image[None], chain)
    return mixed[0].to(image.dtype)
