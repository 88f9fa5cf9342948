"""recipe and program: how ops fold into steps, what each sample takes into them, and what those arrays are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import examples

from dali_feed.compiler.dali import DaliProgram, compile_dali
from dali_feed.compiler.program import Parameters
from dali_feed.errors import TransformError
from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import ToFloat
from dali_feed.transforms.crops import CenterCrop, Flip, one_level
from dali_feed.transforms.keys import FLIPS, Key, by_view, further, numbered, viewed
from dali_feed.transforms.op import Op, Place, Recipe
from dali_feed.transforms.resize import RandomResizedCrop
from dali_feed.transforms.warps import Rotation

REGION = pytest.mark.parametrize("region_decode", [True, False])
SIZES = np.array([[480, 640], [375, 500], [33, 1000], [1000, 33], [7, 5]])
IDS = np.arange(5) + (3 << 40)


def program(*ops: Op, region_decode: bool = False) -> DaliProgram:
    """The compiled program of some ops."""
    return compile_dali(Recipe(ops), region_decode=region_decode)


def parameters(*ops: Op, region_decode: bool = False, sizes: Any = SIZES, seed: int = 0, epoch: int = 0) -> Parameters:
    """What a batch takes into them."""
    sizes = np.asarray(sizes)
    return program(*ops, region_decode=region_decode).parameters(sizes, IDS[: len(sizes)], seed, epoch)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=5),
    st.integers(0, 2**64 - 1),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
@settings(deadline=None)
def test_every_window_stays_inside(sizes: list[tuple[int, int]], seed: int, flips: list[bool]) -> None:
    """Whatever flips and crops follow each other, no region leaves its image, and none is empty."""
    flip = [Flip(axis, float(p)) for axis, p in zip("xyxy", flips, strict=True)]  # type: ignore[arg-type]
    ops: tuple[Op, ...] = (*flip[:2], RandomResizedCrop((32, 40)), *flip[2:], CenterCrop((9, 30)))
    h, w = np.array(sizes).T
    roi = parameters(*ops, sizes=sizes, seed=seed).arrays[Key("roi1")]
    assert (roi[:, :2] >= 0).all()
    assert (roi[:, 2] <= h * (1 + 1e-6)).all()
    assert (roi[:, 3] <= w * (1 + 1e-6)).all()
    assert (roi[:, 2:] > roi[:, :2]).all()
    found = parameters(*ops, sizes=sizes, seed=seed, region_decode=True)
    y, x, wh, ww = found.arrays[Key("window")].T
    assert ((y >= 0) & (x >= 0) & (wh > 0) & (ww > 0) & (y + wh <= h) & (x + ww <= w)).all()


def test_rotation_turns_the_other_way_in_one_mirror() -> None:
    """Flips are applied last, so an angle behind one of them is negated, behind two not."""
    for p_x, p_y, sign in ((0.0, 0.0, 1), (1.0, 0.0, -1), (0.0, 1.0, -1), (1.0, 1.0, 1)):
        angle = parameters(Flip("x", p_x), Flip("y", p_y), Rotation((10.0, 30.0))).arrays[Key("angle1")]
        assert ((angle * sign >= 10) & (angle * sign < 30)).all()
    behind = parameters(Rotation((10.0, 30.0)), Flip("x", 1.0)).arrays[Key("angle1")]
    assert (behind > 0).all()


def test_a_fill_is_in_the_units_of_its_place() -> None:
    """Given behind ToTensor it is in 0..1, in front of it, or unscaled, in 0..255; each channel must have the same."""
    turn = Rotation((0.0, 1.0), fill=0.5)
    places = (Place(), ToFloat().place_behind(Place()), ToFloat(scale=False).place_behind(Place()))
    assert [one_level(turn, turn.fill, place) for place in places] == [0.5, 127.5, 0.5]
    with pytest.raises(TransformError, match="takes one fill for all channels"):
        program(Rotation((0.0, 1.0), fill=(1.0, 2.0, 3.0)))


@REGION
@given(st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(1, 4))
@examples(times=0.5)
def test_parameters_do_not_depend_on_the_batch(region_decode: bool, seed: int, epoch: int, cut: int) -> None:
    """A sample's parameters are the same in any batch, in any place."""
    made = program(
        *(Flip("x"), RandomResizedCrop((64, 64), (0.5, 2.0)), ColorJitter((0.5, 1.5), (0.5, 1.5)), Rotation((-9, 9))),
        *(CenterCrop((40, 70)), RandomResizedCrop((8, 9)), Flip("y")),
        region_decode=region_decode,
    )
    whole = made.parameters(SIZES, IDS, seed, epoch)
    turn = np.roll(np.arange(5), cut)
    parts = [made.parameters(SIZES[rows], IDS[rows], seed, epoch) for rows in (turn[:cut], turn[cut:])]
    for name, values in whole.arrays.items():
        np.testing.assert_array_equal(np.concatenate([part.arrays[name] for part in parts]), values[turn])
    np.testing.assert_array_equal(np.concatenate([part.sizes for part in parts]), whole.sizes[turn])


WHATS, PARTS = ("crop", "flip", "effect", "jitter"), ("", "_order", "_seed", "_weights")


@given(
    st.lists(
        st.tuples(st.sampled_from(WHATS), st.integers(0, 2**26), st.sampled_from(PARTS), st.integers(0, 63)),
        unique=True,
        min_size=2,
    )
)
def test_no_two_arrays_have_one_name(of: list[tuple[str, int, str, int]]) -> None:
    """What, number, further part and view are all in a key, and none of them reads as another."""
    keys = [viewed(further(numbered(what, n), part), view) for what, n, part, view in of]
    assert len({*keys, *FLIPS.values()}) == len(keys) + 2


def test_arrays_go_back_to_their_view() -> None:
    """Each view gets its own arrays by its own names."""
    row = np.zeros(3)
    every = {viewed(numbered("crop", n), view): row + view for n in (1, 21) for view in range(12)}
    split = by_view(every, 12)
    assert [{name: rows[0] for name, rows in own.items()} for own in split] == [
        {"crop1": view, "crop21": view} for view in range(12)
    ]
