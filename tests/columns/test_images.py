"""Several images of a record: each with its own transform, with its own draws or another's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.by_hand import tar
from kit.images import QUICK, broken_png, encoded
from kit.torchvision_way import applied
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Tuning
from dali_feed.columns import Column, Image, Mask, Number
from dali_feed.errors import TransformError
from dali_feed.external_sources import ShardSet
from dali_feed.feed import Feed
from dali_feed.loader import arguments as torch_arguments
from dali_feed.transforms.lower import lower
from dali_feed.transforms.program import compile_host, seed_of_column

COUNT = 8
EXACT = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip()])  # both engines give the same pixels
RESIZED = v2.Compose([v2.RandomResizedCrop(20), v2.RandomHorizontalFlip(), v2.ColorJitter(0.4)])


def pixels(n: int, side: str) -> np.ndarray[Any, Any]:
    """An image of 40 or 50 by 56 or 44, another one for each n and side."""
    high, wide = (40, 56) if n % 2 else (50, 44)
    rng = np.random.default_rng([n, *side.encode()])
    return rng.integers(0, 255, (high // 4 + 1, wide // 4 + 1, 3), np.uint8).repeat(4, 0).repeat(4, 1)[:high, :wide]


def pairs(folder: Path, **instead: bytes | None) -> ShardSet:
    """A shard of left and right images, a mask of the right one's size, a number; `instead`: of number 3's."""
    samples = []
    for n in range(COUNT):
        members: dict[str, bytes | None] = {side: encoded(pixels(n, side)) for side in ("left", "right")}
        members |= {"mask": encoded(pixels(n, "right")[..., 0] // 4), "cls": str(n).encode()}
        members |= instead if n == 3 else {}
        samples.append((f"{n:03}", {suffix: data for suffix, data in members.items() if data is not None}))
    tar(folder / "0.tar", samples)
    return ShardSet(str(folder / "0.tar"), index_dir=folder)


def stereo(transform: Any, draws: str | None = "left", **more: Column) -> dict[str, Column]:
    """Left, number, right."""
    left, right = Image("left", transform), Image("right", transform, draws=draws)
    return {"left": left, "n": Number("cls"), "right": right, **more}


def theirs(transform: Any, side: str, n: int, sample: int, seed: int) -> torch.Tensor:
    """An image by torchvision's functions, op by op, with the draws of that sample under that seed."""
    recipe = lower(transform)
    sizes = np.array([pixels(n, side).shape[:2]], np.int32)
    made = compile_host(recipe).parameters(sizes, np.array([sample]), seed, 0).arrays
    image: Any = torch.from_numpy(pixels(n, side).copy()).permute(2, 0, 1)
    for k, op in enumerate(recipe.ops):
        image = applied(image, k, op, {name: rows[0].tolist() for name, rows in made.items()})
    return torch.as_tensor(image)


def read(source: Any, wanted: Mapping[str, Column] | list[Column], **options: Any) -> list[tuple[Any, Any]]:
    """Batches of four, with their info."""
    given = {"tuning": QUICK, "shuffle": True, "info": True, **options}
    with DataLoader(source, 4, columns=wanted, **given) as loader:
        return list(loader)


@pytest.mark.parametrize(("engine", "transform"), [("host", RESIZED), ("host", EXACT), ("dali", EXACT)])
@pytest.mark.parametrize("draws", ["left", None])
def test_each_image_is_torchvisions_on_its_draws(
    tmp_path: Path, engine: str, transform: Any, draws: str | None
) -> None:
    """With shared draws a pair is what torchvision makes of both with one set of numbers; else each has its own."""
    own = seed_of_column("right", 5)
    differ = 0
    for batch, info in read(pairs(tmp_path), stereo(transform, draws), decode=Decode(engine=engine), seed=5):
        for slot, (n, sample) in enumerate(zip(batch["n"].tolist(), info.ids.tolist(), strict=True)):
            assert torch.equal(batch["left"][slot], theirs(transform, "left", n, sample, 5))
            assert torch.equal(batch["right"][slot], theirs(transform, "right", n, sample, own if draws is None else 5))
            differ += not torch.equal(batch["right"][slot], theirs(transform, "right", n, sample, 5))
    assert (differ > COUNT // 2) is (draws is None)


def test_draws_belong_to_the_name_of_a_column(tmp_path: Path) -> None:
    """The first image is what it is alone; another keeps its draws whatever columns stand beside it."""
    source = pairs(tmp_path)
    alone = read(source, {"a": Image("left", EXACT), "n": Number("cls")}, shuffle=False)
    two = read(source, {"a": Image("left", EXACT), "right": Image("right", EXACT)}, shuffle=False)
    more: dict[str, Column] = {
        "b": Image("left", EXACT),
        "again": Image("left", EXACT),
        "as right": Image("right", EXACT, draws="right"),
        "mask": Mask("mask", of="right"),
        "right": Image("right", EXACT),
    }
    many = read(source, more, shuffle=False)
    for (one, _), (both, _), (whole, _) in zip(alone, two, many, strict=True):
        assert torch.equal(one["a"], both["a"])
        assert torch.equal(one["a"], whole["b"])
        assert torch.equal(both["right"], whole["right"])
        assert torch.equal(both["right"], whole["as right"])
        assert not torch.equal(whole["b"], whole["again"])
        assert torch.equal(whole["mask"], whole["right"][:, 0] // 4)  # crops and flips move pixels as they are


@pytest.mark.parametrize("engine", ["host", "dali"])
@pytest.mark.parametrize(
    ("side", "data", "reason"),
    [
        ("right", None, "column 'right' of member 'right': the record has no such member"),
        ("right", b"junk", "column 'right' of member 'right': text, not an image"),
        ("right", broken_png(), "column 'right' of member 'right': "),
        ("right", encoded(pixels(3, "right")[:20]), "column 'right' of member 'right': RandomCrop"),
        ("right", encoded(pixels(3, "right").repeat(9, 1)), "more than the limit of 10000"),
        ("left", broken_png(), "column 'left' of member 'left': "),
        ("left", encoded(pixels(3, "right")[:20]), "column 'left' of member 'left': RandomCrop"),
        (
            "mask",
            encoded(pixels(3, "right")[:20, :, 0]),
            "column 'mask' of member 'mask': a mask must have the size of its",
        ),
    ],
)
def test_a_bad_image_costs_its_slot(tmp_path: Path, engine: str, side: str, data: bytes | None, reason: str) -> None:
    """Found when it is read, by its size or by a decoder: the next good record stands there, whole; no other moves."""
    wanted, tuning = stereo(EXACT, mask=Mask("mask", of="right")), Tuning(threads=1, readers=1)
    with DataLoader(
        pairs(tmp_path, **{side: data}),
        4,
        columns=wanted,
        decode=Decode(engine=engine, max_pixels=10_000),
        tuning=tuning,
        bad=BadRecords(limit=1),
    ) as loader:
        batches = list(loader)
        told = loader.stats().recent_bad
    assert [n for batch in batches for n in batch["n"].tolist()] == [0, 1, 2, 4, 4, 5, 6, 7]
    assert len(told) == 1
    assert reason in told[0][1]
    for batch in batches:
        for slot, n in enumerate(batch["n"].tolist()):
            assert torch.equal(batch["left"][slot], theirs(EXACT, "left", n, n, 0))
            assert torch.equal(batch["right"][slot], theirs(EXACT, "right", n, n, 0))
        assert torch.equal(batch["mask"], batch["right"][:, 0] // 4)


def test_images_come_in_every_form_that_one_does(tmp_path: Path) -> None:
    """Functions of the user's and gray of one channel by column, channels last, a collate_fn, tuples, DLPack."""
    source = pairs(tmp_path)
    floats = v2.Compose([v2.CenterCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    wanted: dict[str, Column] = {
        "left": Image("left", v2.Compose([floats, v2.Lambda(lambda image: image.mean((1, 2)))])),
        "n": Number("cls"),
        "right": Image("right", v2.Compose([v2.Grayscale(1), v2.CenterCrop(24)])),
        "whole": Image("right", floats),
    }
    ((batch, _), *_) = read(source, wanted, decode=Decode(memory_format=torch.channels_last), shuffle=False)
    assert list(batch) == ["left", "n", "right", "whole"]
    assert [tuple(batch[name].shape) for name in ("left", "right", "whole")] == [(4, 3), (4, 1, 24, 24), (4, 3, 24, 24)]
    assert batch["whole"].is_contiguous(memory_format=torch.channels_last)
    seen: list[Any] = []
    read(source, list(wanted.values()), collate_fn=seen.extend, shuffle=False)
    for n, sample in enumerate(seen[:4]):
        assert isinstance(sample, tuple)
        assert all(torch.allclose(torch.as_tensor(a), b[n]) for a, b in zip(sample, batch.values(), strict=True))
    with Feed(source, 4, columns={"left": Image("left", floats), "whole": wanted["whole"]}, tuning=QUICK) as feed:
        given = next(iter(feed))
        assert torch.equal(torch.utils.dlpack.from_dlpack(given.fields["whole"]), batch["whole"])
        assert torch.allclose(torch.utils.dlpack.from_dlpack(given).mean((2, 3)), batch["left"])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"a": Image("left"), "b": Image("right", lambda x, draws: x)}, "columns: 'b': "),
        ({"a": Image("left", [EXACT, EXACT]), "b": Image("right")}, "columns: 'a': .*several views"),
    ],
)
def test_what_several_images_cannot_have_is_said(tmp_path: Path, wanted: dict[str, Column], message: str) -> None:
    """When the loader is made, with the column."""
    with pytest.raises(TransformError, match=message):
        DataLoader(pairs(tmp_path), 4, columns=wanted, tuning=QUICK)


def test_what_matters_to_images_alone_warns_once_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that is right but cannot apply."""
    monkeypatch.setattr(torch_arguments, "_warned", set())
    with pytest.warns(UserWarning, match=r"^Decode\(engine=\) .*no column is an image"):
        DataLoader(pairs(tmp_path), 4, columns={"n": Number("cls")}, decode=Decode(engine="host"), tuning=QUICK)
