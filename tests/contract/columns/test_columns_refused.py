"""Columns that cannot be: a kind checks itself, and a loader checks what it is asked for, before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from kit.followers import pictured
from kit.images import QUICK, png
from kit.member_shards import shards
from kit.refused import drained, first, refusals
from tokenizers import models, processors
from torchvision.transforms import v2

from dali_feed import DataLoader, Mixing
from dali_feed.columns import Array, Boxes, Bytes, Image, Keypoints, Mask, Number, Packed, Text, Tokens
from dali_feed.errors import ConfigError, TransformError
from dali_feed.external_sources import FileList

FLOAT = v2.Compose([v2.RandomResizedCrop((12, 10)), v2.ToDtype(torch.float32, scale=True)])
IMAGE, LABEL = Image("jpg", FLOAT), Number("cls")


def words() -> tokenizers.Tokenizer:
    """A token for a letter, between [CLS] and [SEP]."""
    made = tokenizers.Tokenizer(models.WordLevel({"[CLS]": 1, "[SEP]": 2, "a": 3}))
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return made


def random() -> tokenizers.Tokenizer:
    """One whose merges are left out by chance."""
    return tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))


def packed(**options: Any) -> Packed:
    """Rows of four tokens."""
    return Packed("txt", lambda text: [1] * len(text), **({"length": 4} | options))


NO_SAME_IDS = "must give a text the same ids each time it is read; found BPE with dropout"
NO_FILE = "must be a file that the tokenizers library wrote"


@refusals(
    ConfigError,
    (lambda: Text(""), "Text"),
    (lambda: Number("cls", "complex64"), "Number"),
    (lambda: Array("x", ">f4"), "Array"),
    (lambda: Array("x", "float32", (0,)), "Array"),
    (lambda: Array("f32", "float32", (None, 4), ragged="pad"), "needs most="),
    (lambda: Array("f32", "float32", (4,), most=3), "are of a shape whose first side is None"),
    (lambda: Array("f32", "float32", (4, None)), "shape must be a tuple of positive ints, the first may be None"),
    (lambda: Array("f32", "float32", (None, 4), ragged="stack"), 'ragged must be "list", "pad" or "nested"'),  # type: ignore[arg-type]
    (lambda: Array("f32", "float32", (None, 4), most=0), "most, where it is not None"),
    (lambda: Mask("mask", dtype="float32"), "Mask"),
    (lambda: Boxes("boxes", format="xyx"), "Boxes"),  # type: ignore[arg-type]
    (lambda: Boxes("boxes", min_size=-1.0), "Boxes"),
    (lambda: Boxes("boxes", most=0), "Boxes"),
    (lambda: Keypoints("points", more=-1), "Keypoints"),
    (lambda: Tokens("txt", lambda text: [1], 0), "Tokens"),
    (lambda: Tokens("txt", words(), 2), "length must be more than the 2 special tokens"),
    (lambda: Tokens("txt", random(), 4), NO_SAME_IDS),
    (lambda: Tokens("txt", 7, 4), "must be a file, a Tokenizer of the tokenizers library or a function; found 7"),
    (lambda: Tokens("txt", words(), 4, truncation_side="middle"), 'truncation_side must be "right" or "left"'),  # type: ignore[arg-type]
    (lambda: Tokens("txt", "/nowhere/tokenizer.json", 8), NO_FILE),
    (lambda: Packed("txt", "/nowhere/tokenizer.json", 8), NO_FILE),
    (lambda: Packed("txt", random(), 4), "Packed.*found BPE with dropout"),
    (lambda: packed(length=0), "Packed.'txt'.: length"),
    (lambda: packed(rows=0), "Packed.'txt'.: rows"),
    (lambda: packed(end=-1), "Packed.'txt'.: end"),
    (lambda: packed(end=2**31), "Packed.'txt'.: end"),
    (lambda: packed(pad=-1), "Packed.'txt'.: pad"),
    (lambda: packed(split="no"), "Packed.'txt'.: split"),
)
def test_a_kind_checks_itself(call: Any, error: Any, said: str) -> None:
    """A wrong value never reaches a record."""
    with pytest.raises(error, match=said):
        call()


def asked(columns: Any, **options: Any) -> Any:
    """Asks for the first batch of two with these columns of a shard."""
    return lambda folder: first(DataLoader(shards(folder), 2, columns=columns, tuning=QUICK, **options))


def mixed(columns: Any) -> Any:
    """Makes a loader that mixes them."""
    return lambda folder: DataLoader(shards(folder, 2), 2, columns=columns, collate_fn=Mixing(0.4, 1.0, classes=30))


def followed(image: Any, **columns: Any) -> Any:
    """Makes a loader of pictures with what follows them."""
    named = {} if image is None else {"image": image}
    return lambda folder: DataLoader(pictured(folder), 2, columns={**named, **columns})


def numbers_as_bytes(folder: Path) -> Any:
    """Of labels, which `bytes` would take for a count of zeros."""
    paths = [folder / f"{n}.png" for n in range(2)]
    for n, path in enumerate(paths):
        path.write_bytes(png(n))
    return first(DataLoader(FileList(paths, np.arange(2)), 2, columns=[Bytes("label")], tuning=QUICK))


def outside_of_classes(folder: Path) -> Any:
    """A label that mixing has no class for."""
    columns, few = {"image": IMAGE, "label": LABEL}, Mixing(1.0, classes=5)
    return drained(DataLoader(shards(folder), 6, columns=columns, collate_fn=few, tuning=QUICK, device="cpu"))


DRAWS = "columns: draws= of 'b' must name"
REFLECTED = v2.RandomCrop(50, padding=20, padding_mode="reflect")
TWO_LABELS = {"image": IMAGE, "label_a": LABEL, "label_b": LABEL}
WITH_FOLLOWERS = {"image": IMAGE, "label": LABEL, "mask": Mask("txt"), "boxes": Boxes("json")}
NO_MIXING = "cannot mix masks, boxes and keypoints, as torchvision's cannot; found 'mask', 'boxes'"
NO_IMAGE = "'mask' is changed together with the image column 'image', which must be there; found None"
NO_KIND = r"columns: 'a' must be a class of dali_feed.columns such as Text\('txt'\); found 'txt'"
NO_NUMBER = "they are the second one, which must be a Number of whole numbers, found"
CIRCLE = f"{DRAWS} .*, one of 'a'; found 'a', which takes its own from this one"
NO_SUCH_DRAWS = f"{DRAWS} the image column whose random numbers it takes, one of 'a'; found 'c'"


@refusals(
    ConfigError,
    (asked({}), "columns: must name at least one"),
    (asked({"a": "txt"}), NO_KIND),
    (asked({"a": Text}), "columns: 'a' must be a class"),
    (asked({"a": Text("txtt")}), r"member 'txtt': no sample has it; .* Did you mean 'txt'\?"),
    (asked({"a": Image("jpg"), "b": Image("jpg", draws="c")}), NO_SUCH_DRAWS),
    (asked({"a": Image("jpg", draws="b"), "b": Image("jpg", draws="a")}), CIRCLE),
    (asked({"a": Array("txt", "float64")}), r"Array\('txt'\): dtype and shape are taken from the first record"),
    (asked([packed()], collate_fn=list), "a row of Packed has several records; leave one"),
    (numbers_as_bytes, "all 2 records .* must be bytes; found int64"),
    (mixed({"label": LABEL}), "columns must have one Image, found 'label'"),
    (mixed({"image": IMAGE, "n": LABEL}), "with 'label' in its name; found 'image', 'n'. Name it 'label'"),
    (mixed({"image": IMAGE, "label": Text("txt")}), "a column of whole Numbers .* found 'label'"),
    (mixed({"image": IMAGE, "label": Number("cls", "float32")}), "a column of whole Numbers .* found 'label'"),
    (mixed(TWO_LABELS), "found 'label_a', 'label_b', and one must be chosen. Name it 'labels'"),
    (mixed([LABEL, IMAGE]), rf"{NO_NUMBER} Image\("),
    (mixed([IMAGE]), f"{NO_NUMBER} none"),
    (mixed(WITH_FOLLOWERS), NO_MIXING),
    (mixed({"image": Image("jpg", [FLOAT, FLOAT]), "label": LABEL}), "found several views"),
    (mixed({"image": Image("jpg", v2.CenterCrop(8)), "label": LABEL}), "mix floats; found images of torch.uint8"),
    (outside_of_classes, r"labels must lie in 0\.\.4, .* found \d+ in \d\.tar#\d+"),
    (followed(None, mask=Mask("mask")), NO_IMAGE),
    (followed(None, picture=Image("jpg"), mask=Mask("mask")), "found 'picture'. Give of="),
    (
        followed(Image("jpg", [v2.CenterCrop(8), v2.CenterCrop(9)]), mask=Mask("mask")),
        "can be changed together with one image only, .*; found 2 views",
    ),
    (followed(Image("jpg", lambda images, draws: images), boxes=Boxes("boxes")), "found a DALI graph function"),
    (
        followed(Image("jpg", REFLECTED), boxes=Boxes("boxes")),
        'boxes and points need padding_mode="constant"; found "reflect"',
        TransformError,
    ),
    (followed(Image("jpg", v2.RandAugment()), mask=Mask("mask")), "RandAugment", TransformError),
)
def test_what_a_loader_cannot_give_is_told(tmp_path: Path, call: Any, error: Any, said: str) -> None:
    """When it is made, or by its first records: with the columns' names, what was found, and the cure."""
    with pytest.raises(error, match=said):
        call(tmp_path)
