"""decode="reduced": large JPEGs decoded smaller where that is allowed and pays, close to the exact way; else exact."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg
from kit.photographs import encoded, photographs
from kit.torchvision_way import ran
from PIL import Image
from torchvision.transforms import v2

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.reduction import reductions
from dali_feed.errors import ConfigError
from dali_feed.feed import Feed
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.base import Op
from dali_feed.transforms.center_crop import CenterCrop
from dali_feed.transforms.flip import Flip
from dali_feed.transforms.keys import Key
from dali_feed.transforms.normalize import Normalize
from dali_feed.transforms.random_resized_crop import RandomResizedCrop
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.resize import Resize
from dali_feed.transforms.to_float import ToFloat

EDGE = st.integers(1, 5000)


def large() -> Image.Image:
    """A photograph of 1200x900."""
    return Image.open(io.BytesIO(photographs()[0])).convert("RGB").resize((1200, 900), Image.Resampling.LANCZOS)


def both(payload: bytes, *ops: Op) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Reduced and exact, and by how much it was reduced."""
    recipe = Recipe(ops, decode="reduced")
    size = np.array([Image.open(io.BytesIO(payload)).size[::-1]], np.int32)
    made = compile_host(recipe).parameters(size, np.array([0]), 0, 0).arrays
    by = int(made[Key("reduce")][0]) if "reduce" in made else 1
    return ran(recipe, [payload], [0])[0], ran(Recipe(ops), [payload], [0])[0], by


@given(EDGE, EDGE, EDGE, EDGE, st.data())
def test_nothing_is_decoded_smaller_than_it_is_used(h: int, w: int, oh: int, ow: int, data: Any) -> None:
    """A window decoded at 1/k still has at least the pixels of what it becomes, in both directions."""
    wh, ww = data.draw(st.integers(1, h)), data.draw(st.integers(1, w))
    y, x = data.draw(st.integers(0, h - wh)), data.draw(st.integers(0, w - ww))
    one = [np.array([n]) for n in (h, w, y, x, wh, ww, oh, ow)]
    (k,) = reductions(one[0], one[1], (one[2], one[3], one[4], one[5]), one[6], one[7]).tolist()
    assert k in (1, 2, 4, 8)
    assert k == 1 or (wh >= k * oh and ww >= k * ow)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("size", "by"), [(400, 2), (200, 4), (100, 8)])
def test_reduced_is_close_to_exact(size: int, by: int, mode: str) -> None:
    """At 1/2, 1/4 and 1/8, gray too, a photograph full of detail differs by 1.2 to 2.0 levels on average."""
    one, other, found = both(encoded(large().convert(mode), quality=90), Resize(size))
    assert found == by
    assert float((one.double() - other.double()).abs().mean()) <= 2.7  # 2.02


def test_the_window_is_not_moved() -> None:
    """A window of a smooth ramp keeps its place to a fraction of an output pixel, whatever the factor."""
    ramp = np.linspace(0, 255, 2000)[None, :, None] * np.ones((1500, 1, 3))
    payload = encoded(Image.fromarray(ramp.round().astype(np.uint8)), quality=95)
    for op in (RandomResizedCrop((64, 64), (0.7, 1.0)), Resize((33, 77)), Resize((187, 250), interpolation="bicubic")):
        one, other, by = both(payload, op)
        assert by > 1
        assert float((one.double() - other.double()).abs().max()) <= 2


def test_what_follows_is_the_same() -> None:
    """The steps behind the first are taken as in the exact way."""
    ops = (Resize(128), CenterCrop((112, 112)), Flip("x", 1.0), ToFloat(), Normalize((0.5,), (0.25,)))
    one, other, by = both(encoded(large(), quality=90), *ops)
    assert by == 4
    assert one.dtype == torch.float32
    assert float((one - other).abs().mean()) <= 0.019  # 0.0146


@pytest.mark.parametrize(
    "payload",
    [encoded(large(), "PNG"), encoded(large().convert("CMYK"), quality=90)],
    ids=["PNG", "CMYK"],
)
def test_the_exact_way_has_the_last_word(payload: bytes) -> None:
    """What cannot be decoded smaller comes out with the exact way's bits."""
    one, other, by = both(payload, Resize(100))
    assert by == 8
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "ops",
    [
        (Resize(500),),
        (Resize(100, antialias=False),),
        (Resize(100, interpolation="nearest-exact"),),
        (Flip("x"), Resize(100)),
        (CenterCrop((100, 100)),),
    ],
)
def test_where_it_is_not_done(ops: tuple[Op, ...]) -> None:
    """Outputs of more than half the size, resampling without antialias, and other first ops are exact."""
    one, other, by = both(encoded(large(), quality=90), *ops)
    assert by == 1
    assert torch.equal(one, other)


def test_who_may_ask_for_it() -> None:
    """The host engine has it; another engine, or another word, is an error; nobody gets it unasked."""
    source = ScriptedSource([(jpeg(n), n) for n in range(4)])
    with pytest.raises(ConfigError, match=r'^decode: "reduced" needs the host engine; found the dali engine'):
        Feed(source, 2, transform=v2.Resize(8), decode="reduced", engine="dali")
    with pytest.raises(ConfigError, match=r"^decode: must be \"exact\", \"reduced\" or \"region\"; found 'fast'"):
        Feed(source, 2, transform=v2.Resize(8), decode="fast")  # type: ignore[arg-type]
    assert not compile_host(Recipe((Resize(8),))).reduce
