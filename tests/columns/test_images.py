"""Several images of a record: each with its own transform, with its own draws or another's, on both engines."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, broken_png, encoded
from kit.torchvision_way import applied
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Tuning
from dali_feed.columns import Image, Kind, Mask, Number
from dali_feed.columns.image import Encoded, FurtherImage
from dali_feed.compiler.host import compile_host
from dali_feed.compiler.program import Picture, PicturesProgram, View, seed_of_column
from dali_feed.engines.choose import compiled, make_engine
from dali_feed.engines.engine import Work
from dali_feed.engines.several import SeveralEngine, Side
from dali_feed.errors import ClosedError, ConfigError, TransformError
from dali_feed.external_sources import ShardSet
from dali_feed.feed import Feed
from dali_feed.loader import arguments as torch_arguments
from dali_feed.plan import Shuffle
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.transforms.keys import SIZE, as_column
from dali_feed.transforms.lower import lower

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
    with tarfile.open(folder / "0.tar", "w") as tar:
        for n in range(COUNT):
            members = {side: encoded(pixels(n, side)) for side in ("left", "right")}
            members |= {"mask": encoded(pixels(n, "right")[..., 0] // 4), "cls": str(n).encode()}
            for suffix, whole in members.items():
                data = instead.get(suffix, whole) if n == 3 else whole
                if data is not None:
                    info = tarfile.TarInfo(f"{n:03}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return ShardSet(str(folder / "0.tar"), index_dir=folder)


def stereo(transform: Any, draws: str | None = "left", **more: Kind) -> dict[str, Kind]:
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


def read(source: Any, wanted: Mapping[str, Kind] | list[Kind], **options: Any) -> list[tuple[Any, Any]]:
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
    more: dict[str, Kind] = {
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


def test_two_images_resume_anywhere(tmp_path: Path) -> None:
    """With their draws, a mask of the second, and a second image that a decoder refuses."""
    wanted = stereo(RESIZED, None, mask=Mask("mask", of="right"))
    assert_resumes_anywhere(
        pairs(tmp_path, right=broken_png()),
        columns=wanted,
        shuffle=Shuffle(2, 2),
        lanes=4,
        world_sizes=(1, 2, 4),
        positions=2,
    )


class _Pair:
    """The engine of two images, and its batches of records."""

    def __init__(self, name: str, transform: Any) -> None:
        made = [compiled(transform, Decode(engine=name), None)[1] for _ in range(2)]
        views: list[View] = [program.views[0] for program in made]
        self.program = PicturesProgram([Picture(views[0]), Picture(views[1], draws="right")])
        self.inner = [make_engine(name, view, batch_size=2, device=None, tuning=QUICK) for view in views]
        self.engine = SeveralEngine(
            [Side("left", "left: ", self.inner[0]), Side("right", "right: ", self.inner[1])],
        )
        self.engine.enter()

    def work(self, numbers: list[int], right: bytes | None = None) -> Work:
        """Of records with these numbers; `right`: the last one's second image."""
        payloads = {side: [encoded(pixels(n, side)) for n in numbers] for side in ("left", "right")}
        payloads["right"][-1:] = [right or payloads["right"][-1]]
        one = np.array([pixels(n, "left").shape[:2] for n in numbers], np.int32)
        made = self.program.parameters(np.concatenate([one, one], axis=1), np.array(numbers), 0, 0)
        fields = [Encoded(memoryview(data), size) for data, size in zip(payloads["right"], one.tolist(), strict=True)]
        return Work(
            self.engine.prepare([memoryview(data) for data in payloads["left"]]), made.arrays, {"right": fields}
        )

    def wanted(self, numbers: list[int]) -> list[np.ndarray[Any, Any]]:
        """Both images of such a batch, run alone."""
        result = self.engine.redo(self.work(numbers))
        return [np.asarray(images).copy() for images in (result.images, result.more[0][0])]

    def taken(self) -> list[np.ndarray[Any, Any]]:
        """Both images of the oldest batch in flight."""
        result = self.engine.take()
        return [np.asarray(images) for images in (result.images, result.more[0][0])]


def _same(found: list[np.ndarray[Any, Any]], wanted: list[np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["host", "dali"])
def test_a_batch_that_was_halted_leaves_nothing_to_the_next(name: str) -> None:
    """A pass that is left while it waits: what comes next is a batch of its own in both columns."""
    pair = _Pair(name, EXACT)
    wanted = pair.wanted([3, 5])
    pair.engine.submit(pair.work([1, 7]))
    pair.engine.submit(pair.work([7, 1]))
    pair.engine.halt()
    with contextlib.suppress(ClosedError) if name == "dali" else pytest.raises(ClosedError):
        pair.engine.take()  # a DALI graph cannot be stopped: its batch may come all the same
    pair.engine.discard()
    pair.engine.resume()
    pair.engine.submit(pair.work([3, 5]))
    assert _same(pair.taken(), wanted)
    pair.engine.close()


def test_a_batch_that_one_engine_does_not_take_is_in_none() -> None:
    """The batches before it come out as they should, and so do those after it."""
    pair = _Pair("host", v2.RandomHorizontalFlip())
    first, second = pair.wanted([1, 3]), pair.wanted([5, 7])
    broken = pair.work([3, 1])
    (key,) = as_column({SIZE: np.zeros(0)}, 1)
    del broken.arrays[key]
    pair.engine.submit(pair.work([1, 3]))
    with pytest.raises(KeyError):
        pair.engine.submit(broken)
    pair.engine.submit(pair.work([5, 7]))
    assert _same(pair.taken(), first)
    assert _same(pair.taken(), second)
    pair.engine.close()


def test_an_engine_that_fails_takes_the_batch_from_the_others() -> None:
    """What one raises is raised; the other's batch is dropped with it, and the next is in step."""
    pair = _Pair("host", EXACT)
    wanted, broken = pair.wanted([5, 7]), pair.work([1, 3])
    for key in list(as_column({key: rows for key, rows in broken.arrays.items() if "of_column" not in key}, 1)):
        del broken.arrays[key]
    pair.engine.submit(broken)
    pair.engine.submit(pair.work([5, 7]))
    with pytest.raises(Exception, match="KeyError"):
        pair.engine.take()
    assert _same(pair.taken(), wanted)
    pair.engine.close()


def test_what_was_good_is_not_made_again() -> None:
    """Where a second image is bad, the first ones stay where they are, but for the slots that changed."""
    pair = _Pair("host", EXACT)
    wanted = pair.wanted([1, 5])
    pair.engine.submit(pair.work([1, 3], broken_png()))
    failed = pair.engine.take()
    assert list(failed.bad) == [1]
    assert failed.bad[1].startswith("right: ")
    result = pair.engine.redo(pair.work([1, 5]), failed, [1])
    assert _same([np.asarray(result.images), np.asarray(result.more[0][0])], wanted)
    assert result.images is failed.images
    pair.engine.close()


def test_images_come_in_every_form_that_one_does(tmp_path: Path) -> None:
    """Functions of the user's and gray of one channel by column, channels last, a collate_fn, tuples, DLPack."""
    source = pairs(tmp_path)
    floats = v2.Compose([v2.CenterCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    wanted: dict[str, Kind] = {
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
    ("wanted", "options", "error", "message"),
    [
        ({"a": Image("left"), "b": Image("right", lambda x, draws: x)}, {}, TransformError, "columns: 'b': "),
        (
            {"a": Image("left", [EXACT, EXACT]), "b": Image("right")},
            {},
            TransformError,
            "columns: 'a': .*several views",
        ),
        ({"a": Image("left"), "b": Mask("mask", of="c")}, {}, ConfigError, "which must be there; found 'a'. Give of="),
        ({"n": Number("cls")}, {"decode": "foo"}, ConfigError, "decode: must be a Decode"),
        ({"n": Number("cls")}, {"decode": Decode(exif=True)}, ConfigError, "no column is an Image; found True"),
    ],
)
def test_what_cannot_be_is_told(
    tmp_path: Path, wanted: dict[str, Kind], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """When the loader is made, with the column."""
    with pytest.raises(error, match=message):
        DataLoader(pairs(tmp_path), 4, columns=wanted, tuning=QUICK, **options)


def test_what_matters_to_images_alone_warns_once_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that is right but cannot apply."""
    monkeypatch.setattr(torch_arguments, "_warned", set())
    with pytest.warns(UserWarning, match=r"^Decode\(engine=\) .*no column is an image"):
        DataLoader(pairs(tmp_path), 4, columns={"n": Number("cls")}, decode=Decode(engine="host"), tuning=QUICK)


@pytest.mark.parametrize("kind", [Mask("m"), FurtherImage("m", Decode(max_pixels=100, max_work=1000))])
def test_a_member_that_is_no_bytes_is_a_fault(kind: Kind) -> None:
    """A format may find a number or a text where an image was asked for."""
    faults: dict[int, str] = {}
    kind.read([5, "a.png", None], faults)
    assert faults == {
        0: "an encoded image must be bytes; found int",
        1: "an encoded image must be bytes; found str",
        2: "the record has no such member",
    }
