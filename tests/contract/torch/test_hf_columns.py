"""Hugging Face's datasets with `columns=`: any of their columns, by name, in the table that is behind them."""

from __future__ import annotations

from typing import Any

import pytest
from kit.images import QUICK, jpeg
from kit.later import Later
from torch.utils.data import Subset
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader
from dali_feed.columns import Array, Boxes, Bytes, Image, Number, Text, Tokens
from dali_feed.errors import ConfigError

datasets: Any = Later("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

COUNT = 8
COLUMNS = {
    "image": Image("image", v2.CenterCrop(16)),
    "mask": Bytes("mask"),
    "x": Array("features", "float32", (3,)),
    "grid": Array("grid", "int32", (2, 2)),
    "text": Text("caption"),
    "label": Number("label"),
    "boxes": Boxes("objects.bbox"),
    "category": Array("objects.category", "int64"),
}


def made() -> Any:
    """Two columns of images, lists, a struct of lists, texts, ints; row 5 has no caption."""
    rows = range(COUNT)
    return datasets.Dataset.from_dict(
        {
            "image": [{"bytes": jpeg(n, 24, 24), "path": None} for n in rows],
            "mask": [{"bytes": jpeg(n + 8, 24, 24), "path": None} for n in rows],
            "features": [[n, n + 0.5, n + 1] for n in rows],
            "grid": [[[n, 1], [2, 3]] for n in rows],
            "caption": [None if n == 5 else f"number {n}" for n in rows],
            "label": [n % 3 for n in rows],
            "objects": [{"bbox": [[0, 0, n + 1, 5]], "category": [n]} for n in rows],
        },
        features=datasets.Features(
            {
                "image": datasets.Image(),
                "mask": datasets.Image(),
                "features": datasets.Sequence(datasets.Value("float32")),
                "grid": datasets.Array2D((2, 2), "int32"),
                "caption": datasets.Value("string"),
                "label": datasets.ClassLabel(names=["cat", "dog", "eel"]),
                "objects": {
                    "bbox": datasets.Sequence(datasets.Sequence(datasets.Value("float32"))),
                    "category": datasets.Sequence(datasets.Value("int64")),
                },
            }
        ),
    )


def numbers(dataset: Any) -> list[int]:
    """The rows of an epoch, each by its first feature; every column of a row must be of that row."""
    found = []
    with DataLoader(dataset, 4, columns=COLUMNS, tuning=QUICK, bad=BadRecords(limit=None)) as loader:
        for batch in loader:
            assert batch["image"].shape[1:] == (3, 16, 16)
            rows = batch["x"][:, 0].long().tolist()
            assert batch["mask"] == [jpeg(n + 8, 24, 24) for n in rows]
            assert batch["grid"].tolist() == [[[n, 1], [2, 3]] for n in rows]
            assert batch["text"] == [f"number {n}" for n in rows]
            assert batch["label"].tolist() == [n % 3 for n in rows]
            assert [boxes.shape[1] for boxes in batch["boxes"]] == [4] * len(rows)
            assert batch["category"][:, 0].tolist() == rows
            found += rows
    return found


def test_every_column_is_a_member() -> None:
    """Of a dataset as it is; a null costs its slot where it was asked for."""
    assert numbers(made()) == [0, 1, 2, 3, 4, 6, 6, 7]


def test_rows_are_the_datasets() -> None:
    """Selected, shuffled, formatted, or a Subset of it."""
    assert numbers(made().select([7, 2, 0, 3])) == [7, 2, 0, 3]
    assert numbers(made().with_format("numpy", columns=["label"]).select(range(4))) == [0, 1, 2, 3]
    assert numbers(Subset(made(), [3, -1, 1, 1])) == [3, 7, 1, 1]


def test_a_dataset_of_text_alone() -> None:
    """No image is needed."""
    texts = datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(COUNT)]})
    tokens = Tokens("text", lambda text: [ord(c) for c in text], 6)
    with DataLoader(texts, COUNT, columns=[tokens], tuning=QUICK) as loader:
        ((found,),) = loader
    assert found.ids[:, 5].tolist() == [ord(str(n)) for n in range(COUNT)]


def test_what_cannot_be_read_is_told() -> None:
    """A function as its transform, an iterable one, a name that is none."""
    for odd, why in ((made().with_transform(lambda row: row), "function"), (made().to_iterable_dataset(), "iterable")):
        with pytest.raises(ConfigError, match=rf"^columns: torch's own DataLoader runs this dataset, because .*{why}"):
            DataLoader(odd, 2, columns=COLUMNS)
    with pytest.raises(ConfigError, match="member 'captoin': no record has it; found .* Did you mean 'caption'"):
        DataLoader(made(), 2, columns=[Text("captoin")])
