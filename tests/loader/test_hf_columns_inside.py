"""Insides that contract/torch/test_hf_columns.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest
from kit.images import jpeg

from dali_feed.columns import Array, Text
from dali_feed.loader.hugging_face import hf_members
from dali_feed.testing import assert_resumes_anywhere

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

COUNT = 8


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


def test_it_resumes_anywhere() -> None:
    """As every source."""
    source = hf_members(made())
    assert source is not None
    assert not isinstance(source, str)
    columns = {"x": Array("features", "float32", (3,)), "text": Text("caption"), "grid": Array("grid", "int32", (2, 2))}
    assert_resumes_anywhere(source.source, columns=columns, lanes=4, world_sizes=(1, 2, 4), positions=2)
