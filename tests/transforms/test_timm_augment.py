"""timm's AutoAugment, RandAugment and AugMix: with our draws, timm's own classes make the same pixels, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, pixels, png
from PIL import Image
from timm.data import auto_augment
from torchvision.transforms.v2 import functional

from dali_feed import DataLoader
from dali_feed.compiler.host import compile_host
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.timm_augment import LayerAugment, MixAugment, PolicyAugment, TimmPart

LOOK: dict[str, Any] = {"translate_const": 12, "img_mean": (124, 116, 104)}
MADE = {
    "rand-m9-mstd0.5-inc1": auto_augment.rand_augment_transform,
    "rand-m7-n3-p0.9": auto_augment.rand_augment_transform,
    "rand-m15-mmax20-mstd101-inc1": auto_augment.rand_augment_transform,
    "rand-mstd1-tweights-n3": auto_augment.rand_augment_transform,
    "rand-m6-n2-t3aw-p1": auto_augment.rand_augment_transform,
    "original-mstd0.5": auto_augment.auto_augment_transform,
    "originalr": auto_augment.auto_augment_transform,
    "v0": auto_augment.auto_augment_transform,
    "v0r": auto_augment.auto_augment_transform,
    "3a": auto_augment.auto_augment_transform,
    "augmix-m5-w4-d2": auto_augment.augment_and_mix_transform,
    "augmix-m3": auto_augment.augment_and_mix_transform,
    "augmix-m5-b1-mstd1": auto_augment.augment_and_mix_transform,
}
COUNT = 60


def theirs(op: Any, image: Any, step: list[float], hparams: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What timm's function of that name makes of the image, with the strength, sign and filter of a step."""
    which, strong, sign, chosen, more = step
    name, look = op.every[int(which)].name, op.look
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value: sign * value)
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
    if not isinstance(op, MixAugment):
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
    recipe = lower(MADE[config](config, dict(LOOK)))
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
    rows = chosen(LayerAugment(parts, 2))
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
    rows = chosen(LayerAugment(tuple(TimmPart(name) for name in ("Rotate", "Invert", "Equalize", "Color")), 2, weights))
    first, second = rows[:, 0, 0, 0], rows[:, 0, 1, 0]
    assert (first != second).all()
    assert [(first == k).mean() for k in range(4)] == pytest.approx(weights, abs=0.03)
    likely = [(second == k).mean() for k in range(4)]
    exact = [sum(weights[j] * weights[k] / (1 - weights[j]) for j in range(3) if j != k) for k in range(4)]
    assert likely == pytest.approx(exact, abs=0.03)


def test_uniform_strengths() -> None:
    """With an infinite spread, from 0 to it."""
    strong = chosen(PolicyAugment(((TimmPart("Rotate", 1.0, 8.0, float("inf")),),)))[:, 0, 0, 1]
    assert 0 <= strong.min() < 0.1
    assert 7.9 < strong.max() <= 8
    assert strong.mean() == pytest.approx(4, abs=0.15)
