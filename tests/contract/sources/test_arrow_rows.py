"""Table: images in a pyarrow table, read where they lie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.blocks import Reads, columns_of, reasons
from kit.images import QUICK, jpeg, labelled, png
from kit.inside import Block, Extents
from kit.resumes import assert_resumes_in_turn

from dali_feed import BadRecords, DataLoader, Decode, Shuffle
from dali_feed.errors import SourceNotFoundError
from dali_feed.external_sources import Table

pa = pytest.importorskip("pyarrow")

IMAGES = [png(n) if n % 3 == 2 else jpeg(n) for n in range(20)]


def table(images: Any = IMAGES, **columns: Any) -> Any:
    """A table of images, numbers and texts, unless `columns` says otherwise."""
    count = len(images)
    beside = columns or {"label": list(range(count)), "text": [f"picture {n}" for n in range(count)]}
    return pa.table({"image": images, **beside})


def read(source: Table, start: int = 0, stop: int | None = None) -> Block:
    """The block of positions start..stop-1."""
    return Reads(source).read(Extents.one(0, start, len(source) if stop is None else stop))


def payloads(source: Table) -> list[bytes]:
    """All of them, as bytes."""
    return [bytes(view or b"") for view in read(source).values["image"]]


def structs(values: list[Any], *parts: str) -> Any:
    """Images as Hugging Face's datasets keep them."""
    kinds = {"bytes": pa.binary(), "path": pa.string()}
    return pa.array(values, pa.struct([(name, kinds[name]) for name in parts or kinds]))


def test_rows_give_bytes_numbers_and_texts() -> None:
    """Each row has its own, in any order and as often as it is asked for."""
    source = Table(table(score=np.linspace(0, 1, 20, dtype=np.float32), flag=[n % 2 == 0 for n in range(20)]))
    assert tuple(source.preset) == ("image", "score", "flag")
    block = read(source, 3, 9)
    assert list(map(bytes, block.values["image"])) == IMAGES[3:9]
    assert block.values["score"].dtype == np.float32
    assert block.values["flag"].tolist() == [False, True] * 3
    some = Table(table(), rows=[7, 0, 7])
    assert payloads(some) == [IMAGES[7], IMAGES[0], IMAGES[7]]
    assert list(map(bytes, read(some).values["text"])) == [b"picture 7", b"picture 0", b"picture 7"]
    assert read(some).values["label"].tolist() == [7, 0, 7]
    assert [some.where(0, k) for k in range(3)] == ["table#7", "table#0", "table#7"]
    assert payloads(some.chosen(np.array([-2, 0]))) == [IMAGES[0], IMAGES[7]]


@pytest.mark.parametrize("kind", ["binary", "large_binary", "struct", "bytes alone"])
def test_images_are_not_copied(kind: str) -> None:
    """Whatever the column's type, a payload lies in the table's buffer, and nothing in a slab."""
    column = {
        "binary": lambda: pa.array(IMAGES, pa.binary()),
        "large_binary": lambda: pa.array(IMAGES, pa.large_binary()),
        "struct": lambda: structs([{"bytes": image, "path": None} for image in IMAGES]),
        "bytes alone": lambda: structs([{"bytes": image} for image in IMAGES], "bytes"),
    }[kind]()
    whole = (column.field("bytes") if pa.types.is_struct(column.type) else column).buffers()[-1]
    reader = Reads(Table(pa.table({"image": column})))
    images = reader.first(20).values["image"]
    assert list(map(bytes, images)) == IMAGES
    first = np.frombuffer(images[5], np.uint8).__array_interface__["data"][0]
    assert whole.address <= first < whole.address + whole.size
    assert reader.pool.peak == 0


def test_slices_and_chunks_are_one_table() -> None:
    """Slices begin inside a buffer, joined tables have many chunks, some empty; the fingerprint sees none of it."""
    cut = [table().slice(a, b - a) for a, b in ((0, 3), (3, 3), (3, 11), (11, 20))]
    joined = Table(pa.concat_tables(cut))
    assert payloads(joined) == IMAGES
    assert list(map(bytes, read(joined).values["text"])) == [b"picture %d" % n for n in range(20)]
    assert payloads(Table(cut[2])) == IMAGES[3:11]
    in_structs = pa.table({"image": structs([{"bytes": image, "path": None} for image in IMAGES])})
    assert payloads(Table(in_structs.slice(4, 6))) == IMAGES[4:10]
    assert joined.snapshot().fingerprint == Table(table()).snapshot().fingerprint


def test_images_in_files_are_read(tmp_path: Path) -> None:
    """Paths where there are no bytes; a file that is gone costs its own row, and is named."""
    for n in (0, 2):
        (tmp_path / f"{n}.jpg").write_bytes(IMAGES[n])
    rows: list[Any] = [
        {"bytes": None, "path": str(tmp_path / "0.jpg")},
        {"bytes": IMAGES[1], "path": "1.jpg"},
        {"bytes": None, "path": str(tmp_path / "2.jpg")},
        {"bytes": None, "path": str(tmp_path / "gone.jpg")},
        {"bytes": None, "path": None},
        None,
    ]
    source = Table(pa.table({"image": structs(rows)}))
    block = read(source)
    assert [None if view is None else bytes(view) for view in block.values["image"]] == [*IMAGES[:3], None, None, None]
    assert reasons(block) == {3: "the file cannot be opened: No such file or directory"}
    assert sorted(columns_of(source).faults) == [3, 4, 5]
    assert source.where(0, 3) == f"table#3 ({tmp_path}/gone.jpg)"
    assert source.where(0, 1) == "table#1"
    plain = Table(pa.table({"image": [rows[0]["path"]]}))
    assert payloads(plain) == IMAGES[:1]
    assert plain.snapshot().record_bytes == len(IMAGES[0])
    with pytest.raises(SourceNotFoundError, match="none of the 1"):
        Table(pa.table({"image": [str(tmp_path / "gone.jpg")]})).snapshot()


def test_a_null_in_any_column_is_a_bad_record() -> None:
    """As torch's collate cannot take it; the rest of the table is whole, and integers stay integers."""
    columns = {"label": [0, None, 2, 3], "text": ["a", "b", None, "d"], "flag": [True, True, None, False]}
    source = Table(table(IMAGES[:4], **columns))
    block = columns_of(source)
    assert {row: (fault.member, "column" in fault.reason) for row, fault in block.faults.items()} == {
        1: ("label", True),
        2: ("text", True),
    }
    assert block.values["label"].tolist()[2:] == [2, 3]
    assert block.values["label"].dtype == np.int64
    with DataLoader(source, 4, device="cpu", tuning=QUICK, bad=BadRecords(limit=None), info=True) as loader:
        batch, info = next(iter(loader))
    assert info.ok.tolist() == [True, False, False, True]
    assert batch["label"].tolist() == [0, 3, 3, 3]


def test_batches_are_dicts_of_columns() -> None:
    """The images under their own name; collate_fn gets a dict per sample."""
    source = Table(table().rename_columns(["picture", "label", "text"]), "picture")
    with DataLoader(source, 5, device="cpu", tuning=QUICK) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["picture", "label", "text"]
    assert batch["picture"].shape == (5, 3, 16, 16)
    assert torch.equal(batch["label"], torch.arange(5))
    assert batch["text"] == [f"picture {n}" for n in range(5)]
    with DataLoader(source, 5, device="cpu", tuning=QUICK, collate_fn=list) as loader:
        samples = next(iter(loader))
    assert [(sample["label"], sample["text"]) for sample in samples] == [(n, f"picture {n}") for n in range(5)]
    assert torch.equal(torch.stack([sample["picture"] for sample in samples]), batch["picture"])


def test_it_resumes_anywhere() -> None:
    """The law of resume, over chunks and chosen rows, at several world sizes."""
    items = [item[0] for item in labelled(45) if isinstance(item, tuple)]
    parts = [
        table(items[a : a + 15], label=list(range(a, a + 15)), text=list(map(str, range(15)))) for a in (0, 15, 30)
    ]
    rows = np.random.default_rng(0).permutation(45)[:40]
    source = Table(pa.concat_tables(parts), rows=rows)
    assert_resumes_in_turn(source, shuffle=Shuffle(3, 2), lanes=4, world_sizes=(1, 2, 4), absent=0)


def test_engine_dali_takes_views_of_a_table() -> None:
    """They are read-only, and DALI reads them where they are."""
    with DataLoader(Table(table()), 5, device="cpu", decode=Decode(engine="dali"), tuning=QUICK) as loader:
        mine = torch.cat([batch["image"] for batch in loader])
    with DataLoader(Table(table()), 5, device="cpu", tuning=QUICK) as loader:
        assert (mine.int() - torch.cat([batch["image"] for batch in loader]).int()).abs().max() <= 3


MAPPED = """
import sys, pyarrow as pa
from dali_feed.external_sources import Table
with pa.memory_map(sys.argv[1]) as file:
    print(Table(pa.ipc.open_file(file).read_all()).snapshot().fingerprint)
"""


def test_the_fingerprint_is_of_the_data(tmp_path: Path) -> None:
    """Equal in another process from a mapped file; another one for other rows, labels, texts, sizes or contents."""
    path = tmp_path / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=6)
    command = [sys.executable, "-P", "-c", MAPPED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    source = Table(table())
    assert done.stdout.strip() == source.snapshot().fingerprint
    labels, texts = list(range(20)), [f"picture {n}" for n in range(20)]
    turned = bytes([*IMAGES[4][:-3], IMAGES[4][-3] ^ 1, *IMAGES[4][-2:]])
    others = [
        Table(table(), rows=[*range(19), 18]),
        Table(table(), rows=range(19)),
        Table(table(), rows=range(19, -1, -1)),
        Table(table(label=labels[::-1], text=texts)),
        Table(table(label=labels, text=[*texts[:3], "PICTURE 3", *texts[4:]])),
        Table(table(label=labels)),
        Table(table([*IMAGES[:4], IMAGES[4] + b"\0", *IMAGES[5:]])),
        Table(table([*IMAGES[:4], turned, *IMAGES[5:]])),
        Table(table(label=[None, *labels[1:]], text=texts)),
    ]
    assert len({source.snapshot().fingerprint, *(other.snapshot().fingerprint for other in others)}) == 10
    paths = [tmp_path / place / "7.jpg" for place in ("a", "elsewhere")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(IMAGES[0])
    rows = ({"bytes": None, "path": str(path)} for path in paths)
    assert len({Table(pa.table({"image": structs([row])})).snapshot().fingerprint for row in rows}) == 1
