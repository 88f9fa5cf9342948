"""transforms: effects, erasing and nests of torchvision's v1 and v2; what of them is refused, and why."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from both_versions import BOTH, MEAN, STD
from hypothesis import given
from hypothesis import strategies as st
from kit.properties import examples
from numpy.typing import NDArray
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2
from torchvision.transforms.v2 import _augment, functional

from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import outline
from dali_feed.draws import uniforms
from dali_feed.errors import TransformError
from dali_feed.transforms.colour import ColorJitter, Grayscale, RandomGrayscale
from dali_feed.transforms.crops import CenterCrop, Flip
from dali_feed.transforms.erasing import RandomErasing, erased
from dali_feed.transforms.filters import GaussianBlur
from dali_feed.transforms.lower import lower
from dali_feed.transforms.nest import RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.op import BatchDraws, Op, Recipe, walk
from dali_feed.transforms.pointwise import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from dali_feed.transforms.warps import RandomPerspective, corners

# Made from either module: the transform, and what it lowers to.
SAME_IN_BOTH: list[tuple[Any, Op]] = [
    (lambda T: T.Grayscale(3), Grayscale()),
    (lambda T: T.RandomGrayscale(), RandomGrayscale(0.1)),
    (lambda T: T.RandomGrayscale(0.2), RandomGrayscale(0.2)),
    (lambda T: T.GaussianBlur(3), GaussianBlur((3, 3), (0.1, 2.0))),
    (lambda T: T.GaussianBlur((5, 9), 1.5), GaussianBlur((5, 9), (1.5, 1.5))),
    (lambda T: T.GaussianBlur([5, 9], sigma=(0.5, 1)), GaussianBlur((5, 9), (0.5, 1.0))),
    (lambda T: T.RandomInvert(0.25), RandomInvert(0.25)),
    (lambda T: T.RandomPosterize(4, p=0.25), RandomPosterize(4, 0.25)),
    (lambda T: T.RandomSolarize(128), RandomSolarize(128.0, 0.5)),
    (lambda T: T.RandomAdjustSharpness(2, p=1), RandomAdjustSharpness(2.0, 1.0)),
    (lambda T: T.RandomAutocontrast(), RandomAutocontrast(0.5)),
    (lambda T: T.RandomEqualize(p=0), RandomEqualize(0.0)),
    (lambda T: T.RandomPerspective(), RandomPerspective(0.5, 0.5, "bilinear", 0.0)),
    (
        lambda T: T.RandomPerspective(0.25, 0.75, interpolation=Mode.NEAREST, fill=(1, 2, 3)),
        RandomPerspective(0.25, 0.75, "nearest", (1.0, 2.0, 3.0)),
    ),
    (lambda T: T.RandomErasing(), RandomErasing(0.5, (0.02, 0.33), (0.3, 3.3), 0.0)),
    (
        lambda T: T.RandomErasing(0.1, [0.1, 0.2], [1, 2], (1, 2, 3)),
        RandomErasing(0.1, (0.1, 0.2), (1.0, 2.0), (1.0, 2.0, 3.0)),
    ),
    (lambda T: T.RandomErasing(value=[7]), RandomErasing(value=7.0)),
    (
        lambda T: T.RandomApply([T.ColorJitter(0.5), T.Compose([T.GaussianBlur(3), T.RandomHorizontalFlip()])], 0.8),
        RandomApply((ColorJitter((0.5, 1.5)), GaussianBlur((3, 3)), Flip("x")), 0.8),
    ),
    (lambda T: T.RandomApply(torch.nn.ModuleList([T.Grayscale(3)])), RandomApply((Grayscale(),), 0.5)),
    (
        lambda T: T.RandomChoice([T.Compose([T.GaussianBlur(3), T.Grayscale(3)]), T.RandomInvert()], p=[0.25, 0.75]),
        RandomChoice(((GaussianBlur((3, 3)), Grayscale()), (RandomInvert(),)), (0.25, 0.75)),
    ),
    (
        lambda T: T.RandomOrder([T.RandomInvert(), T.RandomApply([T.RandomEqualize()])]),
        RandomOrder(((RandomInvert(),), (RandomApply((RandomEqualize(),)),))),
    ),
]


@BOTH
@pytest.mark.parametrize(("make", "op"), SAME_IN_BOTH)
def test_each_transform(T: Any, make: Any, op: Op) -> None:
    """Each transform of v1 and v2 becomes its op with all its settings."""
    assert lower(make(T)) == Recipe((op,))


def test_a_choice_without_weights() -> None:
    """v1 keeps None, v2 equal shares; ToImage in a nest is a branch in which nothing is done."""
    branches = ((Grayscale(),), ())
    assert lower(v1.RandomChoice([v2.Grayscale(3), v2.ToImage()])) == Recipe((RandomChoice(branches),))
    assert lower(v2.RandomChoice([v2.Grayscale(3), v2.ToImage()])) == Recipe((RandomChoice(branches, (0.5, 0.5)),))


# Made from either module: the transform, its name, the rule, and what was found.
REFUSED: list[tuple[Any, str, str, str]] = [
    (lambda T: T.Grayscale(), "Grayscale", "must be 3, or 1 in a DataLoader", "1"),
    (lambda T: T.RandomErasing(value=(1, 2)), "RandomErasing", "one for each of three channels", "2"),
    (lambda T: T.RandomErasing(ratio=(0, 1)), "RandomErasing", "ratio must be (low, high)", "(0.0, 1.0)"),
    (lambda T: T.RandomPosterize(9), "RandomPosterize", "bits must be an int in 0..8", "9"),
    (lambda T: T.RandomPosterize(2.0), "RandomPosterize", "bits must be an int in 0..8", "2.0"),
    (lambda T: T.RandomSolarize(float("nan")), "RandomSolarize", "threshold must be a number", "nan"),
    (lambda T: T.RandomAdjustSharpness(-1), "RandomAdjustSharpness", "sharpness_factor must be at least 0", "-1.0"),
    (
        lambda T: T.RandomApply([T.Resize(9)]),
        "RandomApply",
        "must not hold a transform that changes the size",
        "Resize(size=9",
    ),
    (
        lambda T: T.RandomChoice([T.CenterCrop(9)]),
        "RandomChoice",
        "must not hold a transform that changes",
        "CenterCrop",
    ),
    (lambda T: T.RandomOrder([v2.ToDtype(torch.float32)]), "RandomOrder", "must not hold a transform", "ToFloat"),
    (lambda T: T.RandomApply([T.Normalize(MEAN, STD)]), "RandomApply", "must not hold a transform", "Normalize"),
]


@BOTH
@pytest.mark.parametrize(("make", "name", "rule", "found"), REFUSED)
def test_settings_refused(T: Any, make: Any, name: str, rule: str, found: str) -> None:
    """A setting that cannot be kept is an error with the transform's name, the rule and the value."""
    with pytest.raises(TransformError, match=rf"^{name}: .*{re.escape(rule)}.*; found .*{re.escape(found)}"):
        lower(make(T))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RandomGrayscale(1.5), "RandomGrayscale: p must lie in 0..1; found 1.5"),
        (lambda: RandomInvert(-1.0), "RandomInvert: p must lie in 0..1; found -1.0"),
        (lambda: RandomPosterize(3, 2.0), "RandomPosterize: p must lie in 0..1"),
        (lambda: RandomSolarize(3.0, 2.0), "RandomSolarize: p must lie in 0..1"),
        (lambda: RandomAdjustSharpness(3.0, 2.0), "RandomAdjustSharpness: p must lie in 0..1"),
        (lambda: RandomAutocontrast(2.0), "RandomAutocontrast: p must lie in 0..1"),
        (lambda: RandomEqualize(2.0), "RandomEqualize: p must lie in 0..1"),
        (lambda: RandomErasing(2.0), "RandomErasing: p must lie in 0..1"),
        (lambda: RandomErasing(scale=(0.5, 1.5)), "RandomErasing: scale must be (low, high)"),
        (lambda: GaussianBlur((4, 3)), "GaussianBlur: kernel_size must be two odd positive ints"),
        (lambda: GaussianBlur((3, 3), (0.0, 1.0)), "GaussianBlur: sigma must be (low, high)"),
        (lambda: RandomPerspective(1.5), "RandomPerspective: distortion_scale must lie in 0..1; found 1.5"),
        (lambda: RandomPerspective(0.5, 2.0), "RandomPerspective: p must lie in 0..1"),
        (lambda: RandomApply((), 2.0), "RandomApply: p must lie in 0..1"),
        (lambda: RandomChoice(()), "RandomChoice: needs at least one transform"),
        (lambda: RandomChoice(((Grayscale(),),), (1.0, 2.0)), "RandomChoice: p needs one number for each"),
        (lambda: RandomChoice(((Grayscale(),),), (0.0,)), "RandomChoice: p must be numbers of at least 0, not all 0"),
        (lambda: RandomOrder(()), "RandomOrder: needs at least one transform"),
    ],
)
def test_ops_refuse(make: Any, told: str) -> None:
    """A wrong value never becomes an op; the error has torchvision's name, the rule and the value."""
    with pytest.raises(TransformError, match=f"^{re.escape(told)}"):
        make()


@pytest.mark.parametrize("nest", [lambda t: t, lambda t: v2.RandomApply([v2.RandomOrder([t])])])
@pytest.mark.parametrize(
    ("before", "transform", "told"),
    [
        ([], v2.RandomSolarize(256), "RandomSolarize: threshold must be at most 255, the largest of uint8 pixels"),
        (
            [v1.ToTensor()],
            v2.RandomSolarize(128),
            "RandomSolarize: threshold must be at most 1, the largest of float32",
        ),
        ([], v2.RandomErasing(value=256), "RandomErasing: value must lie in 0..255 where pixels are uint8; found 256"),
        ([], v2.RandomErasing(value=(0, -1, 0)), "RandomErasing: value must lie in 0..255"),
        ([v1.ToTensor(), v2.Normalize(MEAN, STD)], v2.GaussianBlur(3), "GaussianBlur: .* before Normalize"),
        ([v1.ToTensor(), v2.Normalize(MEAN, STD)], v2.RandomInvert(), "RandomInvert: .* before Normalize"),
    ],
)
def test_places_without_meaning(nest: Any, before: list[Any], transform: Any, told: str) -> None:
    """Values beyond what pixels can be, and colour behind Normalize, are refused by name, in a nest too."""
    with pytest.raises(TransformError, match=f"^{told}"):
        outline(lower(v1.Compose([*before, nest(transform)])))


def test_erasing_stands_behind_normalize() -> None:
    """Alone or in a nest: torchvision's own training recipe ends so."""
    ends = [v1.ToTensor(), v2.Normalize(MEAN, STD), v2.RandomErasing(), v2.RandomApply([v2.RandomErasing()])]
    assert outline(lower(v1.Compose(ends))).dtype == "float32"


@BOTH
def test_what_is_unknown_in_a_nest_is_named(T: Any) -> None:
    """As anywhere."""
    with pytest.raises(TransformError, match="Lambda is not supported"):
        lower(T.RandomApply([T.RandomChoice([T.Lambda(lambda x: x)])]))


class Scripted:
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
    found = erased(op, BatchDraws(ids, 3, 4, [0, 1]), 0, np.array([h]), np.array([w]))
    drawn = uniforms(3, 4, ids, range(1, 11)).reshape(10, 4).astype(np.float64)
    transform = v2.RandomErasing(1.0, scale, ratio)
    transform._log_ratio = torch.log(torch.tensor(ratio, dtype=torch.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_augment, "torch", Scripted(drawn))
        theirs = transform.make_params([torch.zeros((3, h, w))])
    ours = tuple(int(edge[0]) for edge in found)
    assert ours == (tuple(theirs[name] for name in "ijhw") if theirs["v"] is not None else (0, 0, 0, 0))


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
        functional.perspective(torch.zeros((3, h, w)), start, end)
    except RuntimeError:
        assert found == [-1] * 8
    else:
        assert found in ([edge for corner in end for edge in corner], [-1] * 8)
        assert min(size) < 9 or found[0] >= 0 or distortion == 1


def test_erasing_follows_its_probability() -> None:
    """Where it is not for a sample the rectangle is empty; the share of others is p."""
    ids, edge = np.arange(4000), np.full(4000, 30)
    _, _, h, w = erased(RandomErasing(0.3), BatchDraws(ids, 0, 0, [0, 1]), 0, edge, edge)
    assert abs(((h > 0) & (w > 0)).mean() - 0.3) < 0.03
    assert not any(edges.any() for edges in erased(RandomErasing(0.0), BatchDraws(ids, 0, 0, [0, 1]), 0, edge, edge))


def test_numbers_of_nested_ops_are_their_own() -> None:
    """No two ops of a recipe share a number, and so no draws; what runs out of numbers is refused."""
    leaf: Op = Grayscale()
    wide = RandomApply((leaf,) * 63)
    deep = RandomApply((RandomApply((wide, wide)), leaf))
    found = [n for n, _ in walk([leaf, deep, wide, CenterCrop((3, 3)), deep])]
    assert len(found) == len(set(found))
    assert found[0] == 0
    assert max(found) * 16 < 1 << 31
    with pytest.raises(
        TransformError, match="^RandomApply: must have fewer than 64 transforms and lie in fewer than 3"
    ):
        compile_host(Recipe((RandomApply((leaf,) * 64),)))
    with pytest.raises(
        TransformError, match="^RandomApply: must have fewer than 64 transforms and lie in fewer than 3"
    ):
        compile_host(Recipe((RandomApply((deep,)),)))
    with pytest.raises(TransformError, match="^RandomApply: must be in a list of at most 256 transforms; found 257"):
        compile_host(Recipe((*[leaf] * 256, RandomApply((leaf,)))))
