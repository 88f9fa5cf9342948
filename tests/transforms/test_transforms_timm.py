"""timm's create_transform: its forms run on both engines; on the host engine they give timm's own pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, labelled, pixels, png
from kit.torchvision_way import ran
from PIL import Image
from timm.data import create_transform, random_erasing
from timm.data import transforms as timm_transforms
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode
from dali_feed.compiler.host import compile_host
from dali_feed.draws import STREAMS_PER_OP, uniforms
from dali_feed.errors import TransformError
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.erasing import NoisyErasing, RandomErasing
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Recipe, inner_numbers
from dali_feed.transforms.resize import RandomResizedCrop

EVAL: list[dict[str, Any]] = [
    {},
    {"interpolation": "bicubic", "crop_pct": 0.9},
    {"crop_mode": "squash"},
    {"normalize": False},
    {"use_prefetcher": True},
    {"is_training": True, "no_aug": True},
]
TRAINING: list[dict[str, Any]] = [
    {},
    {"interpolation": "bicubic"},
    {"interpolation": "random"},
    {"input_size": (24, 32)},
    {"re_prob": 0.5},
    {"re_prob": 0.5, "re_mode": "rand"},
    {"re_prob": 0.5, "re_mode": "pixel", "re_count": 3},
    {"color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5, "vflip": 0.5},
    {"use_prefetcher": True},
    {"normalize": False},
]


def made(**asked: Any) -> Any:
    """Timm's transform to 32 pixels, or as asked."""
    return create_transform(**({"input_size": 32} | asked))


@pytest.mark.parametrize("engine", ["host", "dali"])
@pytest.mark.parametrize("asked", [*EVAL, *({"is_training": True} | each for each in TRAINING)], ids=str)
def test_each_form_is_native(engine: str, asked: dict[str, Any]) -> None:
    """A batch of the size and dtype that timm gives, twice the same from the same seed."""
    if engine == "dali" and asked.get("re_mode"):
        pytest.skip("DALI has no random values for each pixel")
    source = ScriptedSource(labelled(6), extent=3)
    transform = made(**asked)
    runs = []
    for _ in range(2):
        with DataLoader(
            source, 6, transform=transform, device="cpu", decode=Decode(engine=engine), tuning=QUICK
        ) as loader:
            runs.append(next(iter(loader))[0])
    assert tuple(runs[0].shape[2:]) == tuple(asked.get("input_size", (32, 32)))
    whole = asked.get("use_prefetcher") or asked.get("normalize") is False
    assert runs[0].dtype == (torch.uint8 if whole else torch.float32)
    assert torch.equal(*runs)


def floats(image: torch.Tensor, recipe: Recipe) -> Any:
    """What a recipe does behind the levels of an image, by torchvision's functions."""
    out: Any = image
    for op in recipe.ops:
        if isinstance(op, ToFloat):
            out = v2.functional.to_dtype(out, getattr(torch, op.dtype), scale=op.scale)
        elif isinstance(op, Normalize):
            out = v2.functional.normalize(out, list(op.mean), list(op.std))
    return out


@pytest.mark.parametrize("asked", EVAL, ids=str)
def test_evaluation_gives_timms_pixels(asked: dict[str, Any]) -> None:
    """By torchvision v2's resize and crop of these settings the same bits; by timm, of PIL images, within 2 levels."""
    transform = made(**asked)
    for n, size in enumerate([(60, 47), (40, 81), (33, 32)]):
        recipe = lower(transform)
        (ours,) = ran(recipe, [png(n, *size)], [n])
        levels: Any = torch.from_numpy(pixels(n, *size)).permute(2, 0, 1)
        resize, crop = transform.transforms[:2]
        levels = v2.CenterCrop(crop.size)(v2.Resize(resize.size, resize.interpolation)(levels))
        assert torch.equal(ours, floats(levels, recipe))
        theirs = transform(Image.fromarray(pixels(n, *size)))
        assert theirs.dtype == ours.dtype
        level = 1 if ours.dtype == torch.uint8 else 1 / 255 / 0.22
        assert (ours.float() - theirs.float()).abs().max() <= 2 * level
        assert (ours.float() - theirs.float()).abs().mean() <= 0.2 * level


def test_an_interpolation_is_drawn_for_each_sample() -> None:
    """Bilinear for about half of them and bicubic for the others, of the window that the sample drew."""
    recipe = lower(timm_transforms.RandomResizedCropAndInterpolation(20, interpolation="random"))
    assert recipe.ops == (RandomResizedCrop((20, 20), interpolation="random"),)
    ids = list(range(40))
    rows = compile_host(recipe).parameters(np.array([[50, 60]] * 40), np.array(ids), 0, 0).arrays
    drawn = rows[Key("scale0")][:, 2].tolist()
    assert 10 < sum(drawn) < 30
    for n, ours in enumerate(ran(recipe, [png(1, 50, 60)] * 40, ids)):
        levels: Any = torch.from_numpy(pixels(1, 50, 60)).permute(2, 0, 1)
        mode = Mode.BICUBIC if drawn[n] else Mode.BILINEAR
        assert torch.equal(ours, v2.functional.resized_crop(levels, *rows[Key("window")][n].tolist(), [20, 20], mode))


def test_the_dali_engine_draws_the_same_interpolation() -> None:
    """Each sample is resized as the host engine does it, within what their resizes differ by."""
    source, drawn = ScriptedSource([(png(n, 40, 50), n) for n in range(12)]), []
    transform = timm_transforms.RandomResizedCropAndInterpolation(30, scale=(0.02, 0.1), interpolation="random")
    for engine in ("host", "dali"):
        with DataLoader(
            source, 12, transform=transform, device="cpu", decode=Decode(engine=engine), tuning=QUICK
        ) as loader:
            drawn.append(next(iter(loader))[0].float())
    assert (drawn[0] - drawn[1]).abs().mean((1, 2, 3)).max() < 0.5


class Replayed:
    """In the place of `random` in timm's erasing: numbers that a sample of ours drew, one rectangle after the other."""

    def __init__(self, first: Any, tries: Any) -> None:
        self.first, self.tries = first, tries  # (4,), and (rectangles, tries, 4)
        self.rectangle, self.at, self.word, self.counted = 0, -1, 4, False

    def random(self) -> float:
        """Whether at all."""
        return float(self.first[0])

    def uniform(self, low: float, high: float) -> float:
        """Area, and then the ratio, of the next try."""
        if self.word in (2, 4):
            self.rectangle, self.at = (
                (self.rectangle + 1, 0) if self.word == 4 and self.at >= 0 else (self.rectangle, self.at + 1)
            )
            self.word = 0
        self.word += 1
        return float(low + (high - low) * np.float64(self.tries[self.rectangle, self.at, self.word - 1]))

    def randint(self, low: int, high: int) -> int:
        """How many, or where one begins."""
        if not self.counted:
            self.counted = True
            return low + int(np.float64(self.first[1]) * (high - low + 1))
        self.word += 1
        return low + int(np.float64(self.tries[self.rectangle, self.at, self.word - 1]) * (high - low + 1))


def test_rectangles_are_timms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a sample's draws, timm's own RandomErasing erases the same pixels."""
    theirs = random_erasing.RandomErasing(0.7, max_area=0.6, mode="const", max_count=3, device="cpu")
    (op,) = lower(theirs).ops
    assert isinstance(op, NoisyErasing)
    assert op == NoisyErasing(0.7, (0.02, 0.6), op.ratio, "zero", 1, 3)
    assert op.ratio == pytest.approx((0.3, 1 / 0.3))
    recipe = Recipe((ToFloat(), op))
    changed = 0
    for n, ours in enumerate(ran(recipe, [png(2, 30, 40)] * 40, range(40))):
        first = uniforms(0, 0, np.array([n]), [STREAMS_PER_OP]).reshape(4)
        starts = [number * STREAMS_PER_OP for number in inner_numbers(op, 1, 3)]
        tries = uniforms(0, 0, np.array([n]), [s + t for s in starts for t in range(10)]).reshape(3, 10, 4)
        monkeypatch.setattr(random_erasing, "random", Replayed(first, tries))
        whole = floats(torch.from_numpy(pixels(2, 30, 40)).permute(2, 0, 1), recipe)
        expected = theirs(whole.clone())
        assert torch.equal(ours, expected)
        changed += not torch.equal(whole, expected)
    assert 20 < changed < 36


@pytest.mark.parametrize("mode", ["rand", "pixel"])
def test_what_is_drawn_into_rectangles(mode: str) -> None:
    """Normal numbers: one for each channel, or one for each value; another image has others, a second run the same."""
    (op,) = lower(random_erasing.RandomErasing(1.0, min_area=0.3, mode=mode, device="cpu")).ops
    recipe = Recipe((ToFloat(), op))
    sizes, ids = np.array([[60, 60]] * 20), np.arange(20)
    rows = compile_host(recipe).parameters(sizes, ids, 0, 0).arrays[Key("effect1")]
    every = []
    for n, ours in enumerate(ran(recipe, [png(3, 60, 60)] * 20, ids.tolist())):
        ((y, x, h, w),) = rows[n].tolist()
        inside = ours[:, y : y + h, x : x + w]
        assert (len(set(inside.flatten().tolist())) <= 3) == (mode == "rand")
        every.append(inside.flatten(1)[:, :1] if mode == "rand" else inside.flatten(1))
    values = torch.cat(every, dim=1)
    assert values.mean().abs() < 0.4
    assert 0.6 < values.std() < 1.4
    assert torch.equal(*(ran(recipe, [png(3, 60, 60)], [4])[0] for _ in range(2)))


def test_const_erasing_is_the_finish_steps() -> None:
    """One rectangle of zeros is torchvision's, with timm's bounds, so the GPU's finish kernel does it."""
    (op,) = lower(random_erasing.RandomErasing(0.25, device="cpu")).ops
    assert isinstance(op, RandomErasing)
    assert (op.p, op.scale, op.value) == (0.25, (0.02, 1 / 3), 0.0)
    assert op.ratio == pytest.approx((0.3, 1 / 0.3))


def test_the_error_of_what_is_not_known_names_timm() -> None:
    """By the name that people import it by."""
    with pytest.raises(TransformError, match="^transform: timm.data.RandomPad is not supported"):
        lower(timm_transforms.RandomPad((3, 3)))
    with pytest.raises(
        TransformError, match="interpolation must be BILINEAR, BICUBIC or NEAREST_EXACT; found 'lanczos'"
    ):
        lower(made(is_training=True, interpolation="lanczos"))
