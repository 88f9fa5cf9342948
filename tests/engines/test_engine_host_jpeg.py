"""The host engine on every kind of JPEG: torchvision's bits, whole and in windows; and on any order of ops."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.photographs import encoded, photographs
from kit.properties import examples
from kit.torchvision_way import ran, theirs
from nvidia import nvimgcodec
from PIL import Image

from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, Pad, RandomCrop
from dali_feed.transforms.op import Op, Recipe
from dali_feed.transforms.resize import RandomResizedCrop, Resize
from dali_feed.transforms.warps import RandomAffine, Rotation

pytestmark = [pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning"), pytest.mark.slow]


def assert_same_bits(recipe: Recipe, payload: bytes, samples: int = 1) -> None:
    """Both ways give samples 0, 1, ... of one payload the same bits."""
    ids = range(samples)
    for one, other in zip(ran(recipe, [payload] * samples, ids), theirs(recipe, [payload] * samples, ids), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), recipe


def subsampled(colour: str, *, progressive: bool) -> bytes:
    """A photograph with its colour sampled like that."""
    pixels = np.ascontiguousarray(Image.open(io.BytesIO(photographs()[2])).convert("RGB"))
    encoder = nvimgcodec.Encoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=[nvimgcodec.Backend(nvimgcodec.CPU_ONLY)]
    )
    how = nvimgcodec.EncodeParams(
        quality_type=nvimgcodec.QualityType.QUALITY,
        quality_value=90,
        chroma_subsampling=getattr(nvimgcodec.ChromaSubsampling, f"CSS_{colour}"),
        jpeg_encode_params=nvimgcodec.JpegEncodeParams(progressive=progressive),
    )
    return bytes(encoder.encode(nvimgcodec.as_image(pixels), "jpeg", params=how))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("colour", ["444", "422", "420", "440", "411", "GRAY"])
def test_every_sampling_of_colour(colour: str, progressive: bool) -> None:
    """Baseline and progressive, from 4:4:4 to 4:1:1 and gray, at windows that begin inside colour's blocks."""
    payload = subsampled(colour, progressive=progressive)
    assert_same_bits(Recipe(), payload)
    assert_same_bits(Recipe((RandomResizedCrop((31, 33)),)), payload, samples=8)
    assert_same_bits(Recipe((RandomCrop((41, 43)),)), payload, samples=8)


FILLS: Any = st.sampled_from([0.0, 77.0, (200.0, 7.0, 90.0)])
MODES: Any = st.sampled_from(["nearest", "bilinear"])
GEOMETRY: Any = st.one_of(
    st.builds(Flip, st.sampled_from(["x", "y"])),
    st.builds(CenterCrop, st.tuples(st.integers(5, 60), st.integers(5, 60))),
    st.builds(Resize, st.tuples(st.integers(5, 60), st.integers(5, 60))),
    st.builds(Pad, st.tuples(*[st.integers(0, 3)] * 4), FILLS),
    st.builds(RandomCrop, st.just((24, 20)), pad_if_needed=st.just(value=True), fill=FILLS),
    st.builds(Rotation, st.just((-180.0, 180.0)), MODES, FILLS),
    st.builds(
        RandomAffine,
        st.just((-90.0, 90.0)),
        st.just((0.2, 0.3)),
        st.just((0.5, 2.0)),
        st.just((-20.0, 20.0, -10.0, 10.0)),
        MODES,
        FILLS,
    ),
    st.builds(ColorJitter, st.just((0.5, 1.5)), st.just((0.5, 1.5)), st.just((0.0, 2.0)), st.just((-0.5, 0.5))),
)


@examples(times=1.2)
@given(st.lists(GEOMETRY, max_size=4), st.lists(GEOMETRY, max_size=1), st.booleans())
def test_any_order_of_ops(before: list[Op], behind: list[Op], normalize: bool) -> None:
    """Every op, in any order, on levels and then on floats, has torchvision's bits with the draws of its place."""
    picture = Image.open(io.BytesIO(photographs()[2])).convert("RGB").resize((53, 47))
    ops = (*before, ToFloat(), *behind, *((Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),) * normalize))
    assert_same_bits(Recipe(ops), encoded(picture, quality=90), samples=2)
