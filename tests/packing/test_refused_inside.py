"""Insides that contract/packing/test_refused.py needs not: they go with what they test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.images import jpeg
from kit.member_shards import shards

from dali_feed.errors import ConfigError, FormatError, StateError
from dali_feed.external_sources import FileList
from dali_feed.packing import convert, pack
from dali_feed.packing.keys import keys_of
from dali_feed.packing.rows import as_file, ending_of
from dali_feed.packing.runner import WorkFolder
from dali_feed.packing.sinks import MdsColumns, columns_of, example_bytes, shard_bytes


def told(done: Any) -> str:
    """Every failure with its place."""
    return "\n".join(first for kind in done.tally.failures.values() for first in kind.first)


def test_one_process_packs_a_set(tmp_path: Path) -> None:
    """Another that is at it is found by its lock, and waits for nobody."""
    source = shards(tmp_path, 2)
    (tmp_path / "out").mkdir()
    with (
        WorkFolder(tmp_path / "out", "x").held(),
        pytest.raises(ConfigError, match="one process at a time may pack the set"),
    ):
        pack(source, tmp_path / "out" / "x.dfset")


@pytest.mark.parametrize("borders", [[0], [1, 2], [0, 3, 3], "none", None])
def test_a_plan_that_is_damaged_is_named(borders: object, tmp_path: Path) -> None:
    """A set under way whose plan is no plan is a state that cannot be gone on with."""
    source = shards(tmp_path, 4)
    (tmp_path / "new").mkdir()
    work = WorkFolder(tmp_path / "new", "x")
    with work.held():
        work.begin({"name": "x", "borders": borders, "fallback": "bin"})
    with pytest.raises(StateError, match="an unfinished set must have its plan"):
        pack(source, tmp_path / "new" / "x.dfset")


def test_a_path_in_no_encoding_is_a_bad_record(tmp_path: Path) -> None:
    """A file's name that is no UTF-8 has no place in a column of text; the other files are converted."""
    for name in (b"a.jpg", b"b\xff.jpg"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(jpeg(0))
    source = FileList(sorted(map(str, tmp_path.glob("*.jpg"))))
    for to in ("mds", "tfrecord"):
        done = convert(source, tmp_path / to, to, members={"image": "bytes", "name": "path"})
        assert (done.tally.records, done.tally.failed) == (1, 1), told(done)
        assert "'name'" in told(done)
    assert keys_of(source, "auto").told == "number"  # and no sample is called by it
    with pytest.raises(ConfigError, match='keys="own": records of .* have no names, or the same names'):
        keys_of(source, "own")


@pytest.mark.parametrize(
    ("head", "ending"),
    [
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
        (b"\0\0\0\x1cftypavif", "avif"),
        (b"\0\0\0\x1cftypavis", "avif"),
        (b"??", None),
    ],
)
def test_a_payload_is_called_by_what_it_begins_with(head: bytes, ending: str | None) -> None:
    """Of kinds whose mark stands behind a size too."""
    assert ending_of(head) == ending


def test_values_become_files_by_their_kind() -> None:
    """Texts, numbers, rows of numbers and what else JSON holds; what it does not hold is told with its member."""
    assert as_file("a text", "é", None, False, "bin") == ("a_text.txt", "é".encode())
    assert as_file("txt", "x", None, False, "bin") == ("txt", b"x")
    assert as_file("names", ["a", None], None, False, "bin") == ("names.json", b'["a", null]')
    assert as_file("n", np.float32(0.5), None, False, "bin") == ("n.txt", b"0.5")
    with pytest.raises(FormatError, match="member 'odd': Object of type set is not JSON serializable"):
        as_file("odd", {1}, None, False, "bin")


def test_what_a_column_of_mds_cannot_hold() -> None:
    """No column at all, a value without an encoding, JSON of bytes, text of half a pair, a shard of 4 GiB."""
    with pytest.raises(FormatError, match="a sample of an MDS set has columns; found none"):
        columns_of({}, pictures=True)
    with pytest.raises(FormatError, match=r"column 'x': MDS has no encoding for list of <U1 and shape \(2,\)"):
        columns_of({"x": ["a", "b"]}, pictures=True)
    columns = columns_of({"j": {"a": 1}, "s": "a"}, pictures=True)
    assert columns.sample({"j": {"b": [1]}, "s": "é"}).endswith(b'{"b": [1]}\xc3\xa9')
    for values in ({"j": {"a": b"1"}, "s": "a"}, {"j": {"a": 1}, "s": "\ud800"}):
        with pytest.raises(FormatError, match=r"column '[js]': "):
            columns.sample(values)
    with pytest.raises(FormatError, match="feature 's': "):
        example_bytes({"s": "\ud800"})

    class Huge(bytes):
        """Says that it is as large as no shard may be."""

        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(ConfigError, match=r"a shard has less than 4 GiB; .* give a smaller shard size"):
        shard_bytes(MdsColumns(("a",), ("bytes",)), [Huge()], 1)
