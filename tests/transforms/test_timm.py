"""timm's transforms: with our draws timm's own classes make the same sizes, windows, rectangles and pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.images import QUICK, pixels, png
from kit.later import Later
from kit.properties import examples
from kit.torchvision_way import ran
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dali_feed import DataLoader, Decode
from dali_feed.draws import STREAMS_PER_OP, uniforms
from dali_feed.engines.choose import compiled
from dali_feed.errors import TransformError
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CropOrPad, Pad, RandomCrop, TrimBorder
from dali_feed.transforms.erasing import NoisyErasing, RandomErasing
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Key, Op, Recipe, inner_numbers
from dali_feed.transforms.program import HostProgram, compile_host, unfit
from dali_feed.transforms.resize import Resize, ResizeKeepRatio
from dali_feed.transforms.timm_augment import TimmAugMix, TimmAutoAugment, TimmPart, TimmRandAugment

DATA = "timm.data"
timm, auto_augment, random_erasing, timm_transforms = (
    Later(f"{DATA}{name}") for name in ("", ".auto_augment", ".random_erasing", ".transforms")
)

FORMS: list[dict[str, Any]] = [{"crop_mode": "border"}, {"input_size": (24, 32)}, {"crop_border_pixels": 2}]
EVAL: list[dict[str, Any]] = [
    *FORMS,
    {},
    {"interpolation": "bicubic", "crop_pct": 0.9},
    {"crop_mode": "squash"},
    {"normalize": False},
    {"use_prefetcher": True},
    {"is_training": True, "no_aug": True},
]
SIZES = [(60, 47), (40, 81), (33, 32), (20, 20), (200, 30)]


def made(**asked: Any) -> Any:
    """Timm's transform to 32 pixels, or as asked."""
    return timm.create_transform(**({"input_size": 32} | asked))


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
    """Within two levels of timm of PIL images; by torchvision v2's resize and crop of these settings the same bits."""
    transform = made(**asked)
    recipe = lower(transform)
    for n, size in enumerate([(60, 47), (40, 81), (33, 32)]):
        (ours,) = ran(recipe, [png(n, *size)], [n])
        theirs = transform(Image.fromarray(pixels(n, *size)))
        assert theirs.dtype == ours.dtype
        level = 1 if ours.dtype == torch.uint8 else 1 / 255 / 0.22
        assert (ours.float() - theirs.float()).abs().max() <= 2 * level
        assert (ours.float() - theirs.float()).abs().mean() <= 0.2 * level
        if asked not in FORMS:
            levels: Any = torch.from_numpy(pixels(n, *size)).permute(2, 0, 1)
            resize, crop = transform.transforms[:2]
            levels = v2.CenterCrop(crop.size)(v2.Resize(resize.size, resize.interpolation)(levels))
            assert torch.equal(ours, floats(levels, recipe))


class ReplayedErasing:
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
        starts = [number * STREAMS_PER_OP for number in inner_numbers(op, 1)]
        tries = uniforms(0, 0, np.array([n]), [s + t for s in starts for t in range(10)]).reshape(3, 10, 4)
        monkeypatch.setattr(f"{DATA}.random_erasing.random", ReplayedErasing(first, tries))
        whole = floats(torch.from_numpy(pixels(2, 30, 40)).permute(2, 0, 1), recipe)
        expected = theirs(whole.clone())
        assert torch.equal(ours, expected)
        changed += not torch.equal(whole, expected)
    assert 20 < changed < 36


def test_const_erasing_is_the_finish_steps() -> None:
    """One rectangle of zeros is torchvision's, with timm's bounds, so the GPU's finish kernel does it."""
    (op,) = lower(random_erasing.RandomErasing(0.25, device="cpu")).ops
    assert isinstance(op, RandomErasing)
    assert (op.p, op.scale, op.value) == (0.25, (0.02, 1 / 3), 0.0)
    assert op.ratio == pytest.approx((0.3, 1 / 0.3))


# ResizeKeepRatio, CropOrPad and TrimBorder.


class Replayed:
    """In the place of `random` in timm's transforms: numbers that a sample of ours drew, in its order."""

    def __init__(self, *drawn: float) -> None:
        self.drawn = list(map(np.float64, drawn))

    def random(self) -> float:
        """Whether."""
        return float(self.drawn.pop(0))

    def uniform(self, low: float, high: float) -> float:
        """How much."""
        return float(low + (high - low) * self.drawn.pop(0))

    def randint(self, low: int, high: int) -> int:
        """Where."""
        return low + int((high - low + 1) * self.drawn.pop(0))


@pytest.mark.parametrize("longest", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("area", [False, True])
def test_sizes_are_timms(longest: float, area: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our draws, timm's own get_params gives the same heights and widths."""
    theirs = timm_transforms.ResizeKeepRatio((30, 40), longest, "random", 0.5, (0.7, 1.3), area, 0.5, (0.8, 1.25))
    (op,) = lower(theirs).ops
    assert isinstance(op, ResizeKeepRatio)
    assert op.interpolation == "random"
    rng = np.random.default_rng(1)
    for high, wide in SIZES:
        drawn = rng.random((4, 50)).astype(np.float32)
        ours = op.resized(np.full(50, high), np.full(50, wide), drawn)
        image = Image.fromarray(pixels(0, high, wide))
        for n in range(50):
            scaled, squeezed = drawn[0, n] < 0.5, drawn[2, n] < 0.5
            used = [drawn[0, n], *([drawn[1, n]] if scaled else []), drawn[2, n], *([drawn[3, n]] if squeezed else [])]
            monkeypatch.setattr(f"{DATA}.transforms.random", Replayed(*used))
            asked = (theirs.size, longest, 0.5, (0.7, 1.3), area, 0.5, (0.8, 1.25))
            assert [int(ours[0][n]), int(ours[1][n])] == theirs.get_params(image, *asked)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("anywhere", [False, True])
def test_windows_are_timms(mode: str, anywhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our draws, timm's own crop or padding gives the same pixels."""
    kind = timm_transforms.RandomCropOrPad if anywhere else timm_transforms.CenterCropOrPad
    theirs = kind((30, 26), fill=7, padding_mode=mode)
    recipe = lower(theirs)
    for size in [(40, 50), (24, 50), (41, 17), (21, 23)]:
        for n, ours in enumerate(ran(recipe, [png(1, *size)] * 6, range(6))):
            drawn = uniforms(0, 0, np.array([n]), [0])[:2, 0]
            monkeypatch.setattr(f"{DATA}.transforms.random", Replayed(*drawn))
            assert torch.equal(ours, theirs(torch.from_numpy(pixels(1, *size)).permute(2, 0, 1)))


def test_images_that_cannot_be_fitted_are_bad_records() -> None:
    """Nothing left without its border, or more to mirror than there is: one slot, with the size in the reason."""
    sizes = np.array([[20, 20], [4, 30], [9, 9], [0, 0]])
    assert unfit(Recipe((TrimBorder(2),)), sizes) == {
        1: "TrimBorder: nothing is left without 2 pixels at each edge; found 30x4"
    }
    reflect = Recipe((CropOrPad((20, 20), mode="reflect"),))
    assert list(unfit(reflect, sizes)) == [1]
    assert list(unfit(Recipe((CropOrPad((20, 20), anywhere=True, mode="symmetric"),)), sizes)) == [1, 2]
    assert unfit(Recipe((ResizeKeepRatio((20, 20)), CropOrPad((20, 20), mode="reflect"))), sizes) == {}
    # Random ops in front: what counts is the least that they can leave, so that no window ever leaves its image.
    smaller = ResizeKeepRatio((20, 20), scale_p=0.5, scale=(0.5, 1.5))
    assert list(unfit(Recipe((smaller, RandomCrop((20, 20)))), sizes)) == [0, 1, 2]
    assert list(unfit(Recipe((smaller, RandomCrop((20, 20), (5, 5, 5, 5)))), sizes)) == []


UNSIZED: list[Op] = [
    *(Pad((1, 0, 2, 3)), Resize(20), Resize(9, 30)),
    ResizeKeepRatio((20, 30), 0.3, "bilinear", 0.5, (0.6, 1.4), aspect_p=0.5),
    ResizeKeepRatio((20, 30), 1.0, "bilinear", 1.0, (1.2, 1.4), area=True, aspect_p=1.0),
]


@examples(times=4)
@given(
    st.lists(st.sampled_from(UNSIZED), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(20, 90), st.integers(20, 90)), min_size=1, max_size=8),
    st.integers(0, 2**64 - 1),
)
def test_no_draw_leaves_the_bounds_of_a_size(ops: list[Op], sizes: list[tuple[int, int]], seed: int) -> None:
    """Through any ops that keep an image's ratio, at random or not: a crop that nothing says to be unfit fits."""
    known = np.array(sizes)
    least, most = ((known[:, 0], known[:, 1]),) * 2
    for op in ops:
        least, most = op.bounds(least, most)
    found = compile_host(Recipe(tuple(ops))).parameters(known, np.arange(len(sizes)), seed, 0).sizes
    assert (np.stack(least, axis=1) <= found).all()
    assert (found <= np.stack(most, axis=1)).all()


def test_on_a_gpu_the_host_engine_takes_what_dali_cannot() -> None:
    """Where nobody chose an engine; one that was chosen says so."""
    transform = timm.create_transform(32, is_training=True, train_crop_mode="rkrc")
    (output,) = compiled(transform, Decode(), 0).outputs
    assert output.engine == "host"
    assert isinstance(output.program, HostProgram)
    with pytest.raises(TransformError, match="the dali engine knows padding_mode"):
        compiled(transform, Decode(engine="dali"), 0)
    assert compiled(timm.create_transform(32), Decode(), 0).engine == "dali"
    assert compiled(timm.create_transform(20, is_training=True, auto_augment="v0"), Decode(), 0).engine == "host"


LOOK: dict[str, Any] = {"translate_const": 12, "img_mean": (124, 116, 104)}
MADE = {
    "rand-m9-mstd0.5-inc1": "rand_augment_transform",
    "rand-m7-n3-p0.9": "rand_augment_transform",
    "rand-m15-mmax20-mstd101-inc1": "rand_augment_transform",
    "rand-mstd1-tweights-n3": "rand_augment_transform",
    "rand-m6-n2-t3aw-p1": "rand_augment_transform",
    "original-mstd0.5": "auto_augment_transform",
    "originalr": "auto_augment_transform",
    "v0": "auto_augment_transform",
    "v0r": "auto_augment_transform",
    "3a": "auto_augment_transform",
    "augmix-m5-w4-d2": "augment_and_mix_transform",
    "augmix-m3": "augment_and_mix_transform",
    "augmix-m5-b1-mstd1": "augment_and_mix_transform",
}
COUNT = 60


def theirs(op: Any, image: Any, step: list[float], hparams: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What timm's function of that name makes of the image, with the strength, sign and filter of a step."""
    which, strong, sign, chosen, more = step
    name, look = op.every[int(which)].name, op.look
    monkeypatch.setattr(f"{DATA}.auto_augment._randomly_negate", lambda value: sign * value)
    monkeypatch.setattr(auto_augment.random, "uniform", lambda low, high: low + (high - low) * more)
    level: Any = auto_augment.LEVEL_TO_ARG[name]
    arguments = () if level is None else level(strong, hparams)
    if name.startswith("Posterize") and level(strong, hparams) == (0,):
        return Image.new("RGB", image.size)  # some versions of Pillow refuse no bits at all, and timm then fails
    filtered = Image.Resampling(look.filters[int(chosen)])
    return auto_augment.NAME_TO_OP[name](image, *arguments, fillcolor=look.fill, resample=filtered)


def expected(op: Any, rows: Any, weights: Any, image: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The image that timm would make, chain by chain."""
    chains = []
    for chain in rows:
        made = image
        for step in chain:
            made = (
                theirs(op, made, step, LOOK | {"translate_pct": op.look.share}, monkeypatch) if step[0] >= 0 else made
            )
        chains.append(made)
    if not isinstance(op, TimmAugMix):
        return chains[0]
    share, *shares = map(float, weights)
    amount = 1.0 - share
    parts = np.array([each / amount for each in shares], np.float32)
    mix = auto_augment.AugMixAugment([], width=len(chains), depth=1)
    left = iter(chains)
    monkeypatch.setattr(auto_augment.np.random, "choice", lambda *_, **__: [lambda _: next(left)])
    return (mix._apply_blended if op.blended else mix._apply_basic)(image, parts, amount)


@pytest.mark.parametrize("config", MADE)
def test_pixels_are_timms(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With timm's own functions, given our draws."""
    recipe = lower(getattr(auto_augment, MADE[config])(config, dict(LOOK)))
    (op,) = recipe.ops
    source = ScriptedSource([(png(n % 5, 24, 30), n) for n in range(COUNT)], extent=COUNT)
    program = compile_host(recipe)
    with DataLoader(source, COUNT, transform=recipe, device="cpu", tuning=QUICK, info=True) as loader:
        images, _, info = next(iter(loader))
    arrays = program.parameters(np.array([[24, 30]] * COUNT), info.ids.numpy(), 0, 0).arrays
    key = f"effect{len(recipe.ops) - 1}"
    rows, weights = arrays[Key(key)].tolist(), arrays.get(Key(f"{key}_weights"), [None] * COUNT)
    changed = 0
    for n in range(COUNT):
        image = Image.fromarray(pixels(n % 5, 24, 30))
        with monkeypatch.context() as patch:
            made = functional.pil_to_tensor(expected(op, rows[n], weights[n], image, patch))
        assert torch.equal(images[n], made)
        changed += not torch.equal(made, functional.pil_to_tensor(image))
    assert changed > COUNT // 3


def chosen(op: Any, count: int = 4000) -> Any:
    """Rows of that many samples."""
    return (
        compile_host(Recipe((op,)))
        .parameters(np.array([[9, 9]] * count), np.arange(count), 0, 0)
        .arrays[Key("effect0")]
    )


def test_chances_are_timms() -> None:
    """Each part as often as it should be; strengths about theirs; both signs and filters equally often."""
    parts = (TimmPart("Rotate", 0.5, 5.0, 1.0), TimmPart("Invert", 1.0), TimmPart("ShearX", 0.25, 9.0, 3.0, 10.0))
    rows = chosen(TimmRandAugment(parts, 2))
    assert rows.shape == (4000, 1, 2, 5)
    which = rows[:, 0, :, 0].ravel()
    shares = [(which == k).mean() for k in (-1, 0, 1, 2)]
    assert shares == pytest.approx([1.25 / 3, 0.5 / 3, 1 / 3, 0.25 / 3], abs=0.02)
    strong = rows[..., 1].ravel()[which == 0]
    assert (strong.mean(), strong.std()) == (pytest.approx(5, abs=0.15), pytest.approx(1, abs=0.1))
    assert rows[..., 1].max() == 10.0
    assert (rows[..., 2] > 0).mean() == pytest.approx(0.5, abs=0.03)
    assert rows[..., 3].mean() == pytest.approx(0.5, abs=0.03)


def test_weights_choose_none_twice() -> None:
    """One after the other of those that are left, as numpy's choice without replacement."""
    weights = (0.5, 0.3, 0.2, 0.0)
    rows = chosen(
        TimmRandAugment(tuple(TimmPart(name) for name in ("Rotate", "Invert", "Equalize", "Color")), 2, weights)
    )
    first, second = rows[:, 0, 0, 0], rows[:, 0, 1, 0]
    assert (first != second).all()
    assert [(first == k).mean() for k in range(4)] == pytest.approx(weights, abs=0.03)
    likely = [(second == k).mean() for k in range(4)]
    exact = [sum(weights[j] * weights[k] / (1 - weights[j]) for j in range(3) if j != k) for k in range(4)]
    assert likely == pytest.approx(exact, abs=0.03)


def test_uniform_strengths() -> None:
    """With an infinite spread, from 0 to it."""
    strong = chosen(TimmAutoAugment(((TimmPart("Rotate", 1.0, 8.0, float("inf")),),)))[:, 0, 0, 1]
    assert 0 <= strong.min() < 0.1
    assert 7.9 < strong.max() <= 8
    assert strong.mean() == pytest.approx(4, abs=0.15)
