"""A cache of records in memory or on a GPU: the same batches with and without, and what it keeps."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.cached_feeds import CROP, epochs, feed, scripted, without
from kit.images import jpeg, seen
from kit.member_shards import shards
from kit.refused import refusals
from torchvision.transforms import v2

from dali_feed import BadRecords, Cache, Decode, Shuffle, Tuning
from dali_feed.columns import Bytes, Image, JsonValue, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import DeadLetterFolder
from dali_feed.testing import ScriptedSource

CACHES = {
    "bytes": Cache("1MB"),
    "few bytes": Cache(20_000),
    "pixels": Cache("1MB", pixels=True),
    "few pixels": Cache(50_000, pixels=True),
}


@pytest.mark.parametrize("name", CACHES)
def test_a_batch_does_not_see_it(name: str) -> None:
    """Ids, labels, holes, replacements and pixels are those of a run without one, however little it may hold."""
    assert epochs(feed(scripted(), CACHES[name])) == without()


def test_the_dali_engine_gets_the_same_bytes() -> None:
    """Kept payloads are payloads to any engine."""
    assert epochs(feed(scripted(), CACHES["few bytes"], decode=Decode(engine="dali"))) == epochs(
        feed(scripted(), None, decode=Decode(engine="dali"))
    )


@pytest.mark.parametrize("name", ["bytes", "pixels"])
def test_later_epochs_read_what_is_bad_and_nothing_else(name: str) -> None:
    """What is no fault is read once; and garbage, which has no pixels, again where pixels are kept."""
    source = scripted()
    made = feed(source, CACHES[name])
    with made:
        for _ in made:
            pass
        first = len(source.reads)
        for _ in made:
            pass
        again = source.reads[first:]
        found = made.stats().cache
    bad = {(0, 21)} if name == "bytes" else {(0, 20), (0, 21)}
    assert {(p, k) for p, start, stop in again for k in range(start, stop)} == bad
    assert found is not None
    assert (found.records, found.misses - 48) == (48 - len(bad), len(bad))
    assert found.hits == 48 - len(bad)
    assert "hits" in str(found)


def test_no_more_is_kept_than_allowed() -> None:
    """The limit is one of bytes, and what came first stays."""
    with feed(scripted(), CACHES["few pixels"]) as made:
        for _ in made:
            found = made.stats().cache
            assert found is not None
            assert found.held <= found.limit == 50_000
        assert found is not None
        assert found.held > 25_000


def test_runs_are_read_whole_where_single_records_are_dear() -> None:
    """Of a run of which one record is missing all are read, as one read."""
    source = scripted(random_access=False)
    made = feed(source, CACHES["few bytes"], shuffle=Shuffle(extent=4, window=2))
    assert epochs(made) == without(runs=True)
    assert {stop - start for _, start, stop in source.reads} == {4}


@pytest.mark.parametrize("exif", [False, True])
def test_turned_images_are_kept_turned(exif: bool) -> None:
    """An image with an orientation is kept as the recipe takes it."""

    def items() -> ScriptedSource:
        return ScriptedSource([_turned(way) for way in range(1, 9)] * 2)

    assert epochs(feed(items(), CACHES["pixels"], decode=Decode(exif=exif))) == epochs(
        feed(items(), None, decode=Decode(exif=exif))
    )


def _turned(way: int) -> bytes:
    """A JPEG with that orientation."""
    tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([way]) + b"\0\0\0\0\0\0"
    whole = jpeg(way, 24, 40)
    return whole[:2] + b"\xff\xe1" + (8 + len(tiff)).to_bytes(2, "big") + b"Exif\0\0" + tiff + whole[2:]


def test_a_state_is_the_same_and_goes_both_ways() -> None:
    """It does not say whether there is a cache; taken with one it goes on without, and the other way round."""
    halves = []
    for cache, other in itertools.permutations([None, CACHES["pixels"]]):
        with feed(scripted(), cache) as one, feed(scripted(), other) as two:
            given = list(map(seen, itertools.islice(one, 4)))
            state = json.loads(json.dumps(one.state_dict()))
            two.load_state_dict(state)
            halves.append((state, given + list(map(seen, two))))
    assert halves[0] == halves[1]
    assert halves[0][1] == without()[:6]


@pytest.mark.parametrize("pixels", [False, True])
def test_columns_come_out_of_it(tmp_path: Path, pixels: bool) -> None:
    """Members of a record are kept as they were read, whatever the training loop does with what was made of them."""
    columns = {"image": Image("jpg", CROP), "text": Text("txt"), "data": JsonValue("json"), "raw": Bytes("f32")}
    columns["other"] = Image("jpg", CROP)

    def run(cache: Cache | None) -> list[Any]:
        out: list[Any] = []
        with feed(shards(tmp_path), cache, transform=None, columns=columns) as made:
            for _ in range(2):
                for batch in made:
                    out.append(json.dumps([seen(batch)[3].hex(), batch.fields["text"], batch.fields["data"]]))
                    out.append(list(map(bytes, batch.fields["raw"])))
                    out += [np.asarray(other.images).tobytes() for other in batch.more]
                    for each in batch.fields["data"]:
                        each["list"].append("spoilt")
        return out

    assert run(Cache("10MB", pixels=pixels)) == run(None)


def test_a_dead_letter_has_the_bytes_that_were_read(tmp_path: Path) -> None:
    """Of a record whose pixels are kept and whose other column turns out to be bad, the letter has the file."""

    def fourth(data: memoryview) -> int:
        if bytes(data) == b"4":
            msg = "not this one"
            raise ValueError(msg)
        return 0

    letters = DeadLetterFolder(tmp_path / "letters")
    columns = {"image": Image("jpg", CROP), "late": Bytes("cls", decode=fourth)}
    bad = BadRecords(limit=None, dead_letter=letters)
    with feed(shards(tmp_path), Cache("10MB", pixels=True), transform=None, columns=columns, bad=bad) as made:
        for _ in range(2):
            for _ in made:
                pass
    (letter,) = letters.read()
    assert letter.payload == jpeg(4)


FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
CUT = (v2.Resize(20), v2.CenterCrop(16))
TRAIN = v2.Compose([*CUT, v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5)])
CACHE = Cache(device="1MB")
HOST = {"decode": Decode(engine="host")}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"decode": Decode(engine="dali")}, "found the dali engine"),
        ({"columns": {"text": Text("txt")}, "transform": None}, "no column is an Image"),
    ],
)
def test_pixels_that_would_be_others_are_refused(tmp_path: Path, options: dict[str, Any], found: str) -> None:
    """Where the engine's decoder is not the cache's, or there is none, an error says so before anything is read."""
    with pytest.raises(ConfigError, match=found):
        feed(shards(tmp_path), Cache("1MB", pixels=True), **options)


@pytest.mark.parametrize(
    ("transform", "options", "found"),
    [
        (v2.Compose([v2.RandomResizedCrop(16), *FLOATS]), {}, "found RandomResizedCrop"),
        (v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(16)]), {}, "found RandomResizedCrop"),
        (
            v2.Compose([v2.Resize((20, 20)), v2.RandomHorizontalFlip(), v2.CenterCrop(16)]),
            HOST,
            "found RandomHorizontalFlip",
        ),
        (v2.Compose([v2.Resize(20), v2.RandomCrop(16), *FLOATS]), HOST, "found RandomCrop"),
        (v2.Compose([v2.Resize((20, 20)), v2.RandomCrop(16, padding=4), *FLOATS]), {}, "found RandomCrop"),
        (v2.Compose([v2.Resize(20), v2.RandomCrop(16, 2, padding_mode="edge"), *FLOATS]), HOST, "found RandomCrop"),
        (v2.Compose([v2.RandomCrop(16), *FLOATS]), HOST, "found RandomCrop"),
        (v2.Compose([v2.Resize((20, 24)), v2.RandomRotation(30), *FLOATS]), {}, "found RandomRotation"),
        (v2.Compose([v2.Resize((20, 20)), v2.ColorJitter(0.4), *FLOATS]), HOST, "found ColorJitter"),
        (v2.Compose([v2.CenterCrop(16), v2.RandomApply([v2.GaussianBlur(3)], 0.5)]), HOST, "found RandomApply"),
        ([TRAIN, TRAIN], {}, "found 2 views"),
        (v2.Compose(CUT), {"decode": Decode(hardware=0.5)}, r"with Decode\(hardware=0.5\)"),
        (None, {"columns": {"text": Text("txt")}}, "no column that is an Image"),
        (lambda images, draws: images, {"decode": Decode(engine="dali")}, "found a DALI graph"),
        (TRAIN, {"device": None}, r"found a loader on the CPU.*Cache\(memory, pixels=True\)"),
    ],
)
def test_what_is_another_image_in_each_epoch_is_refused(
    tmp_path: Path, transform: Any, options: dict[str, Any], found: str
) -> None:
    """By the name of what is random, or whatever else it cannot keep, and with the cure."""
    with pytest.raises(ConfigError, match=rf"Cache\(device=.*{found}"):
        feed(shards(tmp_path), CACHE, transform=transform, **{"device": 0, **options})


@refusals(
    ConfigError,
    (lambda: Cache("much"), "must be"),
    (lambda: Cache(0), "must be"),
    (lambda: Cache("1GB", pixels="yes"), "must be"),  # type: ignore[arg-type]
    (lambda: Tuning(cache="8GB"), "must be"),  # type: ignore[arg-type]
    (lambda: Cache(device="much"), r"Cache\("),
    (lambda: Cache(device=-1), r"Cache\("),
    (lambda: Cache(device=0), r"Cache\("),
    (lambda: Cache(device="1GB", pixels=True), r"Cache\("),
    (lambda: Cache(disk="x"), "Cache"),
    (lambda: Cache("1GB", disk_limit="1GB"), "Cache"),
    (lambda: Cache(disk="", disk_limit="1GB"), "Cache"),
    (lambda: Cache(disk="x", disk_limit=0), "Cache"),
    (lambda: Cache(disk="x", disk_limit="much"), "Cache"),
    (Cache, "Cache"),
)
def test_values_that_are_none_are_refused(call: Any, error: Any, said: str) -> None:
    """A size is a size; a folder has a name and a limit, a cache a place; pixels are kept in memory or on a disk."""
    with pytest.raises(error, match=said):
        call()
