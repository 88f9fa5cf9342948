"""Insides that contract/sources/test_arrow_rows.py needs not: they go with what they test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.images import jpeg, png

from dali_feed.external_sources import ArrowRows

pa = pytest.importorskip("pyarrow")

IMAGES = [png(n) if n % 3 == 2 else jpeg(n) for n in range(20)]


def table(images: Any = IMAGES, **columns: Any) -> Any:
    """A table of images, numbers and texts, unless `columns` says otherwise."""
    count = len(images)
    beside = columns or {"label": list(range(count)), "text": [f"picture {n}" for n in range(count)]}
    return pa.table({"image": images, **beside})


def structs(values: list[Any], *parts: str) -> Any:
    """Images as Hugging Face's datasets keep them."""
    kinds = {"bytes": pa.binary(), "path": pa.string()}
    return pa.array(values, pa.struct([(name, kinds[name]) for name in parts or kinds]))


MAPPED = """
import sys, pyarrow as pa
from dali_feed.external_sources import ArrowRows
with pa.memory_map(sys.argv[1]) as file:
    print(ArrowRows(pa.ipc.open_file(file).read_all()).snapshot().fingerprint)
"""


def test_the_fingerprint_is_of_the_data(tmp_path: Path) -> None:
    """Equal in another process from a mapped file; another one for other rows, labels, texts, sizes or contents."""
    path = tmp_path / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=6)
    command = [sys.executable, "-P", "-c", MAPPED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    source = ArrowRows(table())
    assert done.stdout.strip() == source.snapshot().fingerprint
    labels, texts = list(range(20)), [f"picture {n}" for n in range(20)]
    turned = bytes([*IMAGES[4][:-3], IMAGES[4][-3] ^ 1, *IMAGES[4][-2:]])
    others = [
        ArrowRows(table(), rows=[*range(19), 18]),
        ArrowRows(table(), rows=range(19)),
        ArrowRows(table(), rows=range(19, -1, -1)),
        ArrowRows(table(label=labels[::-1], text=texts)),
        ArrowRows(table(label=labels, text=[*texts[:3], "PICTURE 3", *texts[4:]])),
        ArrowRows(table(label=labels)),
        ArrowRows(table([*IMAGES[:4], IMAGES[4] + b"\0", *IMAGES[5:]])),
        ArrowRows(table([*IMAGES[:4], turned, *IMAGES[5:]])),
        ArrowRows(table(label=[None, *labels[1:]], text=texts)),
    ]
    assert len({source.snapshot().fingerprint, *(other.snapshot().fingerprint for other in others)}) == 10
    folder = {"bytes": None, "path": "/a/data/7.jpg"}, {"bytes": None, "path": "/elsewhere/data/7.jpg"}
    one, other = (ArrowRows(pa.table({"image": structs([row])})) for row in folder)
    assert one._fingerprint() == other._fingerprint()
