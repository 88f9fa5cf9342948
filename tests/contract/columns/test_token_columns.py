"""Tokens and rows of any length: cut, filled and packed as Hugging Face does; no text harms another."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
import torch
from kit.blocks import columns_of
from kit.by_hand import npy
from kit.images import QUICK, broken_png
from kit.inside import write_shard
from kit.member_shards import shards
from kit.resumes import assert_resumes_in_turn
from tokenizers import models, pre_tokenizers, processors

from dali_feed import BadRecords, DataLoader
from dali_feed.columns import Array, Column, Counted, Image, Number, Packed, PackedBatch, Text, TokenBatch, Tokens
from dali_feed.external_sources import ShardSet, Table
from dali_feed.testing import assert_resumes_anywhere

TEXTS = ["a b c d e", "a", "", "b c d"]


def words(**options: Any) -> tokenizers.Tokenizer:
    """A token for each of a few letters, between [CLS] and [SEP]; no other word is known."""
    known = {word: n for n, word in enumerate(["[CLS]", "[SEP]", *"abcde"], 1)}
    made = tokenizers.Tokenizer(models.WordLevel(known, **options))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def batch(kind: Tokens, texts: list[str]) -> TokenBatch:
    """All of them, none of them bad."""
    faults: dict[int, str] = {}
    kept = kind.read(texts, faults)
    assert not faults
    return kind.batch(kept)


@pytest.mark.parametrize("cut", ["right", "left"])
@pytest.mark.parametrize("fill", ["right", "left"])
@pytest.mark.parametrize("special", [True, False])
def test_rows_are_those_of_hugging_face(cut: Any, fill: Any, special: bool, tmp_path: Path) -> None:
    """Cut and filled at either side; special tokens stay where a text is cut."""
    words().save(str(tmp_path / "tokenizer.json"))
    options = {"add_special_tokens": special, "truncation_side": cut, "padding_side": fill}
    found = batch(Tokens("txt", tmp_path / "tokenizer.json", 4, pad=9, **options), TEXTS)
    theirs = words()
    theirs.enable_truncation(4, direction=cut)
    theirs.enable_padding(direction=fill, pad_id=9, length=4)
    wanted = theirs.encode_batch(TEXTS, add_special_tokens=special)
    assert found.ids.tolist() == [each.ids for each in wanted]
    assert found.mask.tolist() == [each.attention_mask for each in wanted]
    assert found.ids.dtype == found.mask.dtype == np.int64


def test_an_object_is_taken_as_it_is_and_stays_as_it_is() -> None:
    """Of tokenizers, or of transformers around one; what its owner set for himself counts for him alone."""

    class Fast:
        """What transformers' fast tokenizers have."""

        backend_tokenizer = words()

    own = words()
    own.enable_padding(length=30)
    for given in (own, Fast()):
        kind = Tokens("txt", given, 4, add_special_tokens=False)
        own.enable_truncation(3)
        assert batch(kind, ["a b"]).ids.tolist() == [[3, 4, 0, 0]]
    assert own.encode("a b").ids == [1, 3, 2] + [0] * 27


@pytest.mark.parametrize("kind", [Tokens, Packed])
def test_a_text_that_cannot_be_tokenized_costs_itself(kind: type[Tokens | Packed]) -> None:
    """Though all of a read are tokenized together."""
    faults = {3: "bad before"}
    kept = kind("txt", words(), 4, add_special_tokens=False).read(["a", "unknown", "b c", "d"], faults)
    assert [ids.tolist() for ids in kept] == [[3], [], [4, 5], []]
    assert faults.keys() == {1, 3}
    assert faults[1].startswith("tokenizer: Exception: WordLevel error: Missing [UNK] token")


def test_a_callable_is_called_once_for_each_text() -> None:
    """Also where it raises for another of the same read; the reason names what it raised."""
    seen: list[str] = []

    def lengths(text: str) -> list[int]:
        seen.append(text)
        return [7 // len(text)]

    faults: dict[int, str] = {}
    kept = Tokens("txt", lengths, 4).read(["a", "", "bb"], faults)
    assert [ids.tolist() for ids in kept] == [[7], [], [3]]
    assert faults == {1: "tokenizer: ZeroDivisionError: integer division or modulo by zero"}
    assert seen == ["a", "", "bb"]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1.5], "tokenizer: ValueError: the ids must be a list of ints; found float64 of shape (1,)"),
        ([[1]], "tokenizer: ValueError: the ids must be a list of ints; found int64 of shape (1, 1)"),
        ([-1, 3], "tokenizer: ValueError: ids must lie in 0..2147483647; found -1 to 3"),
        ([2**31], "tokenizer: ValueError: ids must lie in 0..2147483647; found 2147483648 to 2147483648"),
        (None, "tokenizer: ValueError: the ids must be a list of ints; found object of shape ()"),
    ],
    ids=str,
)
def test_ids_that_are_none_make_a_bad_record(ids: Any, reason: str) -> None:
    """Before a model looks them up."""
    faults: dict[int, str] = {}
    Tokens("txt", lambda text: ids if text == "b" else [1], 4).read(["a", "b", "c"], faults)
    assert faults == {1: reason}


def test_a_callable_gives_ids_in_any_form() -> None:
    """A list, an array, or the dict that transformers' tokenizers return; cut at either side as they are."""
    forms = {"a": [1, 2, 3], "b": np.array([4, 5, 6], np.uint16), "c": {"input_ids": [7], "attention_mask": [1]}}
    assert batch(Tokens("txt", forms.__getitem__, 2), [*forms]).ids.tolist() == [[1, 2], [4, 5], [7, 0]]
    left = Tokens("txt", forms.__getitem__, 2, truncation_side="left")
    assert batch(left, [*forms]).ids.tolist() == [[2, 3], [5, 6], [7, 0]]


def digits(text: str) -> list[int]:
    """A token for each digit."""
    return [int(c) for c in text]


def repeated(text: str) -> list[int]:
    """Of "sample n é": n, 0 to 6 times."""
    n = int(text.split()[1])
    return [n] * (n % 7)


@pytest.mark.parametrize("options", [{}, {"split": False}, {"rows": 5}, {"split": False, "rows": 3}], ids=str)
def test_each_token_stands_once_with_its_document_and_place(options: dict[str, Any]) -> None:
    """Whatever the lengths: as many of each document as are not cut, neighbours in it neighbours in its row."""
    random = np.random.default_rng(0)
    kind = Packed("txt", digits, 8, pad=77, **options)
    for _ in range(50):
        sizes = random.integers(0, 20, random.integers(1, 12))
        documents = [np.arange(100 * n, 100 * n + size, dtype=np.int32) for n, size in enumerate(sizes, 1)]
        ids, mask, document, position, cut = kind.batch(documents)
        there = mask == 1
        assert mask.sum() + cut.sum() == sizes.sum()
        assert options or cut.sum() == 0
        assert max(Counter(ids[there].tolist()).values(), default=1) == 1
        assert (ids[~there] == 77).all()
        assert (document[~there] == 0).all()
        assert (position[~there] == 0).all()
        follows = position[:, 1:] > 0
        assert (np.diff(ids)[follows] == 1).all()
        assert (np.diff(document)[follows] == 0).all()
        assert (np.diff(document)[there[:, 1:] & ~follows] == 1).all()
        assert (document[there[:, 0], 0] == 1).all()
        assert (position[:, 0] == 0).all()


def test_beside_an_image_the_documents_are_those_of_the_batch(tmp_path: Path) -> None:
    """Where a decoder refuses a record late, another's document is packed in its place."""
    source = shards(tmp_path, broken={"4.jpg": broken_png(4)})
    columns: dict[str, Column] = {"image": Image("jpg"), "tokens": Packed("txt", repeated, 64), "label": Number("cls")}
    with DataLoader(source, 12, columns=columns, tuning=QUICK, bad=BadRecords(limit=1), info=True) as loader:
        batch, info = next(iter(loader))
    assert info.ok.tolist() == [True, True, False, *[True] * 9]
    wanted = [n for n in batch["label"].tolist() for _ in range(n % 7)]
    assert 4 not in wanted
    assert batch["tokens"].ids[batch["tokens"].mask == 1].tolist() == wanted


@pytest.mark.parametrize("options", [{"end": 99}, {"split": False, "rows": 2}], ids=str)
def test_a_state_gives_the_rest_at_any_world_size(tmp_path: Path, options: dict[str, Any]) -> None:
    """The same rows in each step of one, two and four ranks, and from any of their states; a bad text costs its own."""
    source = shards(tmp_path, 40, broken={"7.txt": b"\xff"})
    columns: dict[str, Column] = {"tokens": Packed("txt", repeated, 5, **options), "text": Text("txt")}
    assert_resumes_in_turn(source, batch_size=12, lanes=4, world_sizes=(1, 2, 4), positions=[0, 2, 4], columns=columns)


class Across(Packed):
    """Packs all lanes of a rank together, as if there were one."""

    def of_lanes(self, values: Any, lanes: int) -> PackedBatch:
        """One part."""
        return super().of_lanes(values, 1)


def test_packing_across_lanes_is_seen(tmp_path: Path) -> None:
    """By the test of resume: then a step's rows would depend on the world size."""
    columns = {"tokens": Across("txt", repeated, 5)}
    with pytest.raises(AssertionError, match=r"world size 2 beside 1: batch 0, packed row \d+ must be"):
        assert_resumes_anywhere(shards(tmp_path), batch_size=4, lanes=4, positions=[0], columns=columns)


def test_the_loader_gives_tensors_and_targets_are_one_expression(tmp_path: Path) -> None:
    """int64; nothing that begins is a target, as in Hugging Face's collator without padding."""
    columns = (Packed("txt", repeated, 5),)
    with DataLoader(shards(tmp_path), 12, columns=columns, tuning=QUICK, bad=BadRecords(limit=0), info=True) as loader:
        (tokens, info), *_ = loader
    assert isinstance(tokens, PackedBatch)
    assert all(part.dtype == torch.int64 for part in tokens)
    assert info.ids.shape == (12,)  # documents 0, 2, 4, 6, 8, ..., 22
    assert tokens.ids[:3].tolist() == [[2, 2, 4, 4, 4], [4, 6, 6, 6, 6], [6, 6, 8, 10, 10]]
    labels = tokens.ids.masked_fill(tokens.position == 0, -100)
    assert labels[:3].tolist() == [[-100, 2, -100, 4, 4], [-100, -100, 6, 6, 6], [-100, 6, -100, -100, 10]]


def packed(documents: list[str], **options: Any) -> dict[str, list[Any]]:
    """What one lane's documents come to in rows of four."""
    kind, faults = Packed("txt", digits, 4, **options), dict[int, str]()
    batch = kind.batch(kind.read(documents, faults))
    assert not faults
    return {name: array.tolist() for name, array in batch._asdict().items()}


def test_a_document_goes_on_in_the_next_row() -> None:
    """Number and place start again there; a document without tokens is nowhere, and has no end either."""
    assert packed(["11", "", "22222", "3"], end=9, pad=8) == {
        "ids": [[1, 1, 9, 2], [2, 2, 2, 2], [9, 3, 9, 8]],
        "mask": [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]],
        "document": [[1, 1, 1, 2], [1, 1, 1, 1], [1, 2, 2, 0]],
        "position": [[0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 1, 0]],
        "cut": [0, 0, 0],
    }


def test_a_document_that_stays_whole_stands_where_there_is_room() -> None:
    """The longest first; one that is longer than a row is cut, and what was cut is counted with its row."""
    assert packed(["11", "222222", "333", "44", "5"], split=False) == {
        "ids": [[2, 2, 2, 2], [3, 3, 3, 5], [1, 1, 4, 4]],
        "mask": [[1] * 4] * 3,
        "document": [[1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 2]],
        "position": [[0, 1, 2, 3], [0, 1, 2, 0], [0, 1, 0, 1]],
        "cut": [2, 0, 0],
    }


@pytest.mark.parametrize("split", [True, False])
def test_rows_of_a_fixed_number_are_filled_or_cut_and_counted(split: bool) -> None:
    """Tokens for which there is no row are counted in the last one."""
    few, many = packed(["1"], rows=2, split=split), packed(["111", "222222", "333"], rows=2, split=split)
    assert few["ids"] == [[1, 0, 0, 0], [0] * 4]
    assert few["cut"] == [0, 0]
    assert [len(many["ids"]), sum(many["cut"])] == [2, 4 if split else 5]
    assert (sum(map(sum, many["mask"])) + sum(many["cut"])) == 12


def test_documents_without_tokens_alone_make_one_row() -> None:
    """So no step is without a row."""
    assert packed(["", ""])["mask"] == [[0] * 4]


ROWS = [np.arange(4 * (n % 4), dtype=np.float32).reshape(-1, 4) + n for n in range(12)]  # some have none


def in_shards(folder: Path, large: int = 1) -> ShardSet:
    """Rows as bytes without a header, as `.npy` and as JSON; large ones are read straight into batches."""
    samples = (
        {"f32": np.tile(rows, (large, 1)).tobytes(), "npy": npy(np.asfortranarray(rows)), "cls": b"%d" % n}
        | {"json": json.dumps({"x": rows.tolist()}).encode()}
        for n, rows in enumerate(ROWS)
    )
    write_shard(folder / "a.tar", samples)
    return ShardSet(folder / "a.tar", label=None)


def whole(source: Any, column: Array, **options: Any) -> Any:
    """The whole source as one batch of that column, as a loader gives it."""
    with DataLoader(source, 12, columns={"x": column}, device="cpu", tuning=QUICK, **options) as loader:
        return next(iter(loader))["x"]


@pytest.mark.usefixtures("cache_home")
@pytest.mark.parametrize(("member", "large"), [("f32", 1), ("f32", 400), ("npy", 1), ("json:x", 1)])
def test_rows_come_in_each_form(tmp_path: Path, member: str, large: int) -> None:
    """Whatever they were stored as; a nested tensor has torch's jagged layout."""
    wanted = [torch.from_numpy(np.tile(rows, (large, 1))) for rows in ROWS]
    source, shape = in_shards(tmp_path, large), (None, 4)
    listed = whole(source, Array(member, "float32", shape))
    padded = whole(source, Array(member, "float32", shape, ragged="pad", most=3 * large))
    nested = whole(source, Array(member, "float32", shape, ragged="nested"))
    assert isinstance(padded, Counted)
    assert padded.rows.shape == (12, 3 * large, 4)
    assert padded.count.tolist() == [len(rows) for rows in wanted]
    assert nested.layout is torch.jagged
    for n, rows in enumerate(wanted):
        assert torch.equal(listed[n], rows)
        assert torch.equal(padded.rows[n, : len(rows)], rows)
        assert not padded.rows[n, len(rows) :].any()
        assert torch.equal(nested[n], rows)


@pytest.mark.usefixtures("cache_home")
def test_numbers_of_a_table(tmp_path: Path) -> None:
    """Lists of several lengths, of the dtype that they have; a null is a missing member."""
    source = Table(pa.table({"x": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int16()))}), image=None)
    with DataLoader(source, 4, columns=[Array("x", shape=(None,), default=[])], device="cpu", tuning=QUICK) as loader:
        ((rows,),) = loader
    assert [(each.dtype, each.tolist()) for each in rows] == [(torch.int16, x) for x in ([1, 2], [], [], [3])]


@pytest.mark.usefixtures("cache_home")
def test_a_collate_fn_gets_the_rows_of_each_record(tmp_path: Path) -> None:
    """As a tensor, whatever a batch would be."""
    columns = {"x": Array("f32", "float32", (None, 4), ragged="nested")}
    with DataLoader(in_shards(tmp_path), 12, columns=columns, device="cpu", tuning=QUICK, collate_fn=list) as loader:
        samples = next(iter(loader))
    assert [sample["x"].tolist() for sample in samples] == [rows.tolist() for rows in ROWS]


@pytest.mark.usefixtures("cache_home")
def test_a_run_resumes_anywhere(tmp_path: Path) -> None:
    """A state taken after any batch gives the rest at other world sizes."""
    columns = {"x": Array("f32", "float32", (None, 4), ragged="pad", most=3), "n": Number("cls")}
    assert_resumes_in_turn(in_shards(tmp_path), columns=columns, shuffle=True, positions=3)


@pytest.mark.usefixtures("cache_home")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (bytes(20), r"rows of float32 \(4,\) must have 16 bytes each; found 20 bytes"),
        (bytes(64), r"at most 3 rows \(most=\) are allowed; found 4"),
        (npy(np.zeros((2, 3), np.float32)), r"shape must be \(2, 4\); found \(2, 3\)"),
        (npy(np.zeros((2, 4))), "must be float32; found float64"),
    ],
)
def test_a_record_of_other_rows_is_a_bad_one(tmp_path: Path, value: bytes, reason: str) -> None:
    """Its slot goes to another."""
    write_shard(tmp_path / "a.tar", [{"f32": ROWS[n].tobytes()} for n in range(3)] + [{"f32": value}])
    column = Array("f32", "float32", (None, 4), most=3)
    block = columns_of(ShardSet(tmp_path / "a.tar", label=None), {"x": column})
    assert list(block.faults) == [3]
    assert re.search(reason, block.faults[3].reason)
