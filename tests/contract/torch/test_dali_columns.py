"""A user's pipeline with an input per member of a record: images, masks, bytes, text, arrays, numbers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.dali_pipelines import CPU
from kit.images import jpeg
from kit.inside import write_shard
from nvidia.dali import fn, pipeline_def, types
from PIL import Image as Pictures

from dali_feed import BadRecords
from dali_feed.columns import Array, Boxes, Bytes, Column, Image, JsonValue, Mask, Number, Text, Tokens
from dali_feed.dali import DALIGenericIterator, LastBatchPolicy
from dali_feed.errors import ConfigError
from dali_feed.external_sources import ShardSet

PARTIAL = LastBatchPolicy.PARTIAL
ANY = BadRecords(limit=None)
COUNT = 12
OUTPUTS = ["picture", "mask", "text", "x", "label", "boxes", "ids", "size"]

COLUMNS: dict[str, Column] = {
    "x": Array("f32", "float32", (2, 3)),
    "picture": Image("jpg"),
    "classes": Mask("seg.png"),
    "text": Text("txt"),
    "label": Number("cls"),
    "boxes": Boxes("boxes.json", more=1),
    "ids": Tokens("txt", lambda text: [ord(c) for c in text], 4),
    "size": Number("json:size.wide", "float32"),
}


def gray(n: int) -> bytes:
    """A mask whose every pixel is n."""
    file = io.BytesIO()
    Pictures.new("L", (24, 24), n).save(file, "PNG")
    return file.getvalue()


def records(folder: Path, broken: dict[tuple[int, str], Any] | None = None) -> ShardSet:
    """Twelve samples; `broken`: (number, suffix) -> bytes, or None for no such member."""
    made = []
    for n in range(COUNT):
        members = {
            "jpg": jpeg(n, 24, 24),
            "seg.png": gray(n),
            "txt": b"text %02d" % n,
            "f32": np.arange(n, n + 6, dtype="<f4").tobytes(),
            "cls": b"%02d" % n,
            "boxes.json": b"[[0, 0, 5, 6, %d]]" % n,
            "json": b'{"size": {"wide": %d.5}}' % n,
        }
        members |= {suffix: data for (k, suffix), data in (broken or {}).items() if k == n}
        made.append({suffix: data for suffix, data in members.items() if data is not None})
    write_shard(folder / "a.tar", made)
    return ShardSet(folder / "a.tar", index_dir=folder)


@pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
def whole() -> Any:
    """Every input as it is; image and mask decoded, and moved together by a random number of DALI's own."""
    taken = {name: fn.external_source(name=name) for name in COLUMNS}
    angle = fn.random.uniform(range=[-30.0, 30.0])
    images = fn.rotate(fn.decoders.image(taken["picture"]), angle=angle, keep_size=True)
    masks = fn.decoders.image(taken["classes"], output_type=types.ANY_DATA)
    rest = [taken[name] for name in ("text", "x", "label", "boxes", "ids", "size")]
    return images, masks, *rest


def loop(source: ShardSet, **options: Any) -> Any:
    """An iterator over all of it."""
    given: dict[str, Any] = {"columns": COLUMNS, "last_batch_policy": PARTIAL, "bad": ANY, "seed": 5} | options
    return DALIGenericIterator(whole, OUTPUTS, source, **given)


def test_every_input_takes_its_member(tmp_path: Path) -> None:
    """One tensor a sample, of the same record in a row: screened images, bytes of text, arrays, rows, ids, numbers."""
    with loop(records(tmp_path), shuffle=True) as found:
        batches = [data[0] for data in found]
    assert sorted(n for batch in batches for n in batch["label"].flatten().tolist()) == list(range(COUNT))
    for batch in batches:
        assert batch["picture"].shape == (4, 24, 24, 3)
        for k, n in enumerate(batch["label"].flatten().tolist()):
            assert batch["mask"][k].unique().tolist() == [n]
            assert bytes(batch["text"][k].numpy()) == b"text %02d" % n
            assert torch.equal(batch["x"][k], torch.arange(n, n + 6, dtype=torch.float32).reshape(2, 3))
            assert batch["boxes"][k].tolist() == [[0, 0, 5, 6, n]]
            assert batch["ids"][k].tolist() == [ord(c) for c in "text"]
            assert batch["size"][k].tolist() == [n + 0.5]
    assert (batches[0]["label"].dtype, batches[0]["size"].dtype) == (torch.int64, torch.float32)


def test_what_is_left_open_is_told_by_the_first_record(tmp_path: Path) -> None:
    """An array without its shape has the first record's; what a function makes of bytes is an input as any other."""
    columns = COLUMNS | {
        "x": Array("f32", "float32"),
        "text": Bytes("txt", decode=lambda data: np.array([len(data)], np.int32)),
    }
    with loop(records(tmp_path), columns=columns) as found:
        batches = [data[0] for data in found]
    assert sum(len(batch["x"]) for batch in batches) == COUNT
    for batch in batches:
        for k, n in enumerate(batch["label"].flatten().tolist()):
            assert batch["x"][k].tolist() == list(range(n, n + 6))
            assert batch["text"][k].tolist() == [7]


@pytest.mark.parametrize(
    ("member", "data", "reason"),
    [
        ("seg.png", b"no image", "column 'classes' of member 'seg.png': text, not an image"),
        ("seg.png", None, "column 'classes' of member 'seg.png': the record has no such member"),
        ("seg.png", gray(5)[:-30], ""),  # its header is good: the graph's decoder refuses it
        ("jpg", b"no image", "text, not an image"),
        ("f32", b"123", "column 'x' of member 'f32': array"),
        ("cls", b"five", "column 'label' of member 'cls'"),
        ("json", b"{", "member 'json': json"),
    ],
)
def test_a_bad_member_costs_its_slot(tmp_path: Path, member: str, data: Any, reason: str) -> None:
    """Whatever it is of: the next good record takes it, and the reason is kept."""
    with loop(records(tmp_path, {(5, member): data})) as found:
        labels = [n for data in found for n in data[0]["label"].flatten().tolist()]
        ((_, told),) = found.stats().recent_bad
    assert labels == [6 if n == 5 else n for n in range(COUNT)]
    assert told.startswith(reason)


def test_a_state_gives_the_rest_bit_for_bit(tmp_path: Path) -> None:
    """DALI's own random numbers included; stopped after any batch, with bad members on the way."""
    source = records(tmp_path, {(5, "seg.png"): b"no image", (7, "jpg"): jpeg(7, 24, 24)[:-200]})

    def seen(data: Any) -> dict[str, Any]:
        return {name: rows.clone() for name, rows in data[0].items()}

    with loop(source, shuffle=True) as found:
        wanted = [seen(data) for data in found]
    for stop in range(1, len(wanted)):
        with loop(source, shuffle=True) as found:
            for _ in range(stop):
                next(found)
            state = found.state_dict()
        with loop(source, shuffle=True) as again:
            again.load_state_dict(state)
            rest = [seen(data) for data in again]
        assert len(rest) == len(wanted) - stop
        for one, other in zip(rest, wanted[stop:], strict=True):
            assert all(torch.equal(one[name], other[name]) for name in OUTPUTS)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"picture": Text("txt")}, "columns: a pipeline needs at least one Image; found 'picture'"),
        ([Image("jpg")], "columns: must be a dict of the graph's inputs"),
        (
            {"picture": Image("jpg", lambda x: x)},
            "columns: 'picture': must have no transform, as the graph transforms it",
        ),
        ({"picture": Image("jpg"), "a": JsonValue("json")}, "columns: 'a': a graph takes tensors"),
        ({"picture": Image("jpg")}, "external_source must be named after a field, one of picture; found 'classes'"),
        ({**COLUMNS, "x": Array("nothing", "float32", (2, 3))}, "member 'nothing': no sample has it"),
    ],
)
def test_columns_that_cannot_be(tmp_path: Path, columns: Any, told: str) -> None:
    """Each with what was found, before a batch is made."""
    with pytest.raises(ConfigError, match=told), loop(records(tmp_path), columns=columns) as found:
        next(found)
