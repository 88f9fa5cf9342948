"""What a sample draws, by torchvision's own rules, and takes into a program: sizes, windows, rectangles, weights."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.images import png
from kit.photographs import decoded
from kit.properties import examples
from kit.torchvision_way import distortion, ran
from numpy.typing import NDArray
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import _augment, _color, _geometry
from torchvision.transforms.v2 import functional as F

from dali_feed.draws import uniforms
from dali_feed.engines.dali.graph import DaliProgram, compile_dali
from dali_feed.transforms.auto_augment import AugMix
from dali_feed.transforms.colour import ColorJitter, Grayscale, RandomChannelPermutation, RandomPhotometricDistort
from dali_feed.transforms.crops import CenterCrop, Flip, center_window
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.op import FLIPS, TRIES, Draws, Key, Op, Recipe, of_op, viewed
from dali_feed.transforms.program import Parameters, compile_host
from dali_feed.transforms.resize import RandomResizedCrop, shorter_edge
from dali_feed.transforms.warps import RandomPerspective, Rotation, corners

EDGE = st.integers(1, 5000)
SIZES = st.tuples(EDGE, EDGE)
RANGES = st.tuples(st.floats(0.01, 3.0), st.floats(0.01, 3.0)).map(lambda pair: (min(pair), max(pair)))
Window = tuple[int, int, int, int]
Draw = Callable[[range, NDArray[np.int64]], NDArray[np.float32]]


def _ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _shown_size(height: int, width: int, size: int | list[int], max_size: int | None) -> tuple[int, int]:
    """What torchvision makes of an image of this size."""
    tiny = torch.zeros((1, 1, 1), dtype=torch.uint8).expand(1, height, width)
    shape = F.resize(tiny, size, max_size=max_size, interpolation=v2.InterpolationMode.NEAREST).shape
    return int(shape[-2]), int(shape[-1])


@settings(deadline=None)
@given(EDGE, EDGE, st.integers(1, 300), st.one_of(st.none(), st.integers(1, 300)))
@example(427, 640, 256, None)
@example(3, 7, 5, 1)
def test_resized(height: int, width: int, size: int, more: int | None) -> None:
    """An int size gives torchvision's own output size, rounded as it rounds."""
    most = None if more is None else size + more
    long = size * max(height, width) // min(height, width)
    if most is None and long * size > 1 << 22:
        return  # torchvision would allocate it
    if most is not None and long > most and most * size // long == 0:
        return  # it refuses these, see below
    h, w = shorter_edge(_ints(height), _ints(width), size, most)
    assert (int(h[0]), int(w[0])) == _shown_size(height, width, size, most)


def test_resized_never_vanishes() -> None:
    """Where max_size would leave no pixel, and torchvision fails, one is left."""
    with pytest.raises(RuntimeError):
        _shown_size(1, 5000, 10, 20)
    h, w = shorter_edge(_ints(1, 5000), _ints(5000, 1), 10, 20)
    assert (h.tolist(), w.tolist()) == ([1, 20], [20, 1])


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_center_window(height: int, width: int, ch: int, cw: int) -> None:
    """The middle window holds the pixels that torchvision's center_crop gives, black ones outside included."""
    numbered = torch.arange(1, height * width + 1).reshape(1, height, width)
    y, x, h, w = (int(v[0]) for v in center_window(_ints(height), _ints(width), (ch, cw)))
    padded = torch.zeros((height + 80, width + 80), dtype=torch.int64)
    padded[40 : 40 + height, 40 : 40 + width] = numbered[0]
    ours = padded[40 + y : 40 + y + h, 40 + x : 40 + x + w]
    assert torch.equal(ours, F.center_crop(numbered, [ch, cw])[0])


# Rectangles to erase, and the corners of a perspective.


class ScriptedRectangle:
    """What `_augment` sees as torch: the real one, but numbers are `drawn`, a row of four for each try."""

    def __init__(self, drawn: NDArray[np.float64]) -> None:
        self._drawn, self._try, self._at = drawn, -1, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _next(self) -> float:
        self._at += 1
        return float(self._drawn[self._try, self._at - 1])

    def empty(self, _: int) -> Any:
        """Only `uniform_` is asked of it: for the area, which begins a try, then for the ratio."""
        if self._at != 1:
            self._try, self._at = self._try + 1, 0
        return SimpleNamespace(uniform_=lambda low, high: torch.tensor(between(low, high, self._next())))

    def randint(self, low: int, high: int, size: tuple[int, ...]) -> Any:
        """One int, for y and then for x."""
        assert size == (1,)
        return torch.tensor(int(between(low, high, self._next())))


def between(low: Any, high: Any, u: float) -> Any:
    """A number from its uniform, in double precision."""
    return np.float64(float(low) + float(high - low) * u)


@examples(times=4)
@given(st.lists(SIZES, min_size=1, max_size=30), RANGES, RANGES, st.integers(0, 2**40))
@example([(1, 5000), (5000, 1), (1, 1)], (0.08, 1.0), (3 / 4, 4 / 3), 0)
@example([(1, 5000), (5000, 1)], (0.5, 0.5), (0.01, 0.011), 0)
@example([(1, 5000), (5000, 1)], (0.5, 0.5), (90.0, 91.0), 0)
@example([(100, 100)] * 3, (0.0, 0.0), (1.0, 1.0), 0)
def test_windows_are_drawn_as_torchvision_draws_them(
    sizes: list[tuple[int, int]], scale: tuple[float, float], ratio: tuple[float, float], first: int
) -> None:
    """`make_params` of v2, given our uniforms, finds our window on our try; a line of pixels gives one at least."""
    ids = np.arange(first, first + len(sizes))
    windows = RandomResizedCrop((8, 8), scale, ratio).draw(Draws([0], np.array(sizes), ids, 3, 4))["crop"]
    tries = uniforms(3, 4, ids, range(TRIES)).reshape(TRIES, 4, len(ids)).astype(np.float64)
    rule = v2.RandomResizedCrop(8, scale, ratio)
    rule._log_ratio = torch.log(torch.tensor(ratio, dtype=torch.float64))
    for n, (height, width) in enumerate(sizes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_geometry, "torch", ScriptedRectangle(tries[:, :, n]))
            theirs = rule.make_params([torch.empty(0, height, width)])
        y, x, h, w = windows[n].tolist()
        assert (h, w) == (max(theirs["height"], 1), max(theirs["width"], 1)), (sizes[n], scale, ratio)
        assert (y, x) == (theirs["top"], theirs["left"]) or 0 in (theirs["height"], theirs["width"])
        assert 0 <= y <= y + h <= height
        assert 0 <= x <= x + w <= width


@examples(times=4)
@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.sampled_from([(0.02, 0.33), (0.3, 1.0), (0.9, 1.0), (0.0, 0.01)]),
    st.sampled_from([(0.3, 3.3), (0.01, 100.0), (1.0, 1.0)]),
    st.integers(0, 2**40),
)
def test_rectangles_are_drawn_as_torchvision_draws_them(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], sample: int
) -> None:
    """`make_params` of v2, given our uniforms, finds our rectangle on our try, or none where ten tries find none."""
    op, ids, (h, w) = RandomErasing(1.0, scale, ratio), np.array([sample]), size
    (found,) = op.draw(Draws([0, 1], np.array([size]), ids, 3, 4))["effect"].tolist()
    drawn = uniforms(3, 4, ids, range(1, 11)).reshape(10, 4).astype(np.float64)
    transform = v2.RandomErasing(1.0, scale, ratio)
    transform._log_ratio = torch.log(torch.tensor(ratio, dtype=torch.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_augment, "torch", ScriptedRectangle(drawn))
        theirs = transform.make_params([torch.zeros((3, h, w))])
    assert found == ([theirs[name] for name in "ijhw"] if theirs["v"] is not None else [0] * 4)


@examples(times=2)
@given(st.tuples(st.integers(1, 40), st.integers(1, 40)), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(0, 2**40))
def test_corners_are_drawn_as_torchvision_draws_them(size: tuple[int, int], distortion: float, sample: int) -> None:
    """`get_params` of v1, given our uniforms, has our corners; those for which torchvision fails are left alone."""
    drawn = uniforms(3, 4, np.array([sample]), [0, 1, 2])
    numbers, (h, w) = drawn[4:, 0].astype(np.float64).tolist(), size
    (found,) = corners(RandomPerspective(distortion, 1.0), drawn, np.array([h]), np.array([w])).tolist()

    def randint(low: int, high: int, size: tuple[int]) -> torch.Tensor:
        assert size == (1,)
        return torch.tensor([low + int((high - low) * numbers.pop(0))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randint", randint)
        start, end = v1.RandomPerspective.get_params(w, h, distortion)
    try:
        F.perspective(torch.zeros((3, h, w)), start, end)
    except RuntimeError:
        assert found == [-1] * 8
    else:
        assert found in ([edge for corner in end for edge in corner], [-1] * 8)
        assert min(size) < 9 or found[0] >= 0 or distortion == 1


class ScriptedDistortion:
    """What `_color` sees as torch: the real one, but numbers are the twelve of `drawn`, three rows of four."""

    def __init__(self, drawn: Any) -> None:
        self._drawn, self._call = drawn, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, _: Any) -> Any:
        """Whether each factor comes, where contrast does, whether channels move."""
        self._call += 1
        return torch.tensor(self._drawn[[0, 1, 2, 3, 8, 9][self._call - 1]])

    def empty(self, _: int) -> Any:
        """Only `uniform_` is asked of it, for the factor that was just said to come; in double precision."""
        u = float(self._drawn[4 + self._call - 1])
        return SimpleNamespace(uniform_=lambda low, high: torch.tensor(low + (high - low) * u, dtype=torch.float32))

    def randperm(self, count: int) -> Any:
        """The orders in the order of a dictionary."""
        orders = list(itertools.permutations(range(count)))
        return torch.tensor(orders[int(float(self._drawn[10]) * len(orders))])


@pytest.mark.parametrize("p", [0.0, 0.5, 0.8, 1.0])
def test_distortion_is_drawn_as_torchvision_draws_it(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make_params` of v2, given our uniforms, finds our factors, the place of contrast and the order of channels."""
    settings = {"brightness": (0.5, 2.0), "contrast": (0.0, 1.0), "saturation": (1.0, 1.0), "hue": (-0.5, 0.5)}
    ids = np.arange(1 << 40, (1 << 40) + 200)
    ours = RandomPhotometricDistort(**settings, p=p).draw(Draws([0, 1, 2], np.ones((200, 2)), ids, 3, 4))
    drawn = uniforms(3, 4, ids, [0, 1, 2])
    for n in range(len(ids)):
        monkeypatch.setattr(_color, "torch", ScriptedDistortion(drawn[:, n]))
        theirs = v2.RandomPhotometricDistort(**settings, p=p).make_params([torch.zeros(3, 4, 5)])
        known = distortion(*(ours[f"effect{name}"][n].tolist() for name in ("", "_turns", "_channels")))
        if theirs["contrast_factor"] is None:
            theirs["contrast_before"] = known["contrast_before"]
        if theirs["channel_permutation"] is None:
            theirs["channel_permutation"] = torch.arange(3)
        assert torch.equal(theirs.pop("channel_permutation"), known.pop("channel_permutation"))
        assert theirs == known


def test_each_order_of_channels_comes_equally_often() -> None:
    """All six, as torchvision's randperm: none is further from a sixth than chance allows (99.99 % of chi square)."""
    orders = RandomChannelPermutation().draw(Draws([0], np.ones((12000, 2)), np.arange(12000), 0, 0))["effect"]
    counts = Counter(map(tuple, orders.tolist()))
    assert set(counts) == set(itertools.permutations(range(3)))
    assert sum((count - 2000) ** 2 / 2000 for count in counts.values()) < 25.7


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
@pytest.mark.parametrize("op", [RandomPhotometricDistort(), RandomChannelPermutation()])
def test_one_channel_has_no_order(op: Op) -> None:
    """Behind Grayscale(1), as in torchvision: brightness and contrast are what is left, and one channel stays."""
    recipe, payloads, sizes = Recipe((Grayscale(1), op)), [png(n, 20, 30) for n in range(32)], np.full((32, 2), 9)
    made = compile_host(recipe).parameters(sizes, np.arange(32), 0, 0).arrays
    for n, one in enumerate(ran(recipe, payloads, range(32))):
        theirs: Any = v2.Grayscale(1)(decoded(payloads[n]))
        if isinstance(op, RandomPhotometricDistort):
            factors, turns = (made[of_op(f"effect{name}", 1)][n].tolist() for name in ("", "_turns"))
            theirs = v2.RandomPhotometricDistort().transform(theirs, distortion(factors, turns, [0]))
        assert torch.equal(one, theirs.expand_as(one))


# Weights of chains.


COUNT = 20_000


def near(found: Any, wanted: Any) -> None:
    """Shares of twenty thousand samples: four standard deviations are 0.014 at most."""
    np.testing.assert_allclose(found, wanted, atol=0.015)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("width", [1, 3])
def test_weights_are_dirichlets(alpha: float, width: int) -> None:
    """Beside torch's own: the image's share, the chains' shares of the rest, and their variances; they add up to 1."""
    draws = Draws((), np.ones((COUNT, 2)), np.arange(COUNT), 0, 0)
    found = AugMix(width=width, alpha=alpha).draw(draws)["effect_weights"].astype(np.float64)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    assert (found >= 0).all()
    torch.manual_seed(0)
    image = torch._sample_dirichlet(torch.tensor([alpha] * 2).expand(COUNT, -1))
    parts = torch._sample_dirichlet(torch.tensor([alpha] * width).expand(COUNT, -1)) * image[:, 1:]
    theirs = torch.cat([image[:, :1], parts], dim=1).double().numpy()
    near(found.mean(axis=0), theirs.mean(axis=0))
    near(found.var(axis=0), theirs.var(axis=0))
    for share in (0.1, 0.5, 0.9):
        near((found < share).mean(axis=0), (theirs < share).mean(axis=0))


REGION = pytest.mark.parametrize("region_decode", [True, False])
FIVE = np.array([[480, 640], [375, 500], [33, 1000], [1000, 33], [7, 5]])
FIVE_IDS = np.arange(5) + (3 << 40)


def program(*ops: Op, region_decode: bool = False) -> DaliProgram:
    """The compiled program of some ops."""
    return compile_dali(Recipe(ops), region_decode=region_decode)


def parameters(*ops: Op, region_decode: bool = False, sizes: Any = FIVE, seed: int = 0, epoch: int = 0) -> Parameters:
    """What a batch takes into them."""
    sizes = np.asarray(sizes)
    return program(*ops, region_decode=region_decode).parameters(sizes, FIVE_IDS[: len(sizes)], seed, epoch)


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
    whole = made.parameters(FIVE, FIVE_IDS, seed, epoch)
    turn = np.roll(np.arange(5), cut)
    parts = [made.parameters(FIVE[rows], FIVE_IDS[rows], seed, epoch) for rows in (turn[:cut], turn[cut:])]
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
    keys = [viewed(of_op(f"{what}{part}", n), view) for what, n, part, view in of]
    assert len({*keys, *FLIPS.values()}) == len(keys) + 2
