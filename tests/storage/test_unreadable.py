"""Files that are there and cannot be read: a folder in a file's place, a link to itself, no right to read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.blocks import rows
from kit.denied import denied
from kit.images import jpeg

from dali_feed.errors import ConfigError, DaliFeedError, SourceDeniedError, SourceError
from dali_feed.external_sources import MDS, Arrays, DeadLetterFolder, FileList, RecordIO, ShardSet
from dali_feed.external_sources.files import LARGEST
from dali_feed.external_sources.kafka.produce import load_journal
from dali_feed.packing.sinks import write_shard
from dali_feed.storage.store import LOCAL


@pytest.mark.parametrize(("what", "cure"), [("pipe", "write it into a file"), ("folder", "name the files in it")])
@pytest.mark.parametrize(("source", "ending"), [(ShardSet, "tar"), (RecordIO, "rec"), (Arrays, "npy")])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, source: Any, ending: str, what: str, cure: str) -> None:
    """A pipe, as a shell makes of `<(zcat a.tar.gz)`, is not waited for, and a matched folder not read."""
    path = tmp_path / f"a.{ending}"
    os.mkfifo(path) if what == "pipe" else path.mkdir()
    with pytest.raises(SourceError, match=f"{path}: a shard must be a file, .* by position; found a {what}; {cure}"):
        source(str(tmp_path / f"*.{ending}")).snapshot()


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    """The system's own word stands in the error, for a look and for an opening."""
    (tmp_path / "loop").symlink_to("loop")
    path = str(tmp_path / "loop")
    for look in (LOCAL.stamp, LOCAL.open):
        with pytest.raises(SourceError, match=rf"{path}: a shard must be readable; found .* \(errno 40\)"):
            look(path)
    (tmp_path / "loop.dfset").symlink_to("loop.dfset")
    with pytest.raises(SourceDeniedError, match=r"loop.dfset: a manifest must be a file that can be read; found Too"):
        ShardSet(tmp_path / "loop.dfset")


def test_what_may_not_be_read_is_denied(tmp_path: Path) -> None:
    """Everything that is opened by its path says that it is a matter of rights, and names the place."""
    home = tmp_path / "home"
    home.mkdir()
    write_shard(home / "a.tar", [(jpeg(0), 1)])
    letters = DeadLetterFolder(home)
    reads: list[tuple[str, Callable[[], Any]]] = [
        ("a shard must be readable; found Permission denied", lambda: LOCAL.open(str(home / "a.tar"))),
        ("letters.jsonl: must be readable; found: Permission denied", lambda: list(letters.read())),
        ("the folder of an image set must be readable; found", lambda: FileList.from_folder(home)),
    ]
    for said, read in reads:
        with contextlib.suppress(DaliFeedError):
            read()  # what it imports is not to be denied
        with pytest.raises(SourceDeniedError, match=said), denied(home):
            read()


def test_a_file_that_may_not_be_written_is_an_option_that_cannot_be(tmp_path: Path) -> None:
    """A journal in a place that takes none; where there is just none yet, none is found."""
    assert load_journal(tmp_path / "none.journal") is None
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"file/j: a journal must be a file that can be read .*; found: Not"):
        load_journal(tmp_path / "file" / "j")


def test_a_file_that_is_larger_than_a_record_may_be_is_a_bad_one(tmp_path: Path) -> None:
    """Whose size is looked at, and nothing else."""
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", LARGEST + 1)  # a hole: it takes no room
    (row,) = rows(FileList([tmp_path / "large"]), "bytes")
    assert row == {"fault": f"a file of {LARGEST + 1} bytes; at most {LARGEST} are allowed"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shards": []}, "must name at least one shard; found none"),
        ({"shards": 3}, "must be the JSON that MDSWriter writes; found an object with a list of shards is needed"),
        ({"columns": [1]}, r"must describe MDS shards of version 2; found TypeError: columns \(1,\) of encodings"),
        ({"other": ["y"]}, r"all shards must have the same columns; found \('x',\) in shard 0 and \('y',\)"),
        ({"twice": True}, r"each shard may be named once; found .*a\.mds twice in index.json"),
    ],
)
def test_an_index_of_mds_that_contradicts_itself(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """What it must be, and what was found, before a shard is opened."""
    raw = {"basename": "a.mds", "bytes": 20, "hashes": {}}
    told = {"format": "mds", "version": 2, "compression": None, "raw_data": raw, "samples": 1}
    told |= {"column_names": change.get("columns", ["x"]), "column_encodings": ["str"], "column_sizes": [None]}
    shards = [told]
    if "other" in change:
        shards.append(told | {"column_names": change["other"], "raw_data": raw | {"basename": "b.mds"}})
    if "twice" in change:
        shards.append(told)
    (tmp_path / "index.json").write_text(json.dumps({"shards": change.get("shards", shards), "version": 2}))
    with pytest.raises((SourceError, ConfigError), match=said):
        MDS(tmp_path, label=None).snapshot()


def test_a_reader_opens_an_eighth_of_what_its_process_may() -> None:
    """With a limit of 200 descriptors 25 files, so that several readers have room."""
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (200, 200)); from dali_feed.storage.store import LOCAL as l"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code + "; print(l.most_open)"], capture_output=True, check=True)
    assert int(done.stdout) == 25
