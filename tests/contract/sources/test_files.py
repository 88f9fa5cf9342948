"""FileList: one image per file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from kit.blocks import Reads, reasons
from kit.images import QUICK, jpeg
from kit.inside import Block, Feed

from dali_feed import BadRecords
from dali_feed.errors import SourceEmptyError, SourceError, SourceNotFoundError
from dali_feed.external_sources import FileList

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


def read_all(source: FileList) -> tuple[list[bytes], Block]:
    """The block of all positions, images as bytes."""
    reader = Reads(source)
    block = reader.first(len(source))
    payloads = [bytes(view or b"") for view in block.values["image"]]
    block.lease.release()
    reader.close()
    assert reader.pool.leased == 0
    return payloads, block


def labels_of(source: FileList) -> list[int]:
    """The labels of a source that has some."""
    assert source.labels is not None
    labels: list[int] = source.labels.tolist()
    return labels


def test_a_link_that_leads_back_is_not_followed(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To the folder itself, to its class and through another folder: the log has it, and the list is as without it."""
    without = FileList.from_folder(tree)
    (tree / "dog" / "all").symlink_to(tree)
    (tree / "dog" / "a" / "up").symlink_to("..")
    (tree.parent / "elsewhere" / "eel").symlink_to(tree / "eel")
    found = FileList.from_folder(tree)
    assert (found.paths, labels_of(found)) == (without.paths, labels_of(without))
    first = str(tree / "dog" / "a" / "up")
    assert [record.args for record in caplog.records] == [(str(tree), 4, first, os.path.realpath(tree / "dog"))]
    (tree / "loop").symlink_to(tree)
    with pytest.raises(SourceEmptyError, match="found none for loop"):
        FileList.from_folder(tree)


def test_a_file_that_cannot_be_read_costs_its_own_row(tree: Path) -> None:
    """Missing, a folder, a pipe, a broken link, a name that no file can have: each is a reason, the rest is whole."""
    os.mkfifo(tree / "pipe.jpg")
    (tree / "broken.jpg").symlink_to(tree / "void")
    (tree / "empty.jpg").touch()
    names = [
        "dog/a.png",
        "gone.jpg",
        "dog",
        "pipe.jpg",
        "broken.jpg",
        "nul\0.jpg",
        "Cat/1.tif/x",
        "empty.jpg",
        "dog/b.JPG",
    ]
    payloads, block = read_all(FileList([f"{tree}/{n}" for n in names], range(9)))
    assert payloads == [b"dog a", *[b""] * 7, b"dog b"]
    assert block.values["label"].tolist() == list(range(9))
    faults = reasons(block)
    assert sorted(faults) == [1, 2, 3, 4, 5, 6]
    assert faults[1] == faults[4] == "the file cannot be opened: No such file or directory"
    assert "folder" in faults[2]
    assert "regular" in faults[3]
    assert "null" in faults[5]
    assert "Not a directory" in faults[6]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("empty", [1, 3])
def test_empty_files_that_come_first_are_bad_records(tmp_path: Path, shuffle: bool, empty: int) -> None:
    """Files of no bytes at the head of a folder, before any memory has been asked for, cost their slots."""
    paths = [tmp_path / f"{k}.jpg" for k in range(8)]
    for k, path in enumerate(paths):
        path.write_bytes(jpeg(k) if k >= empty else b"")
    payloads, block = read_all(FileList(paths[:empty]))
    assert (payloads, block.faults) == ([b""] * empty, {})
    with Feed(FileList(paths, range(8)), 4, shuffle=shuffle, bad=BadRecords(limit=None), tuning=QUICK) as feed:
        good = [label for batch in feed for label in batch.fields["label"][batch.ok].tolist()]
        assert sorted(good) == list(range(empty, 8))
        assert set(feed.stats().recent_bad) == {(str(path), "empty payload") for path in paths[:empty]}


def test_a_file_that_shrinks_while_it_is_read_is_a_fault(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row says so, rather than giving a payload whose end is another record's."""
    path = tree / "dog" / "a.png"
    real = os.preadv

    def shrinking(fd: int, views: tuple[memoryview], at: int) -> int:
        os.truncate(path, 2)
        return real(fd, views, at)

    monkeypatch.setattr(os, "preadv", shrinking)
    payloads, block = read_all(FileList([path]))
    assert payloads == [b""]
    assert reasons(block) == {0: "the file ended at byte 2 of 5 while it was read"}


def test_running_out_of_descriptors_is_not_a_files_fault(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It concerns every record, so it is raised, with the cure."""

    def full(*args: Any, **kwargs: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    reader = Reads(FileList.from_folder(tree))
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(SourceError, match="ulimit"):
        reader.first(1)
    assert reader.pool.leased == 0


def test_the_snapshot_tells_sizes_and_a_fingerprint_of_names_and_labels(tree: Path, tmp_path: Path) -> None:
    """It survives a move of the whole folder, and changes with a name, a label or the order."""
    source = FileList.from_folder(tree)
    snapshot = source.snapshot()
    assert (snapshot.record_bytes, len(snapshot), snapshot.random_access) == (5, len(source), True)
    tree.rename(tmp_path / "moved")
    with pytest.raises(SourceNotFoundError, match="none of the"):
        source.snapshot()
    moved = FileList.from_folder(f"{tmp_path}/moved/")
    assert moved.snapshot().fingerprint == snapshot.fingerprint
    paths, labels = moved.paths, labels_of(moved)
    listed = FileList(paths, labels).snapshot().fingerprint
    assert listed == snapshot.fingerprint
    others = [
        FileList(paths[::-1], labels),
        FileList(paths, labels[::-1]),
        FileList(paths),
        FileList(paths[1:], labels[1:]),
    ]
    assert len({listed, *(other.snapshot().fingerprint for other in others)}) == 5
    (tmp_path / "moved" / "dog" / "a.png").unlink()  # one file less to look at is no reason to stop
    assert len(moved.snapshot()) == len(paths)


def test_a_folder_is_listed_as_image_folder_lists_it(tree: Path) -> None:
    """Paths, labels and classes equal torchvision's, with its extensions and with others."""
    datasets = pytest.importorskip("torchvision.datasets")
    theirs = datasets.ImageFolder(str(tree))
    mine = FileList.from_folder(tree)
    assert list(zip(mine.paths, labels_of(mine), strict=True)) == theirs.samples
    assert mine.classes is not None
    assert list(mine.classes) == theirs.classes
    theirs = datasets.DatasetFolder(str(tree), loader=str, extensions=(".jpg", ".bmp"))
    mine = FileList.from_folder(tree, extensions=(".jpg", ".bmp"))
    assert list(zip(mine.paths, labels_of(mine), strict=True)) == theirs.samples
