"""Tokens: by a file, an object or a callable; cut and filled as Hugging Face does; no text harms another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from dali_feed.columns import Packed, TokenBatch, Tokens
from dali_feed.errors import ConfigError

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


def random() -> tokenizers.Tokenizer:
    """One whose merges are left out by chance."""
    return tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tokens("txt", words(), 2), "length must be more than the 2 special tokens"),
        (
            lambda: Tokens("txt", random(), 4),
            "must give a text the same ids each time it is read; found BPE with dropout",
        ),
        (lambda: Packed("txt", random(), 4), "Packed.*found BPE with dropout"),
        (lambda: Tokens("txt", 7, 4), "must be a file, a Tokenizer of the tokenizers library or a function; found 7"),
        (lambda: Packed("txt", "/nowhere/tokenizer.json", 8), "must be a file that the tokenizers library wrote"),
        (lambda: Tokens("txt", words(), 4, truncation_side="middle"), 'truncation_side must be "right" or "left"'),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_told(make: Any, message: str) -> None:
    """When the kind is made."""
    with pytest.raises(ConfigError, match=message):
        make()
