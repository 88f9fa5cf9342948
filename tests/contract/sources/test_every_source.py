"""What every bounded source of files and of memory promises, whatever its records lie in."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.blocks import Reads, rows
from kit.images import jpeg
from kit.inside import Extents, write_shard
from kit.record_files import make

from dali_feed.errors import ClosedError, ConfigError, DataLostError, SourceChangedError
from dali_feed.external_sources import (
    Arrays,
    FileList,
    ShardSet,
    Table,
)

pytestmark = pytest.mark.usefixtures("cache_home")


IMAGES = [jpeg(n, 16 + n % 3 * 4) for n in range(6)]
ROWS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


class Kind(NamedTuple):
    """How a source of six records is made, and two members of theirs: a large one and a label."""

    make: Callable[[Path], Any]
    names: tuple[str, str]
    large: list[Any] = IMAGES  # what the first of them holds


def _shards(folder: Path) -> ShardSet:
    for part in range(2):
        write_shard(folder / f"{part}.tar", [(IMAGES[n], n) for n in range(3 * part, 3 * part + 3)])
    return ShardSet(folder / "{0..1}.tar")


def _files(folder: Path) -> FileList:
    for n, image in enumerate(IMAGES):
        (folder / f"{n}.jpg").write_bytes(image)
    return FileList(sorted(folder.glob("*.jpg")), range(6))


def _arrays(folder: Path) -> Arrays:
    for part in range(2):
        np.save(folder / f"{part}.npy", ROWS[3 * part : 3 * part + 3])
    return Arrays(folder / "{0..1}.npy", label=np.arange(6))


def _table() -> pa.Table:
    return pa.table({"image": IMAGES, "label": range(6)})


def _parquet(folder: Path) -> Table:
    pq.write_table(_table(), folder / "a.parquet", row_group_size=4)
    return Table(folder / "a.parquet")


def _arrow(folder: Path) -> Table:
    with pa.ipc.new_file(folder / "a.arrow", _table().schema) as writer:
        writer.write_table(_table(), max_chunksize=4)
    return Table(folder / "a.arrow")


FEATURES = ("image/encoded", "image/class/label")
KINDS = {
    "shards": Kind(_shards, ("jpg", "cls")),
    "files": Kind(_files, ("bytes", "label")),
    "tfrecord": Kind(lambda folder: make("tfrecord", folder, IMAGES, 3), FEATURES),
    "mds": Kind(lambda folder: make("mds", folder, IMAGES, 3), ("image", "label")),
    "recordio": Kind(lambda folder: make("recordio", folder, IMAGES, 3), ("image", "label")),
    "arrays": Kind(_arrays, ("row", "label"), ROWS.tolist()),
    "memory": Kind(lambda _: Arrays([ROWS[:2], ROWS[2:]], label=np.arange(6)), ("row", "label"), ROWS.tolist()),
    "table": Kind(lambda _: Table(_table()), ("image", "label")),
    "parquet": Kind(_parquet, ("image", "label")),
    "arrow": Kind(_arrow, ("image", "label")),
}
each = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
indexed = pytest.mark.parametrize(
    "kind", [kind for name, kind in KINDS.items() if name not in ("files", "memory", "table")],
    ids=[name for name in KINDS if name not in ("files", "memory", "table")],
)  # fmt: skip


@each
def test_members_come_by_name(kind: Kind, tmp_path: Path) -> None:
    """In any order, alone and together, each as often as it is asked for; of several the first that records have."""
    source, (large, label) = kind.make(tmp_path), kind.names
    assert [row[large] for row in rows(source, large)] == kind.large
    assert [int(row[label]) for row in rows(source, label)] == list(range(6))
    both = rows(source, label, f"none;{large}", large)
    assert [list(row) for row in both] == [[label, f"none;{large}", large]] * 6
    assert [row[f"none;{large}"] for row in both] == [row[large] for row in both] == kind.large
    with pytest.raises(ConfigError, match="member 'lable': .*found "):
        Reads(source, "lable")
    with pytest.raises(ConfigError, match="'lable'"):
        source.reader(["lable"])


@each
def test_positions_are_read_in_any_order(kind: Kind, tmp_path: Path) -> None:
    """And again and again, with what was read before still there."""
    source, (large, _) = kind.make(tmp_path), kind.names
    snapshot, reader = source.snapshot(), Reads(source, large)
    ends = np.cumsum(snapshot.stops)
    order = np.array([5, 0, 1, 4, 4, 2])
    partition = np.searchsorted(ends, order, side="right")
    position = order - (ends - snapshot.stops)[partition]
    blocks = [reader.read(Extents(partition, position, position + 1)) for _ in range(2)]
    for block in blocks:
        values = [value.tolist() if isinstance(value, np.ndarray) else bytes(value) for value in block.values[large]]
        assert values == [kind.large[n] for n in order]
    for block in blocks:
        block.lease.release()
    assert reader.pool.leased == 0


@each
def test_readers_end(kind: Kind, tmp_path: Path) -> None:
    """A closed and a stopped reader say so, and one that is asked for what is not there; no memory stays."""
    source, stop = kind.make(tmp_path), threading.Event()
    reader, other = Reads(source, *kind.names, stop=stop), Reads(source, *kind.names)
    for run in ((0, 0, 99), (99, 0, 1), (-1, 0, 1), (0, -1, 1)):
        with pytest.raises(ConfigError, match="inside the snapshot"):
            reader.read(Extents.one(*run))
    reader.first(1).lease.release()
    stop.set()
    with pytest.raises(ClosedError, match="stopped"):
        reader.first(1)
    for _ in range(2):
        other.close()
    with pytest.raises(ClosedError, match="closed"):
        other.first(1)
    assert reader.pool.leased == other.pool.leased == 0


@each
def test_a_source_travels(kind: Kind, tmp_path: Path) -> None:
    """Pickled, also after its use, it gives the same records by the same fingerprint; it takes no pin."""
    source = kind.make(tmp_path)
    wanted, snapshot = rows(source, *kind.names), source.snapshot()
    other = pickle.loads(pickle.dumps(source))
    assert rows(other, *kind.names) == wanted
    assert other.snapshot().fingerprint == snapshot.fingerprint
    assert [each.name for each in other.members()] == [each.name for each in source.members()]
    with pytest.raises(ConfigError, match="no pin"):
        source.snapshot({"a": 1})


@each
def test_a_snapshot_does_not_know_what_is_asked_for(kind: Kind, tmp_path: Path) -> None:
    """So an order is the same whatever columns a batch has."""
    source = kind.make(tmp_path)
    before = source.snapshot()
    for name in kind.names:
        rows(source, name)
        after = source.snapshot()
        assert (after.extent, after.record_bytes, after.fingerprint) == (
            before.extent,
            before.record_bytes,
            before.fingerprint,
        )


@indexed
def test_a_file_that_changed_or_went_after_it_was_looked_at(kind: Kind, tmp_path: Path) -> None:
    """Is an error that names it, never other bytes; the cure names the source, and a path stays as it is."""
    folder = tmp_path / "a ShardSet of mine"
    folder.mkdir()
    source = kind.make(folder)
    snapshot, last = source.snapshot(), len(source.snapshot().names) - 1
    readers = [Reads(source, kind.names[0]) for _ in range(2)]
    readers[0].first(1).lease.release()
    if len(snapshot.names) == len(source.paths):  # else what was read of a group may be given again
        readers[1].first(1, last).lease.release()
    path = Path(source.paths[-1])
    with path.open("ab") as file:
        file.write(b"more")
    cure = f"a ShardSet of mine.*{path.name}: .* make a new {type(source).__name__} to read"
    for one in readers:
        with pytest.raises(SourceChangedError, match=cure):
            one.read(Extents.one(last, int(snapshot.stops[last]) - 1, int(snapshot.stops[last])))
    with pytest.raises(SourceChangedError, match=cure):
        source.snapshot()
    path.unlink()
    with pytest.raises(DataLostError, match="a ShardSet of mine.*gone"):
        source.snapshot()
    assert [one.pool.leased for one in readers] == [0, 0]
