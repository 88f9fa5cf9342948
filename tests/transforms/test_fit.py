"""ResizeKeepRatio, CropOrPad and TrimBorder: timm's sizes and windows, on both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, pixels, png
from kit.torchvision_way import ran
from PIL import Image
from timm.data import create_transform
from timm.data import transforms as timm_transforms
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.compiler.host import HostProgram, compile_host
from dali_feed.compiler.program import unfit
from dali_feed.draws import uniforms
from dali_feed.engines.choose import compiled
from dali_feed.errors import TransformError
from dali_feed.options import BadRecords, Decode
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.crops import CropOrPad, TrimBorder, placed
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.resize import ResizeKeepRatio, kept_ratio

SIZES = [(60, 47), (40, 81), (33, 32), (20, 20), (200, 30)]


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
        ours = kept_ratio(op, np.full(50, high), np.full(50, wide), drawn)
        image = Image.fromarray(pixels(0, high, wide))
        for n in range(50):
            scaled, squeezed = drawn[0, n] < 0.5, drawn[2, n] < 0.5
            used = [drawn[0, n], *([drawn[1, n]] if scaled else []), drawn[2, n], *([drawn[3, n]] if squeezed else [])]
            monkeypatch.setattr(timm_transforms, "random", Replayed(*used))
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
            monkeypatch.setattr(timm_transforms, "random", Replayed(*drawn))
            assert torch.equal(ours, theirs(torch.from_numpy(pixels(1, *size)).permute(2, 0, 1)))


def test_windows_are_anywhere() -> None:
    """From one end to the other, where an image is larger and where it is smaller."""
    drawn = np.stack([np.linspace(0, 0.999, 40)] * 4).astype(np.float32)
    for have, found in ((14, {0, 1, 2, 3, 4}), (7, {0, -1, -2, -3}), (10, {0})):
        y, x, h, w = placed(CropOrPad((10, 10), anywhere=True), np.full(40, have), np.full(40, have), drawn)
        assert set(y.tolist()) == set(x.tolist()) == found
        assert set(h.tolist()) == set(w.tolist()) == {10}


FORMS: dict[str, dict[str, Any]] = {
    "border": {"crop_mode": "border"},
    "rectangle": {"input_size": (24, 32)},
    "trimmed": {"crop_border_pixels": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_evaluation_of_timm(form: str) -> None:
    """Within two levels of timm on PIL images, and the dali engine within its resize of the host engine."""
    transform = create_transform(**({"input_size": 32} | FORMS[form]))
    source = ScriptedSource([(png(n, *size), n) for n, size in enumerate(SIZES)])
    found = {}
    for engine in ("host", "dali"):
        with DataLoader(
            source, len(SIZES), transform=transform, device="cpu", decode=Decode(engine=engine), tuning=QUICK
        ) as loader:
            found[engine] = next(iter(loader))[0]
    theirs = torch.stack([transform(Image.fromarray(pixels(n, *size))) for n, size in enumerate(SIZES)])
    level = 1 / 255 / 0.22
    assert (found["host"] - theirs).abs().max() <= 2 * level
    assert (found["dali"] - found["host"]).abs().mean() <= 0.6 * level


@pytest.mark.parametrize("mode", ["rkrc", "rkrr"])
def test_training_of_timm(mode: str) -> None:
    """Random scales and ratios of a whole image, of one size, twice the same from the same seed."""
    transform = create_transform(32, is_training=True, train_crop_mode=mode, color_jitter=None)
    source = ScriptedSource([(png(n, *size), n) for n, size in enumerate(SIZES)])
    runs = []
    for _ in range(2):
        with DataLoader(source, len(SIZES), transform=transform, device="cpu", tuning=QUICK) as loader:
            runs.append(next(iter(loader))[0])
    assert runs[0].shape == (len(SIZES), 3, 32, 32)
    assert torch.equal(*runs)


def test_a_keep_ratio_is_torchvisions_resize_to_its_size() -> None:
    """To the bit on the host engine, and by the interpolation that was drawn."""
    recipe = lower(timm_transforms.ResizeKeepRatio(30, 0.3, "random", 0.5, random_aspect_prob=0.5))
    ids = list(range(12))
    rows = (
        compile_host(recipe).parameters(np.array([[60, 47]] * 12), np.array(ids), 0, 0).arrays[Key("scale0")].tolist()
    )
    assert {row[2] for row in rows} == {0, 1}
    for n, ours in enumerate(ran(recipe, [png(2, 60, 47)] * 12, ids)):
        mode = [v2.InterpolationMode.BILINEAR, v2.InterpolationMode.BICUBIC][rows[n][2]]
        levels = torch.from_numpy(pixels(2, 60, 47)).permute(2, 0, 1)
        assert torch.equal(ours, v2.functional.resize(levels, rows[n][:2], mode))


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
    source = ScriptedSource([(png(n, 4 if n == 3 else 20, 20), n) for n in range(6)])
    bad = BadRecords(limit=2)
    with DataLoader(
        source, 6, transform=timm_transforms.TrimBorder(2), device="cpu", bad=bad, info=True, tuning=QUICK
    ) as loader:
        images, labels, info = next(iter(loader))
    assert images.shape == (6, 3, 16, 16)
    assert info.ok.tolist() == [True, True, True, False, True, True]
    assert 3 not in labels.tolist()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ResizeKeepRatio((0, 3)), "ResizeKeepRatio: size must be two positive ints"),
        (lambda: ResizeKeepRatio((3, 3), longest=2), "ResizeKeepRatio: p must lie in 0..1"),
        (lambda: CropOrPad((3, 3), mode="odd"), "CropOrPad: padding_mode must be constant, edge, reflect or symmetric"),  # type: ignore[arg-type]
        (lambda: TrimBorder(-1), "TrimBorder: border_size must be at least 0"),
    ],
)
def test_settings_refused(make: Any, told: str) -> None:
    """Each with the name, the rule and the value."""
    with pytest.raises(TransformError, match=f"^{told}"):
        make()


def test_on_a_gpu_the_host_engine_takes_what_dali_cannot() -> None:
    """Where nobody chose an engine; one that was chosen says so."""
    transform = create_transform(32, is_training=True, train_crop_mode="rkrc")
    name, program = compiled(transform, Decode(), 0)
    assert name == "host"
    assert isinstance(program, HostProgram)
    with pytest.raises(TransformError, match="the dali engine knows padding_mode"):
        compiled(transform, Decode(engine="dali"), 0)
    assert compiled(create_transform(32), Decode(), 0)[0] == "dali"
