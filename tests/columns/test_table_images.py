"""Several columns of images in a table, or in a dataset of Hugging Face's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from kit.images import QUICK, png
from PIL import Image as Pillow
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.columns import Image, Kind, Mask, Number, Text
from dali_feed.external_sources import ArrowRows
from dali_feed.feed import Feed
from dali_feed.testing import assert_resumes_anywhere

COUNT = 9
CROP = v2.Compose([v2.RandomCrop(12), v2.RandomHorizontalFlip()])
COLUMNS: dict[str, Kind] = {
    "before": Image("before", CROP),
    "after": Image("after", CROP, draws="before"),
    "text": Text("text"),
    "label": Number("label"),
}


def pairs(folder: Path) -> dict[str, list[Any]]:
    """Images before as bytes and after as files, both the same; texts and numbers."""
    for n in range(COUNT):
        (folder / f"{n}.png").write_bytes(png(n, 20 + n, 30))
    return {
        "before": [png(n, 20 + n, 30) for n in range(COUNT)],
        "after": [{"bytes": None, "path": str(folder / f"{n}.png")} for n in range(COUNT)],
        "text": [f"pair {n}" for n in range(COUNT)],
        "label": list(range(COUNT)),
    }


def table(whole: dict[str, list[Any]]) -> pa.Table:
    """As Hugging Face's datasets keep images."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table(whole | {"after": pa.array(whole["after"], image)})


def test_a_table_of_pairs_resumes_anywhere(tmp_path: Path) -> None:
    """One image lies in the table, one in a file."""
    source = ArrowRows(table(pairs(tmp_path)), "before")
    assert_resumes_anywhere(source, columns=COLUMNS, lanes=4, world_sizes=(1, 2, 4), positions=2, absent=0)


def test_a_fingerprint_knows_both_images(tmp_path: Path) -> None:
    """A table with one other second image is another source."""
    whole = pairs(tmp_path)
    one = ArrowRows(table(whole), "before").snapshot().fingerprint
    whole["after"][4]["path"] += ".old"
    assert ArrowRows(table(whole), "before").snapshot().fingerprint != one


def test_a_dataset_of_hugging_faces_with_two_images(tmp_path: Path) -> None:
    """With columns= each of them is a member; what no column is made from is not looked at."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "before": datasets.Image(),
            "after": datasets.Image(),
            "text": datasets.Value("string"),
            "label": datasets.Value("int32"),
            "odd": datasets.Sequence(datasets.Value("int32")),
        }
    )
    whole = pairs(tmp_path)
    whole["before"] = [{"bytes": encoded, "path": None} for encoded in whole["before"]]
    dataset = datasets.Dataset.from_dict(whole | {"odd": [[1]] * COUNT}, features=features)
    mask = {"mask": Mask("gray", of="after")}
    gray = [{"bytes": encoded, "path": None} for encoded in map(_gray, range(COUNT))]
    dataset = dataset.add_column("gray", gray, feature=datasets.Image())
    part = torch.utils.data.Subset(dataset, list(range(1, COUNT)))
    with DataLoader(part, 4, columns=COLUMNS | mask, tuning=QUICK, shuffle=True) as loader:
        assert isinstance(loader._feed, Feed)
        batches = list(loader)
    assert sorted(n for batch in batches for n in batch["label"].tolist()) == list(range(1, COUNT))
    for batch in batches:
        assert batch["text"] == [f"pair {n}" for n in batch["label"].tolist()]
        assert torch.equal(batch["before"], batch["after"])
        assert torch.equal(batch["mask"], batch["after"][:, 0])


def _gray(n: int) -> bytes:
    """The red of image n as a picture of its own."""
    out = io.BytesIO()
    Pillow.open(io.BytesIO(png(n, 20 + n, 30))).convert("RGB").getchannel(0).save(out, "PNG")
    return out.getvalue()
