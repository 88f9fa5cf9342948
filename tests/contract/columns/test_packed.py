"""Packed: documents end to end, which document and place each token has, and the same rows at every world size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, broken_png
from kit.member_shards import shards

from dali_feed import BadRecords, DataLoader
from dali_feed.columns import Column, Image, Number, Packed, PackedBatch, Text
from dali_feed.errors import ConfigError
from dali_feed.testing import assert_resumes_anywhere


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
    assert_resumes_anywhere(source, batch_size=12, lanes=4, world_sizes=(1, 2, 4), positions=[0, 2, 4], columns=columns)


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


def test_a_collate_fn_is_refused(tmp_path: Path) -> None:
    """It would be given a row for each record."""
    columns = {"tokens": Packed("txt", repeated, 5)}
    with (
        DataLoader(shards(tmp_path), 4, columns=columns, collate_fn=list, tuning=QUICK) as loader,
        pytest.raises(ConfigError, match="a row of Packed has several records; leave one"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    "options", [{"length": 0}, {"rows": 0}, {"end": -1}, {"end": 2**31}, {"pad": -1}, {"split": "no"}], ids=str
)
def test_it_checks_itself(options: dict[str, Any]) -> None:
    """A wrong value never reaches a record."""
    with pytest.raises(ConfigError, match=f"Packed.'txt'.: {next(iter(options))}"):
        Packed("txt", digits, **({"length": 4} | options))


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
