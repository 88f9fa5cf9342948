"""What people train detectors with: images, boxes, points and masks are those of torchvision's own class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.images import png
from kit.photographs import decoded
from kit.properties import examples
from kit.torchvision_way import drawn, ran
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import _geometry, _transform

from dali_feed.errors import TransformError
from dali_feed.transforms.filters import generator_of, seeds_of
from dali_feed.transforms.host import compile_host
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Draws
from dali_feed.transforms.program import compile_following, outline, unfit

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

NEAREST = InterpolationMode.NEAREST
FILL: Any = {tv_tensors.Mask: 255, "others": 9}
TRANSFORMS: dict[str, Any] = {
    "scale jitter": lambda: v2.ScaleJitter((60, 40)),
    "scale jitter, bicubic": lambda: v2.ScaleJitter((33, 90), (0.5, 1.5), InterpolationMode.BICUBIC),
    "shortest size": lambda: v2.RandomShortestSize([20, 45, 30], max_size=52),
    "shortest size, one": lambda: v2.RandomShortestSize(31, interpolation=NEAREST),
    "zoom out": lambda: v2.RandomZoomOut(FILL, (1.0, 3.0), 0.7),
    "elastic": lambda: v2.ElasticTransform(60.0, 2.0, fill=FILL),
    "elastic, nearest": lambda: v2.ElasticTransform([90.0, 0.0], [1.0, 3.0], NEAREST),
    "elastic, not smoothed": lambda: v2.ElasticTransform(5.0, 0.0),
    "rotation onto a larger canvas": lambda: v2.RandomRotation((33, 33), expand=True, fill=FILL),
    "rotation by a right angle": lambda: v2.RandomRotation((90, 90), InterpolationMode.BILINEAR, expand=True),
    "rotation by three": lambda: v2.RandomRotation((-90, -90), expand=True),
    "resize, nearest": lambda: v2.Resize((13, 77), NEAREST),
    "resize of an edge, nearest": lambda: v2.Resize(30, NEAREST, antialias=False),
    "padded in the middle": lambda: v2.CenterCrop((53, 51)),
    "padded and cut": lambda: v2.CenterCrop((30, 63)),
}


class Drawn:
    """torch, with our random numbers in place of its own."""

    def __init__(self, sample: int) -> None:
        self._numbers: Iterator[float] = iter(drawn(sample, 0))
        self._seed = seeds_of(Draws([0], np.array([[1, 1]]), np.array([sample]), 0, 0))[0]
        self._generator = generator_of(self._seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, *shape: int) -> torch.Tensor:
        """As many; of an image as many as it has pixels."""
        if len(shape) > 1:
            return torch.rand(*shape, generator=self._generator)
        return torch.tensor([next(self._numbers) for _ in range(*shape)])

    def randint(self, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        """One below."""
        return torch.tensor(int(next(self._numbers) * high)).reshape(shape)


def of_a_sample(seed: int, height: int, width: int) -> tuple[bytes, dict[str, Any]]:
    """A file, and what torchvision is given of it and of what follows it."""
    rng, size = np.random.default_rng(seed), (height, width)
    corners = np.sort(rng.uniform(0, 1, (5, 2, 2)), axis=1) * [width, height]
    payload = png(seed % 10, *size)
    boxes = torch.tensor(corners.reshape(5, 4), dtype=torch.float32)
    points = torch.tensor(rng.uniform(0, 1, (3, 2)) * [width, height], dtype=torch.float32)
    return payload, {
        "image": tv_tensors.Image(decoded(payload)),
        "mask": tv_tensors.Mask(torch.from_numpy(rng.integers(0, 9, (1, *size), np.uint8))),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size),
        "points": tv_tensors.KeyPoints(points, canvas_size=size),
    }


@examples(times=0.3)
@given(name=st.sampled_from(sorted(TRANSFORMS)), sample=st.integers(0, 999), size=st.tuples(*[st.integers(30, 70)] * 2))
def test_torchvisions_own_class_makes_the_same_of_our_draws(name: str, sample: int, size: tuple[int, int]) -> None:
    """Bit for bit, sizes too, and what follows lies where torchvision puts it."""
    transform = TRANSFORMS[name]()
    payload, given_ = of_a_sample(sample, *size)
    with pytest.MonkeyPatch.context() as patch:
        ours = Drawn(sample)
        patch.setattr(_geometry, "torch", ours)
        patch.setattr(_transform, "torch", ours)
        wanted = transform(given_)
    recipe, ids = lower(transform), np.array([sample])
    (image,) = ran(recipe, [payload], [sample])
    assert torch.equal(image, wanted["image"].as_subclass(torch.Tensor))
    followed = compile_following(recipe, boxes=True)
    draws = Draws(outline(recipe).streams, np.array([size]), ids, 0, 0).through(enumerate(recipe.ops))
    rows = followed.taken(draws)
    for kind in ("mask", "boxes", "points"):
        moved = followed.run(given_[kind], rows, 0)
        assert torch.equal(moved.as_subclass(torch.Tensor), wanted[kind].as_subclass(torch.Tensor)), kind


@examples(times=0.3)
@given(name=st.sampled_from(sorted(TRANSFORMS)), size=st.tuples(*[st.integers(30, 70)] * 2), first=st.integers(0, 999))
def test_no_image_is_beyond_what_is_known_of_sizes(name: str, size: tuple[int, int], first: int) -> None:
    """A crop behind them is refused for an image that might be too small for it, and for no other reason."""
    recipe, ids = lower(TRANSFORMS[name]()), np.arange(first, first + 40)
    sizes = np.array([size] * 40)
    found = compile_host(recipe).parameters(sizes, ids, 0, 0).sizes
    edge = np.array([size[:1]]), np.array([size[1:]])
    least = most = (edge[0][0], edge[1][0])
    for op in recipe.ops:
        least, most = op.bounds(least, most)
    assert (found >= np.concatenate(least)).all()
    assert (found <= np.concatenate(most)).all()


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (v2.RandomShortestSize([0]), "RandomShortestSize: min_size and max_size must be two positive ints"),
        (v2.ScaleJitter((0, 5)), "ScaleJitter: target_size must be two positive ints"),
        (v2.ElasticTransform(-1.0), "ElasticTransform: alpha must be at least 0; found -1"),
        (v2.ElasticTransform(sigma=[0.0, 1.0]), "ElasticTransform: sigma must be two numbers above 0, or none"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(transform: Any, said: str) -> None:
    """By name."""
    with pytest.raises(TransformError, match=said):
        lower(transform)


def test_an_image_too_small_to_be_blurred_is_a_bad_record() -> None:
    """As torchvision fails on it."""
    recipe = lower(v2.ElasticTransform(sigma=5.0))
    assert unfit(recipe, np.array([[21, 21]])) == {}
    (why,) = unfit(recipe, np.array([[20, 40]])).values()
    assert "needs an image of 21x21 at least; found 40x20" in why
