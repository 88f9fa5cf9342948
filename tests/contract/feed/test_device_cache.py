"""A cache on the device: the same batches with and without, what it keeps, and what it refuses. Here it is the CPU."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.cached_feeds import epochs, feed
from kit.images import QUICK, broken_png, encoded, jpeg, labelled, pixels, seen
from kit.inside import Corrupt, Feed, Gap, write_shard
from kit.member_shards import shards
from PIL import Image as Pillow
from torchvision.transforms import v2

from dali_feed import BadRecords, Cache, DataLoader, Decode, Mixing, Tuning
from dali_feed.columns import Bytes, Image, Mask, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import DeadLetterFolder, ShardSet
from dali_feed.testing import ScriptedSource, assert_resumes_anywhere

FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
CUT = (v2.Resize(20), v2.CenterCrop(16))
TRAIN = v2.Compose([*CUT, v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5)])
SHIFTED = v2.Compose([v2.Resize((16, 16)), v2.RandomCrop(16, padding=3, fill=7), *TRAIN.transforms[2:]])
CACHE = Cache(device="1MB")


def scripted(**options: Any) -> ScriptedSource:
    """Images of many sizes; with holes, faults, and some that only the decoder refuses."""
    items: list[Any] = labelled(48, sizes=True)
    broken = (broken_png(1), 30), (broken_png(2), 31)
    for n, item in zip((3, 20, 21, 22, 30, 31), (Gap(), Corrupt(), Corrupt("torn"), Gap(), *broken), strict=True):
        items[n] = item
    return ScriptedSource(items, partitions=2, extent=4, **options)


@pytest.mark.parametrize("transform", [TRAIN, SHIFTED, v2.Compose([*CUT, *FLOATS]), v2.Compose(CUT)])
@pytest.mark.parametrize(
    "cache",
    [CACHE, Cache(device=15 * 768), Cache("1MB", device="1MB"), Cache(9_000, pixels=True, device=9_000)],
    ids=["all", "few", "and records", "few pixels"],
)
def test_a_batch_does_not_see_it(transform: Any, cache: Cache) -> None:
    """Ids, labels, holes, replacements and pixels are those of a run without one, however little it may hold."""
    assert epochs(feed(scripted(), cache, transform=transform)) == epochs(feed(scripted(), None, transform=transform))


def bits(made: Feed) -> list[Any]:
    """What the training loop sees of two epochs, in any dtype."""
    with made:
        return [
            (batch.ids.tolist(), batch.ok.tolist(), batch.images.contiguous().view(torch.uint8).numpy().tobytes())
            for batch in (batch for _ in range(2) for batch in made)
        ]


@st.composite
def transforms(draw: Any) -> v2.Compose:
    """Recipes that it takes: nothing is random but a crop, flips, and a rectangle that is erased last."""
    flips = [v2.RandomHorizontalFlip(0.5), v2.RandomVerticalFlip(0.3)]
    fit = draw(st.sampled_from([[v2.Resize((14, 18))], [v2.Resize(20), v2.CenterCrop(16)], [v2.CenterCrop((40, 30))]]))
    odd = draw(st.lists(st.sampled_from([v2.Grayscale(3), v2.Pad((1, 2)), v2.RandomEqualize(1.0)]), max_size=2))
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    to_float = [v2.ToDtype(dtype, scale=draw(st.booleans()))]
    end = [*to_float, *([v2.Normalize((0.4,), (0.3,))] if draw(st.booleans()) else [])]
    erasing = [v2.RandomErasing(0.6, value=draw(st.sampled_from([0, 7])))] if draw(st.booleans()) else []
    some = draw(st.lists(st.sampled_from(flips), max_size=2, unique=True))
    crop = v2.RandomCrop(13, padding=draw(st.sampled_from([None, 2, (0, 1, 5, 0)])), fill=9, pad_if_needed=True)
    fit, odd = ([*fit[1:], v2.Resize((14, 18)), *odd, crop], []) if draw(st.booleans()) else (fit, odd)
    return v2.Compose([*fit, *odd, *some, *(end if draw(st.booleans()) else []), *erasing])


@given(transforms(), st.sampled_from([None, torch.channels_last]), st.integers(1, 40_000), st.booleans())
def test_no_recipe_sees_it(transform: v2.Compose, layout: Any, limit: int, exif: bool) -> None:
    """Whatever is resized, made gray, cropped, flipped, made floats and erased, in any layout and with any limit."""
    options: dict[str, Any] = {"transform": transform, "decode": Decode(exif=exif, memory_format=layout)}
    kept = bits(feed(scripted(), Cache(device=limit), **options))
    assert kept == bits(feed(scripted(), None, **options))


def test_later_epochs_decode_what_is_bad_and_nothing_else() -> None:
    """Each image is made once; the two that no decoder takes are tried, and reported, in each epoch."""
    with feed(scripted(), CACHE, transform=TRAIN) as made:
        counts = []
        for _ in range(3):
            for _ in made:
                pass
            found, stats = made.stats().cache, made.stats()
            assert found is not None
            counts.append((found.device_records, found.device_misses, stats.bad))
    bad = 4
    assert [(records, n) for records, _, n in counts] == [(42, bad), (42, 2 * bad), (42, 3 * bad)]
    assert {b - a for (_, a, _), (_, b, _) in itertools.pairwise(counts)} <= {2, 3, 4}  # one may replace another, too
    assert found is not None
    assert found.device_rate > 0.6
    assert 42 * 768 <= found.device_held <= found.device_limit == 10**6
    assert str(found).startswith("on the device ")


def test_no_more_is_kept_than_allowed() -> None:
    """The limit is one of bytes, and what came first stays."""
    with feed(scripted(), Cache(device=15 * 768 + 1), transform=TRAIN) as made:
        for _ in range(2):
            for _ in made:
                pass
        found = made.stats().cache
    assert found is not None
    assert (found.device_records, found.device_held) == (15, 15 * 768)


@pytest.mark.parametrize("transform", [None, v2.Compose(FLOATS)])
def test_images_of_one_size_need_no_resize(transform: Any) -> None:
    """They are kept as they are decoded; and a recipe that has nothing but a decoder is one."""
    source, every = ScriptedSource(labelled(16)), []
    for cache in (CACHE, None):
        with feed(source, cache, transform=transform) as made:
            every.append([seen(batch) for _ in range(2) for batch in made])
            stats = made.stats().cache
            assert stats is None or stats.device_rate == 0.5
    assert every[0] == every[1]


def test_images_of_any_size_one_by_one() -> None:
    """Those of the first one's size are kept, and no other."""
    every = []
    for cache in (CACHE, None):
        source = ScriptedSource(labelled(20, sizes=True))
        with Feed(source, 1, transform=None, shuffle=True, tuning=replace(QUICK, cache=cache)) as made:
            every.append([seen(batch) for _ in range(3) for batch in made])
            stats = made.stats().cache
            assert stats is None or stats.device_records == 1
    assert every[0] == every[1]


@pytest.mark.parametrize("world_sizes", [(1, 2), (2, 4)])
def test_it_resumes_anywhere(world_sizes: tuple[int, ...]) -> None:
    """At any world size, with images that the decoder refuses."""
    assert_resumes_anywhere(
        scripted(), transform=TRAIN, lanes=4, world_sizes=world_sizes, positions=3, absent=2, cache=CACHE
    )


def test_a_state_is_the_same_and_goes_both_ways() -> None:
    """It does not say whether there is a cache; taken with a full one it goes on without, and the other way round."""
    halves = []
    for cache, other in itertools.permutations([None, CACHE]):
        with feed(scripted(), cache, transform=TRAIN) as one, feed(scripted(), other, transform=TRAIN) as two:
            for made in (one, two):
                for _ in made:
                    pass
            given = list(map(seen, itertools.islice(one, 3)))
            state = json.loads(json.dumps(one.state_dict()))
            two.load_state_dict(state)
            halves.append((state, given + list(map(seen, two))))
    assert halves[0] == halves[1]


def test_a_loader_begins_the_next_epoch_with_it() -> None:
    """Epochs that are prefetched behind one another, labels mixed, an engine of several threads: as without."""

    def run(cache: Cache | None) -> list[torch.Tensor]:
        tuning = Tuning(threads=3, cache=cache)
        mixing = Mixing(0.4, 1.0, classes=64)
        with DataLoader(
            ScriptedSource(labelled(64)),
            8,
            shuffle=True,
            transform=TRAIN,
            device="cpu",
            collate_fn=mixing,
            tuning=tuning,
        ) as loader:
            return [each.clone() for _ in range(3) for item in loader for each in item]

    assert all(map(torch.equal, run(CACHE), run(None)))


def test_gray_of_one_channel() -> None:
    """It is kept with three that are equal, and normalized as one."""
    transform = v2.Compose([*CUT, v2.Grayscale(1), v2.RandomHorizontalFlip(), FLOATS[0], v2.Normalize([0.4], [0.2])])
    found = []
    for cache in (CACHE, None):
        tuning = Tuning(threads=1, cache=cache)
        with DataLoader(ScriptedSource(labelled(16)), 8, transform=transform, device="cpu", tuning=tuning) as loader:
            found.append([images.clone() for _ in range(2) for images, _ in loader])
    assert found[0][0].shape == (8, 1, 16, 16)
    assert all(map(torch.equal, *found))


def test_columns_come_out_of_it(tmp_path: Path) -> None:
    """Images with what follows them, beside others: each image column has rows of its own."""
    samples = []
    for n in range(24):
        classes = Pillow.fromarray(pixels(n, 20, 24)[..., 0] // 90)
        samples.append({"jpg": jpeg(n, 20, 24), "png": encoded(np.asarray(classes)), "txt": b"%d" % n})
    write_shard(tmp_path / "a.tar", samples)
    still, moved = (
        v2.Compose([v2.Resize((12, 12)), *FLOATS]),
        v2.Compose([v2.Resize((8, 8)), v2.RandomHorizontalFlip()]),
    )
    columns = {"image": Image("jpg", moved), "mask": Mask("png"), "again": Image("jpg", still), "text": Text("txt")}

    def run(cache: Cache | None) -> list[Any]:
        out: list[Any] = []
        with feed(ShardSet(tmp_path / "a.tar"), cache, transform=None, columns=columns) as made:
            for batch in (batch for _ in range(3) for batch in made):
                out += [seen(batch)[3], batch.fields["text"], np.asarray(batch.fields["mask"]).tobytes()]
                out += [np.asarray(other.images).tobytes() for other in batch.more]
            stats = made.stats().cache
        assert stats is None or (stats.device_records, stats.device_misses, stats.device_hits) == (48, 48, 96)
        return out

    assert run(Cache(device="1MB")) == run(None)


def test_a_record_that_another_column_refuses_is_bad_in_every_epoch(tmp_path: Path) -> None:
    """Its image is on the device by then; batches are mended with others, and the letter has the record's bytes."""

    def fourth(data: memoryview) -> int:
        if bytes(data) == b"4":
            msg = "not this one"
            raise ValueError(msg)
        return 0

    def run(cache: Cache | None, letters: DeadLetterFolder) -> Any:
        columns = {"image": Image("jpg", TRAIN), "late": Bytes("cls", decode=fourth)}
        bad = BadRecords(limit=None, dead_letter=letters)
        return epochs(feed(shards(tmp_path), cache, transform=None, columns=columns, bad=bad))

    letters = DeadLetterFolder(tmp_path / "letters")
    assert run(CACHE, letters) == run(None, DeadLetterFolder(tmp_path / "others"))
    assert {letter.payload for letter in letters.read()} == {jpeg(4)}


@pytest.mark.parametrize(
    ("transform", "options", "found"),
    [
        (v2.Compose([v2.RandomResizedCrop(16), *FLOATS]), {}, "found RandomResizedCrop"),
        (
            v2.Compose([v2.Resize((20, 20)), v2.RandomHorizontalFlip(), v2.CenterCrop(16)]),
            {},
            "found RandomHorizontalFlip",
        ),
        (v2.Compose([v2.Resize(20), v2.RandomCrop(16), *FLOATS]), {}, "found RandomCrop"),
        (v2.Compose([v2.Resize(20), v2.RandomCrop(16, 2, padding_mode="edge"), *FLOATS]), {}, "found RandomCrop"),
        (v2.Compose([v2.RandomCrop(16), *FLOATS]), {}, "found RandomCrop"),
        (v2.Compose([v2.Resize((20, 20)), v2.ColorJitter(0.4), *FLOATS]), {}, "found ColorJitter"),
        (v2.Compose([v2.CenterCrop(16), v2.RandomApply([v2.GaussianBlur(3)], 0.5)]), {}, "found RandomApply"),
        ([TRAIN, TRAIN], {}, "found 2 views"),
        (v2.Compose(CUT), {"decode": Decode(engine="dali")}, "found the dali engine"),
        (v2.Compose(CUT), {"decode": Decode(hardware=0.5)}, r"with Decode\(hardware=0.5\)"),
        (None, {"columns": {"text": Text("txt")}}, "no column that is an Image"),
        (lambda images, draws: images, {"decode": Decode(engine="dali")}, "found a DALI graph"),
    ],
)
def test_what_is_another_image_in_each_epoch_is_refused(
    tmp_path: Path, transform: Any, options: dict[str, Any], found: str
) -> None:
    """Before anything is read, by the name of what is random, and with the cure."""
    with pytest.raises(ConfigError, match=rf"Cache\(device=.*{found}"):
        feed(shards(tmp_path), CACHE, transform=transform, **options)


def test_a_function_of_the_users_own_is_refused() -> None:
    """Nobody knows whether it draws random numbers."""
    transform = v2.Compose([v2.CenterCrop(16), lambda image: image.rotate(180), *FLOATS])
    with pytest.raises(ConfigError, match="a function of your own"):
        DataLoader(scripted(), 8, transform=transform, device="cpu", tuning=Tuning(cache=CACHE))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cache(device="much"),
        lambda: Cache(device=-1),
        lambda: Cache(device=0),
        lambda: Cache(device="1GB", pixels=True),
    ],
)
def test_values_that_are_none_are_refused(make: Any) -> None:
    """A size is a size; pixels are kept in memory or on a disk."""
    with pytest.raises(ConfigError, match=r"Cache\("):
        make()
