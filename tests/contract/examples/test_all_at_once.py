"""Striped and remote sets, bad records, caches on a disk, damage in them, and resumes at other world sizes, at once."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.images import QUICK, jpeg
from kit.inside import Feed, write_shard
from kit.web import Web
from torchvision.transforms import v2

from dali_feed import BadRecords, Cache
from dali_feed.columns import Image, Number, Text
from dali_feed.external_sources import Concat, Mix, ShardSet
from dali_feed.packing import Layout, pack, verify

CROP = v2.Compose([v2.RandomResizedCrop(8, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])
LANES, BATCH = 4, 8
COLUMNS = {"image": Image("jpg;photo", CROP), "label": Number("cls;y"), "text": Text("txt")}


def sets(folder: Path) -> tuple[Path, dict[str, bytes]]:
    """A set striped over three targets, two of whose records are damaged, and the files of a set of other names."""
    samples = [{"jpg": jpeg(n % 16, 16 + n % 3 * 4), "cls": b"%d" % n, "txt": b"text %d" % n} for n in range(40)]
    write_shard(folder / "mine.tar", samples[:24])
    theirs = [{"photo": each["jpg"], "y": each["cls"], "txt": each["txt"]} for each in samples[24:]]
    write_shard(folder / "theirs.tar", theirs)
    for target in "abc":
        (folder / "striped" / target).mkdir(parents=True)
    striped = folder / "striped" / "x.dfset"
    pack(ShardSet(folder / "mine.tar"), striped, shard_bytes=9000, layout=Layout(("a", "b", "c"), 2, 4096))
    pack(ShardSet(folder / "theirs.tar", label=None), folder / "remote" / "y.dfset", shard_bytes=9000)
    for path in (folder / "striped").glob("*/x-00000[15].tar.0of2"):
        held = bytearray(path.read_bytes())
        held[held.index(b"\xff\xd8") + 40] ^= 1  # of the first record's image
        path.write_bytes(held)
    assert [damage.records for damage in verify(striped).damages] == [(0,), (0,)]
    return striped, {path.name: path.read_bytes() for path in (folder / "remote").iterdir()}


def source(striped: Path, url: str, mixed: bool) -> Any:
    """Both as one."""
    parts: list[Any] = [ShardSet(striped), ShardSet(f"{url}/y.dfset", label=None)]
    return Mix(parts, [2, 1], stop="all") if mixed else Concat(parts)


def ranks(
    made: Any, size: int, cache: Cache | None, state: Any = None, most: int | None = None
) -> tuple[list[Any], Any]:
    """Global batches over an epoch and the begin of the next as all ranks see them: rows by lane; and the state."""
    found, states = [], []
    for rank in range(size):
        tuning = replace(QUICK, cache=cache)
        how: dict[str, Any] = {"shuffle": True, "seed": 5, "lanes": LANES, "columns": COLUMNS, "tuning": tuning}
        with Feed(made(), BATCH // size, bad=BadRecords(limit=None), rank=rank, world_size=size, **how) as feed:
            if state is not None:
                feed.load_state_dict(state)
            epochs = [list(map(rows, islice(feed, most)))]
            states.append(json.loads(json.dumps(feed.state_dict())))
            if most is None:
                epochs.append(list(map(rows, islice(feed, 2))))
            found.append([batch for epoch in epochs for batch in epoch])
    assert all(each == states[0] for each in states)
    return [sorted(row for batch in batches for row in batch) for batches in zip(*found, strict=True)], states[0]


def rows(batch: Any) -> list[Any]:
    """A batch, row by row, with a hash of the pixels."""
    pixels = np.asarray(batch.images).reshape(len(batch.ids), -1)
    columns = batch.fields["label"], batch.fields["text"], batch.ok
    return [
        (int(sample), int(label), text, bool(ok), hash(image.tobytes()))
        for sample, label, text, ok, image in zip(batch.ids, *columns, pixels, strict=True)
    ]


def damaged(folder: Path, rng: np.random.Generator) -> int:
    """Flip a byte in every file of caches, and cut some; how many there were."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 40 and "lock" not in path.name
    ]
    for path in files:
        held = bytearray(path.read_bytes())
        for at in rng.integers(len(held), size=1 + len(held) // 20_000).tolist():
            held[at] ^= 64
        path.write_bytes(held[: int(rng.integers(len(held)))] if rng.random() < 0.2 else held)
    return len(files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixed", "pixels", "sizes"),
    [
        pytest.param(True, False, (4, 1), id="Mix, records"),
        pytest.param(True, True, (2,), id="Mix, pixels"),
        pytest.param(False, False, (2,), id="Concat, records"),
        pytest.param(False, True, (4, 1), id="Concat, pixels"),
        pytest.param(True, True, (1, 2, 4), id="Mix, pixels, all", marks=pytest.mark.long),
        pytest.param(False, False, (4, 2, 1), id="Concat, records, all", marks=pytest.mark.long),
    ],
)
def test_batches_are_those_of_a_plain_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixed: bool, pixels: bool, sizes: tuple[int, ...]
) -> None:
    """Whatever is kept, damaged, asked again of the server, bad, stopped, and resumed on one, two or four ranks.

    Each pair of what is mixed, what is kept and how many ranks go on is tried.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(0)
    striped, files = sets(tmp_path)
    with Web(files) as web:

        def make() -> Any:
            return source(striped, web.url, mixed)

        plain, _ = ranks(make, 1, None)
        labels = {label for batch in plain for _, label, _, _, _ in batch}
        assert labels < set(range(40)), "a damaged record is in no batch"

        cache = Cache(5_000, pixels=pixels, disk=tmp_path / "cache", disk_limit="10MB")
        web.faults["y-000000.tar"].extend(["503", "reset", "short"])
        first, state = ranks(make, 2, cache, most=2)
        assert first == plain[:2]
        for size in sizes:
            assert damaged(tmp_path / "cache", rng)
            web.faults["y-000001.tar"].clear()  # those that no read met would add up to more than five tries
            web.faults["y-000001.tar"].extend(["short", "429"])
            rest, _ = ranks(make, size, cache, state)
            assert rest == plain[2:]
