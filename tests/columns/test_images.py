"""Several images of a record: each with its own transform, with its own draws or another's; of shards and of tables."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from kit.by_hand import tar
from kit.images import QUICK, broken_png, encoded, png
from kit.torchvision_way import applied
from PIL import Image as Pillow
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Tuning
from dali_feed.columns import Column, Image, Mask, Number, Text
from dali_feed.errors import ConfigError, TransformError
from dali_feed.external_sources import ShardSet, Table
from dali_feed.feed import Feed
from dali_feed.loader import arguments as torch_arguments
from dali_feed.plan.order import Shuffle
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.transforms.host import compile_host
from dali_feed.transforms.lower import lower
from dali_feed.transforms.program import seed_of_column

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
    tmp_path: Path, wanted: dict[str, Column], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """When the loader is made, with the column."""
    with pytest.raises(error, match=message):
        DataLoader(pairs(tmp_path), 4, columns=wanted, tuning=QUICK, **options)


def test_what_matters_to_images_alone_warns_once_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that is right but cannot apply."""
    monkeypatch.setattr(torch_arguments, "_warned", set())
    with pytest.warns(UserWarning, match=r"^Decode\(engine=\) .*no column is an image"):
        DataLoader(pairs(tmp_path), 4, columns={"n": Number("cls")}, decode=Decode(engine="host"), tuning=QUICK)


ROWS = 9
CROP = v2.Compose([v2.RandomCrop(12), v2.RandomHorizontalFlip()])
PAIRED: dict[str, Column] = {
    "before": Image("before", CROP),
    "after": Image("after", CROP, draws="before"),
    "text": Text("text"),
    "label": Number("label"),
}


def columns_of(folder: Path) -> dict[str, list[Any]]:
    """Images before as bytes and after as files, both the same; texts and numbers."""
    for n in range(ROWS):
        (folder / f"{n}.png").write_bytes(png(n, 20 + n, 30))
    return {
        "before": [png(n, 20 + n, 30) for n in range(ROWS)],
        "after": [{"bytes": None, "path": str(folder / f"{n}.png")} for n in range(ROWS)],
        "text": [f"pair {n}" for n in range(ROWS)],
        "label": list(range(ROWS)),
    }


def table(whole: dict[str, list[Any]]) -> pa.Table:
    """As Hugging Face's datasets keep images."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table(whole | {"after": pa.array(whole["after"], image)})


def test_a_table_of_pairs_resumes_anywhere(tmp_path: Path) -> None:
    """One image lies in the table, one in a file."""
    source = Table(table(columns_of(tmp_path)), "before")
    assert_resumes_anywhere(source, columns=PAIRED, lanes=4, world_sizes=(1, 2, 4), positions=2, absent=0)


def test_a_fingerprint_knows_both_images(tmp_path: Path) -> None:
    """A table with one other second image is another source."""
    whole = columns_of(tmp_path)
    one = Table(table(whole), "before").snapshot().fingerprint
    whole["after"][4]["path"] += ".old"
    assert Table(table(whole), "before").snapshot().fingerprint != one


def test_a_dataset_of_hugging_faces_with_two_images(tmp_path: Path) -> None:
    """With columns= each of them is a member; what no column is made from is not looked at."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "before": datasets.Image(),
            "after": datasets.Image(),
            "text": datasets.Value("string"),
            "label": datasets.Value("int32"),
            "odd": datasets.Sequence(datasets.Value("int32")),
        }
    )
    whole = columns_of(tmp_path)
    whole["before"] = [{"bytes": encoded, "path": None} for encoded in whole["before"]]
    dataset = datasets.Dataset.from_dict(whole | {"odd": [[1]] * ROWS}, features=features)
    mask = {"mask": Mask("gray", of="after")}
    gray = [{"bytes": encoded, "path": None} for encoded in map(_gray, range(ROWS))]
    dataset = dataset.add_column("gray", gray, feature=datasets.Image())
    part = torch.utils.data.Subset(dataset, list(range(1, ROWS)))
    with DataLoader(part, 4, columns=PAIRED | mask, tuning=QUICK, shuffle=True) as loader:
        assert isinstance(loader._feed, Feed)
        batches = list(loader)
    assert sorted(n for batch in batches for n in batch["label"].tolist()) == list(range(1, ROWS))
    for batch in batches:
        assert batch["text"] == [f"pair {n}" for n in batch["label"].tolist()]
        assert torch.equal(batch["before"], batch["after"])
        assert torch.equal(batch["mask"], batch["after"][:, 0])


def _gray(n: int) -> bytes:
    """The red of image n as a picture of its own."""
    out = io.BytesIO()
    Pillow.open(io.BytesIO(png(n, 20 + n, 30))).convert("RGB").getchannel(0).save(out, "PNG")
    return out.getvalue()
