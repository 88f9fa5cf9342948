"""Insides that contract/sources/test_record_files.py needs not: they go with what they test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kit.blocks import taken
from kit.images import jpeg, text
from kit.record_files import make, tfrecord

from dali_feed.cli.inspect import spread
from dali_feed.cli.members import members_of
from dali_feed.cli.targets import Access, sources
from dali_feed.cli.verify import verify
from dali_feed.errors import (
    SourceDeniedError,
)
from dali_feed.external_sources import file_source as kept_index
from dali_feed.external_sources.tfrecord import TFRECORD
from dali_feed.records import Extents

KINDS = ("tfrecord", "mds", "recordio")
each = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes that cannot lie beside a file lie here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_index_is_built_once_and_never_believed_blindly(tmp_path: Path) -> None:
    """Kept beside the file; flipped or cut anywhere it is built anew; a file of others of that name stays."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(tfrecord([b"abc", b"", b"x" * 50]))
    wanted = kept_index.load(str(path), TFRECORD)
    home = tmp_path / "a.tfrecord.dfidx"
    whole = home.read_bytes()
    never = replace(TFRECORD, frames=None)  # type: ignore[arg-type]
    assert kept_index.load(str(path), never).digest == wanted.digest
    for harmed in [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))] + [
        whole[:-8],
        b"",
    ]:
        home.write_bytes(harmed)
        found = kept_index.load(str(path), TFRECORD)
        assert (found.at.tolist(), found.size.tolist()) == (wanted.at.tolist(), wanted.size.tolist())
    home.write_bytes(b"somebody else's")
    assert kept_index.load(str(path), TFRECORD).digest == wanted.digest
    assert home.read_bytes() == b"somebody else's"
    assert kept_index.load(str(path), never).digest == wanted.digest  # from the user's cache
    (tmp_path / "file").touch()
    with pytest.raises(SourceDeniedError, match="index_dir=.* must be a folder that can be written"):
        kept_index.load(str(path), TFRECORD, tmp_path / "file")


@each
def test_verify_reads_it_and_counts(kind: str, tmp_path: Path) -> None:
    """The command line knows the kind by the name of the file or by the folder, and goes over every record."""
    made = make(kind, tmp_path, [*(jpeg(n) for n in range(6)), text()], 4)
    target = str(tmp_path / "mds") if kind == "mds" else str(tmp_path / f"s-*.{'rec' if kind == 'recordio' else kind}")
    (source,) = sources([target], Access(), check=True)
    assert type(source) is type(made)
    report = verify(source, source.snapshot(), readers=1)
    assert (report.records, report.failed, report.labelled) == (6, 1, 6)
    seen = {
        one.name.rpartition("/")[2]: (one.count, one.guess.text)
        for one in members_of(source, spread(source.snapshot(), 9), {}).members
    }
    assert (seen.get("encoded", seen.get("image")), seen["label"][0]) == ((7, "jpeg image"), 7)


@each
def test_the_foremost_known_member_counts(kind: str, tmp_path: Path) -> None:
    """A name that no record has makes room for the next, for images too, and one member may be asked for twice."""
    source = make(kind, tmp_path, [jpeg(n) for n in range(3)], 3)
    block = source.giving(
        "none;image;image/encoded", ("none;label;image/class/label", "label;image/class/label")
    ).reader()
    found = block.read(Extents.one(0, 0, 3))
    assert [taken(view) for view in found.payloads] == [jpeg(n) for n in range(3)]
    assert [list(map(int, values)) for values in found.fields.values()] == [[0, 1, 2]] * 2
    if kind != "tfrecord":  # protobuf copies
        assert np.shares_memory(np.asarray(found.payloads[0]), np.asarray(found.lease._slabs[0]))
