"""Insides that contract/sources/test_files.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path

import pytest

from dali_feed.external_sources import files
from dali_feed.external_sources.files import FileList

TREE = {
    "dog/b.JPG": b"dog b",
    "dog/a.png": b"dog a",
    "dog/a b/z.jpeg": b"dog z",
    "dog/a/deep/y.webp": b"dog y",
    "dog/notes.txt": b"no image",
    "Cat/1.tif": b"cat 1",
    "Cat/10.bmp": b"cat 10",
    "Cat/2.ppm": b"cat 2",
    "loose.jpg": b"of no class",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small image folder with odd names, other files and a linked folder."""
    root = tmp_path / "images"
    for name, data in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.jpg").write_bytes(b"linked")
    (root / "dog" / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "eel").symlink_to(tmp_path / "elsewhere")
    return root


def labels_of(source: FileList) -> list[int]:
    """The labels of a source that has some."""
    assert source.labels is not None
    labels: list[int] = source.labels.tolist()
    return labels


def test_a_folder_is_listed_as_image_folder_lists_it(tree: Path) -> None:
    """Paths, labels and classes equal torchvision's, and so do its extensions."""
    folder = pytest.importorskip("torchvision.datasets.folder")
    datasets = pytest.importorskip("torchvision.datasets")
    assert files.IMG_EXTENSIONS == folder.IMG_EXTENSIONS
    theirs = datasets.ImageFolder(str(tree))
    mine = FileList.from_folder(tree)
    assert list(zip(mine.paths, labels_of(mine), strict=True)) == theirs.samples
    assert mine.classes is not None
    assert list(mine.classes) == theirs.classes
    theirs = datasets.DatasetFolder(str(tree), loader=str, extensions=(".jpg", ".bmp"))
    mine = FileList.from_folder(tree, extensions=(".jpg", ".bmp"))
    assert list(zip(mine.paths, labels_of(mine), strict=True)) == theirs.samples
