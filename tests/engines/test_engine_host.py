"""The host engine: torchvision v2's pixels, bit for bit."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg, png
from kit.photographs import decoded, encoded, files, photographs
from kit.properties import examples
from kit.torchvision_way import assert_equal, ran, theirs
from PIL import Image
from recipes import CASES, FLOAT
from torchvision import transforms
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import unfit
from dali_feed.engines.choose import choose_engine, compile_for, make_engine
from dali_feed.engines.engine import Work
from dali_feed.errors import ConfigError
from dali_feed.options import Tuning
from dali_feed.screen.screen import screen
from dali_feed.transforms.crops import Flip, RandomCrop
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.resize import RandomResizedCrop

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("name", CASES)
def test_equals_torchvision(name: str) -> None:
    """Photographs of many sizes come out with torchvision's bits, whatever the ops and their order."""
    assert_equal(Recipe(CASES[name]))


@pytest.mark.parametrize(
    "name", ["training", "evaluation", "half", "uint8", "padded crop", "not scaled", "half of float"]
)
def test_channels_last_has_the_same_bits(name: str) -> None:
    """A batch of layout NHWC is that of NCHW with its axes moved."""
    recipe, ids = Recipe(CASES[name]), range(len(photographs()))
    last = ran(replace(recipe, layout="NHWC"), photographs(), ids)
    for one, other in zip(last, ran(recipe, photographs(), ids), strict=True):
        assert one.is_contiguous()
        assert torch.equal(one.permute(2, 0, 1), other)


@examples(times=0.8)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(*[st.integers(0, 12)] * 4),
    st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
    st.booleans(),
    st.integers(0, 2**40),
)
def test_crops_fit_where_torchvision_says_so(
    size: tuple[int, int], padding: tuple[int, int, int, int], mode: Any, needed: bool, sample: int
) -> None:
    """RandomCrop and its padding: torchvision's bits, or, where torchvision fails, a reason beforehand."""
    op = RandomCrop((20, 24), padding, needed, 5.0, mode)
    payload = encoded(Image.effect_noise(size[::-1], 80).convert("RGB"), "PNG")
    reason = unfit(Recipe((op,)), np.array([size], np.int32))
    try:
        v2.RandomCrop(op.size, list(padding), needed, 5, mode)(decoded(payload))
    except (ValueError, RuntimeError, IndexError):
        assert reason
    else:
        assert not reason
        one, other = ran(Recipe((op,)), [payload], [sample])[0], theirs(Recipe((op,)), [payload], [sample])[0]
        assert torch.equal(one, other)


SIZES = st.integers(1, 70)


@examples(times=1.2)
@given(
    st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=4),
    st.tuples(SIZES, SIZES),
    st.sampled_from(["bilinear", "bicubic", "nearest-exact"]),
    st.booleans(),
    st.booleans(),
)
def test_any_size_equals_torchvision(
    sizes: list[tuple[int, int]], size: tuple[int, int], interpolation: Any, antialias: bool, subsampled: bool
) -> None:
    """Windows that begin at odd pixels of small subsampled images, up and down to any size, are exact too."""
    payloads = [(jpeg if subsampled else png)(n, *shape) for n, shape in enumerate(sizes)]
    crop = RandomResizedCrop(size, interpolation=interpolation, antialias=antialias)
    assert_equal(Recipe((crop, Flip("x"), *FLOAT)), payloads)


@pytest.mark.parametrize("name", files())
def test_every_format(name: str) -> None:
    """Gray, CMYK, alpha, palettes: whole or a window, every format comes out as torchvision decodes it."""
    payload = files()[name]
    assert_equal(Recipe((RandomResizedCrop((48, 64)), *FLOAT)), [payload])
    assert_equal(Recipe(), [payload])


@pytest.mark.parametrize("kind", ["BMP", "TIFF"])
def test_formats_that_torchvision_does_not_know(kind: str) -> None:
    """Whole or a window, a BMP and a TIFF have Pillow's pixels."""
    rgb = Image.open(io.BytesIO(photographs()[2])).convert("RGB")
    whole = torch.from_numpy(np.array(rgb)).permute(2, 0, 1)
    payload = encoded(rgb, kind)
    assert torch.equal(ran(Recipe(), [payload], [0])[0], whole)
    crop = Recipe((RandomResizedCrop((48, 64)),))
    y, x, h, w = compile_host(crop).parameters(np.array([[97, 131]]), np.array([0]), 0, 0).arrays[Key("window")][0]
    resized = functional.resize(whole[:, y : y + h, x : x + w], [48, 64], antialias=True)
    assert torch.equal(ran(crop, [payload], [0])[0], resized)


@pytest.mark.parametrize("orientation", [1, 6])
def test_exif_turns_nothing(orientation: int) -> None:
    """As torchvision's decoder and ImageFolder: pixels are taken as they are stored, whole or a window."""
    rgb = Image.open(io.BytesIO(photographs()[2])).convert("RGB")
    exif = rgb.getexif()
    exif[0x0112] = orientation
    payload = encoded(rgb, exif=exif)
    assert_equal(Recipe(), [payload])
    assert_equal(Recipe((RandomResizedCrop((48, 64)),)), [payload])


def test_pillow_is_a_level_away_at_most() -> None:
    """The v1 transforms of a PIL image, which Pillow resizes: 0.0017 levels on average were measured, one at most."""
    whole = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    for payload, ours in zip(photographs(), ran(lower(whole), photographs(), range(5)), strict=True):
        pillow = transforms.PILToTensor()(whole(Image.open(io.BytesIO(payload)).convert("RGB")))
        difference = (ours.float() - pillow.float()).abs()
        assert float(difference.max()) <= 1
        assert float(difference.mean()) < 0.003


def test_which_engine_runs() -> None:
    """Host on the CPU, dali on a GPU and for a DALI graph, host before a GPU where asked; what cannot be is said."""
    assert choose_engine(None, None, graph=False) == "host"
    assert choose_engine(None, None, graph=True) == choose_engine(None, 0, graph=False) == "dali"
    assert choose_engine("host", 1, graph=False) == "host"
    with pytest.raises(ConfigError, match="found a DALI graph function"):
        choose_engine("host", None, graph=True)


def test_the_two_engines_agree() -> None:
    """The same draws: DALI's pixels of the training recipe lie within a level and a half of 255 on average."""
    recipe = Recipe((RandomResizedCrop((64, 64)), Flip("x")))
    views = [memoryview(payload) for payload in photographs()]
    sizes, ids = screen(views).sizes, np.arange(len(views))
    out = []
    for name in ("host", "dali"):
        program = compile_for(name, recipe, None)
        engine = make_engine(name, program, batch_size=len(views), device=None, tuning=Tuning(threads=2))
        result = engine.redo(Work(engine.prepare(views), program.parameters(sizes, ids, 0, 0).arrays))
        out.append(torch.utils.dlpack.from_dlpack(result.images).clone().float())
        engine.close()
    difference = (out[0] - out[1]).abs()
    assert float(difference.mean()) < 1.5
