"""What people train detectors with: images, boxes, points and masks are those of torchvision's own class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.followers import columns as followers
from kit.followers import pictured
from kit.images import QUICK, png
from kit.photographs import decoded
from kit.properties import examples
from kit.torchvision_way import drawn, ran
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import _geometry, _transform

from dali_feed import DataLoader, Shuffle
from dali_feed.columns import Boxes, Column, Keypoints
from dali_feed.draws import uniforms
from dali_feed.errors import TransformError
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.transforms.crops import RandomCrop, RandomZoomOut
from dali_feed.transforms.filters import generator_of, seeds_of
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Draws, Recipe
from dali_feed.transforms.program import Output, Program, compile_following, compile_host, outline, unfit
from dali_feed.transforms.resize import RandomShortestSize, Resizing, ScaleJitter

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


class Tried:
    """torch, with our numbers: a share, then two numbers for a window's size and two for its place, trial by trial."""

    def __init__(self, seed: int, trials: int) -> None:
        self._seed, self._trials, self._round = seed, trials, -1
        self._pairs: Iterator[Any] = iter(())

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def randint(self, *, low: int, high: int, size: tuple[int, ...]) -> torch.Tensor:
        """The share of the next round."""
        self._round += 1
        u = uniforms(self._seed, self._round, np.arange(self._trials + 1), (0,))
        self._pairs = iter(torch.from_numpy(u[:, :-1].T.copy().reshape(-1, 2)))
        return torch.tensor(low + int(float(u[0, -1]) * (high - low))).reshape(size)

    def rand(self, count: int) -> torch.Tensor:
        """The next two."""
        assert count == 2
        pair: torch.Tensor = next(self._pairs)
        return pair


BEFORE: list[Any] = [[], [v2.RandomZoomOut(3, (1.0, 2.0), 1.0), v2.RandomHorizontalFlip(1.0)], [v2.Resize((40, 60))]]


@examples(times=0.3)
@given(
    before=st.sampled_from(BEFORE),
    sample=st.integers(0, 999),
    size=st.tuples(*[st.integers(30, 70)] * 2),
    options=st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.4]), min_size=1, max_size=3),
)
def test_a_window_by_the_boxes_is_torchvisions(
    before: list[Any], sample: int, size: tuple[int, int], options: list[float]
) -> None:
    """Behind what moves them: the same window of our numbers, and boxes with their centre outside become nothing."""
    crop = v2.RandomIoUCrop(0.3, 1.0, 1e-6, 1e6, [*options, 1.0], trials=30)
    _, plain = of_a_sample(sample, *size)
    recipe = lower(v2.Compose([*before, crop]))
    columns = {"boxes": Boxes("boxes")}
    output = Output("host", compile_host(recipe), followed=compile_following(recipe, boxes=True), followers=columns)
    rows, sizes = output.draw(np.array([size]), np.array([sample]), 0, 0, {"boxes": [plain["boxes"].numpy()]})
    _, moving = Program((output,)).split({(0, key): values for key, values in rows.items()})
    followed, still = output.followed, lower(v2.Compose([v2.Identity(), *before]))
    assert followed is not None
    moved = {kind: followed.run(plain[kind], moving[0], 0) for kind in ("mask", "boxes", "points")}
    ours = compile_following(still, boxes=True)
    given_ = {kind: ours.run(plain[kind], moving[0], 0) for kind in ("mask", "boxes", "points")}
    draws = Draws(outline(recipe).streams, np.array([size]), np.array([sample]), 0, 0)
    draws.n = len(before)
    seed = int(seeds_of(draws)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_geometry, "torch", Tried(seed, 30))
        wanted = crop({"image": tv_tensors.Image(given_["mask"]), **given_})
    for kind, value in moved.items():
        assert torch.equal(value.as_subclass(torch.Tensor), wanted[kind].as_subclass(torch.Tensor)), kind
    assert sizes.tolist() == [list(wanted["image"].shape[-2:])]


def test_windows_by_boxes_have_the_shape_that_is_wanted() -> None:
    """In any sample; one without boxes, or for which there is none, is left as it is."""
    recipe = lower(v2.RandomIoUCrop(0.2, 0.9, 0.9, 1.2, [0.0]))
    output = Output("host", compile_host(recipe), followers={"boxes": Boxes("boxes")})
    boxes = [np.array([[10.0, 10.0, 30.0, 30.0]], np.float32)] * 60
    boxes[7], boxes[8] = np.zeros((0, 4), np.float32), np.array([[90.0, 90.0, 91.0, 91.0]], np.float32)
    _, sizes = output.draw(np.array([[64, 64]] * 60), np.arange(60), 0, 0, {"boxes": boxes})
    assert sizes[[7, 8]].tolist() == [[64, 64]] * 2
    high, wide = np.delete(sizes, [7, 8], 0).T
    assert ((wide / high >= 0.9) & (wide / high <= 1.2)).all()
    assert (np.stack([high, wide]) <= 58).all()


def test_detectors_are_trained_as_by_torchvisions_reference(tmp_path: Path) -> None:
    """SSD's transforms in a loader, which resume; without boxes they are refused, before any record is read."""
    ssd = v2.Compose(
        [
            *(
                v2.RandomPhotometricDistort(),
                v2.RandomZoomOut(fill={tv_tensors.Image: (123.0, 117.0, 104.0), "others": 0}),
            ),
            *(v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), v2.Resize((30, 30))),
        ]
    )
    padded: dict[str, Column] = {"boxes": Boxes("boxes", more=1, most=3), "points": Keypoints("points", most=2)}
    source, wanted = pictured(tmp_path), followers(ssd) | padded
    with DataLoader(source, 4, columns=wanted, tuning=QUICK, seed=3, device="cpu") as loader:
        batches = list(loader)
    assert {tuple(batch["image"].shape) for batch in batches} == {(4, 3, 30, 30)}
    assert_resumes_anywhere(source, columns=wanted, shuffle=Shuffle(2, 2), lanes=4, world_sizes=(1, 2), positions=2)
    with pytest.raises(TransformError, match="RandomIoUCrop: cuts by the boxes of an image; found no such column"):
        DataLoader(source, 4, transform=ssd, device="cpu")
    with pytest.raises(TransformError, match="RandomIoUCrop: cuts by the boxes of an image; found no such column"):
        DataLoader(source, 4, transform=[v2.Resize((30, 30)), ssd], device="cpu")


def test_boxes_that_cannot_be_moved_cost_their_record_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those by which a window is drawn, too: the run goes on, as it does where they only follow."""
    as_boxes = Boxes.as_boxes

    def failing(self: Boxes, value: Any, size: tuple[int, int]) -> Any:
        if len(value) == 3:
            raise RuntimeError("three boxes")
        return as_boxes(self, value, size)

    monkeypatch.setattr(Boxes, "as_boxes", failing)
    transform = v2.Compose([v2.RandomIoUCrop(), v2.Resize((30, 30))])
    columns = followers(transform)
    columns = {"image": columns["image"], "boxes": columns["boxes"]}
    with DataLoader(pictured(tmp_path), 4, columns=columns, tuning=QUICK, device="cpu") as loader:
        counts = [len(boxes) for batch in loader for boxes in batch["boxes"]]
        assert loader.stats().bad == 2
    assert len(counts) == 8
    assert 3 not in counts


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (v2.RandomShortestSize([0]), "RandomShortestSize: min_size and max_size must be two positive ints"),
        (v2.ScaleJitter((0, 5)), "ScaleJitter: target_size must be two positive ints"),
        (v2.RandomIoUCrop(0.9, 0.2), "RandomIoUCrop: min_scale and max_scale must be"),
        (v2.ElasticTransform(-1.0), "ElasticTransform: alpha must be at least 0; found -1"),
        (v2.ElasticTransform(sigma=[0.0, 1.0]), "ElasticTransform: sigma must be two numbers above 0, or none"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(transform: Any, said: str) -> None:
    """By name."""
    with pytest.raises(TransformError, match=said):
        lower(transform)


@pytest.mark.parametrize(
    "op",
    [RandomShortestSize((480,)), ScaleJitter((10_000, 480), (1.0, 1.0))],
    ids=["in double precision", "in single precision"],
)
def test_an_edge_that_is_rounded_down_lies_within_the_bounds(op: Resizing) -> None:
    """`h * (480 / h)` is 479 for some h: a crop behind it is told so, where h is not known beforehand."""
    high, u = np.arange(500, 2000), np.zeros((4, 1500), np.float32)
    every = op.resized(high, high, u)
    assert set(every[0]) == {479, 480}
    least, most = op.bounds((high[:1], high[:1]), (high[-1:], high[-1:]))
    assert all(least[k] <= every[k].min() and every[k].max() <= most[k] for k in range(2))
    crop = (op, RandomCrop((480, 100)))
    (why,) = unfit(Recipe((RandomZoomOut(), *crop)), np.array([(500, 500)])).values()
    assert "RandomCrop: 100x480 must fit into the image; found" in why
    known = np.stack([high, high], axis=1)  # of an image whose size is known, what comes out is known exactly
    assert set(unfit(Recipe(crop), known)) == set(np.flatnonzero(every[0] == 479).tolist())


def test_an_image_too_small_to_be_blurred_is_a_bad_record() -> None:
    """As torchvision fails on it."""
    recipe = lower(v2.ElasticTransform(sigma=5.0))
    assert unfit(recipe, np.array([[21, 21]])) == {}
    (why,) = unfit(recipe, np.array([[20, 40]])).values()
    assert "needs an image of 21x21 at least; found 40x20" in why
