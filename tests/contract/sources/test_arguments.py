"""What is no path, no label and no option is an error of ours that names the argument, as soon as it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dali_feed.errors import ConfigError
from dali_feed.external_sources import (
    MDS,
    Arrays,
    Claim,
    DeadLetterFolder,
    FileList,
    KafkaStream,
    KafkaTopic,
    RecordIO,
    ShardSet,
    Table,
    TFRecords,
)

ANY: dict[str, Callable[[Any], Any]] = {
    "ShardSet: shards": ShardSet,
    "TFRecords": TFRecords,
    "RecordIO": RecordIO,
    "MDS: folder": MDS,
    "FileList: paths": FileList,
    r"FileList\.from_folder: root": FileList.from_folder,
    "Table: files": Table,
    "Arrays": Arrays,
    r"DeadLetterFolder\(path=\.\.\.\)": DeadLetterFolder,
    r"Claim\(folder=\.\.\.\)": Claim,
}


@pytest.mark.parametrize("value", [None, 5])
@pytest.mark.parametrize("subject", ANY)
def test_what_is_no_path(subject: str, value: object) -> None:
    """As `os.environ.get("DATA")` gives it where DATA is not set."""
    with pytest.raises(ConfigError, match=rf"^{subject}.* must be (a path|given paths)"):
        ANY[subject](value)


@pytest.mark.parametrize("make", [ShardSet, TFRecords, FileList, Table])
def test_what_is_no_path_among_others(make: Any, tmp_path: Path) -> None:
    """In a list too."""
    with pytest.raises(ConfigError, match="must be a path; found None"):
        make([str(tmp_path / "a"), None])


@pytest.mark.parametrize("make", [KafkaTopic, KafkaStream])
@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("label", 3, "label must be a header's name"),
        ("label", "", "label must be a header's name"),
        ("label", b"label", "label must be a header's name"),
        ("codec", 5, "codec must be a function"),
        ("config", "a=b", "config must be a mapping .* found str"),
        ("claims", 5, "claims=: must be a path"),
    ],
)
def test_options_of_a_topic(make: Any, option: str, value: object, found: str) -> None:
    """Not as a bad record of each of its records, and without a broker."""
    with pytest.raises(ConfigError, match=found):
        make("t", "localhost:1", **{option: value})
