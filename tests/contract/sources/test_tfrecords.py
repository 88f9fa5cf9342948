"""TFRecord files: frames, CRCs, features that are asked for, and records that are something else."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from kit.blocks import Reads, columns_of, reasons
from kit.images import QUICK, jpeg
from kit.record_files import tfrecord
from kit.written import example_bytes

from dali_feed import DataLoader
from dali_feed.columns import Bytes, Image, Number
from dali_feed.errors import ConfigError, DataLostError, SourceEmptyError, SourceError
from dali_feed.external_sources import TFRecords


def source(folder: Path, records: list[Any], **options: Any) -> TFRecords:
    """A file of records: bytes, or features of an Example."""
    data = tfrecord(record if isinstance(record, bytes) else example_bytes(record) for record in records)
    (folder / "a.tfrecord").write_bytes(data)
    return TFRecords(folder / "a.tfrecord", index_dir=folder / "index", **options)


def block(found: Any, count: int) -> Any:
    """Its first records."""
    return Reads(found).first(count)


def test_a_record_whose_crc_is_wrong_is_a_bad_one(tmp_path: Path) -> None:
    """Alone; its neighbours are read."""
    made = source(tmp_path, [{"image": b"abc", "label": n} for n in range(3)])
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[len(data) // 2] ^= 32
    (tmp_path / "a.tfrecord").write_bytes(data)
    found = block(made, 3)
    assert reasons(found) == {1: "the record's CRC is wrong: its bytes are not what was written"}
    assert list(found.values["label"]) == [0, None, 2]


@pytest.mark.parametrize(
    ("data", "packed", "cure"),
    [
        (gzip.compress(tfrecord([b"abc"]), mtime=0), "GZIP", "compressed by GZIP; unpack it"),
        (zlib.compress(tfrecord([b"abc"])), "ZLIB", "compressed by ZLIB; unpack it"),
        (b"PK\3\4 and more of a file", "", "fetch or write the file again"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, data: bytes, packed: str, cure: str) -> None:
    """Is refused, with what compressed it where that can be said."""
    (tmp_path / "a.tfrecord").write_bytes(data)
    with pytest.raises(SourceError, match=cure) as caught:
        TFRecords(tmp_path / "a.tfrecord").snapshot()
    assert packed in str(caught.value)
    assert isinstance(caught.value, DataLostError) == (not packed)


def test_a_wrong_length_is_told_with_its_record(tmp_path: Path) -> None:
    """By the first one that is wrong, of whatever a later one seems to be."""
    whole = tfrecord([b"x" * 40] * 5000)  # more than are checked at once
    bad = bytearray(whole)
    bad[56 * 4500] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(bad)
    with pytest.raises(
        DataLostError, match=rf"a.tfrecord#4500: .* at byte {56 * 4500} of {56 * 5000}: a length whose CRC"
    ):
        TFRecords(tmp_path / "a.tfrecord", index_dir=tmp_path).snapshot()
    (tmp_path / "a.tfrecord").write_bytes(whole[:-1])
    with pytest.raises(DataLostError, match=r"a.tfrecord#4999: .*: 43 of 44 bytes of a record"):
        TFRecords(tmp_path / "a.tfrecord", index_dir=tmp_path).snapshot()
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(SourceEmptyError, match="found none in 1 file"):
        TFRecords(tmp_path / "a.tfrecord", index_dir=tmp_path).snapshot()


def test_features_are_found_by_the_names_that_people_use(tmp_path: Path) -> None:
    """The image and the label without being told; a label that is none is a bad record; a wrong name is told."""
    features = [{"jpg": jpeg(0), "label": n} for n in range(3)] + [{"jpg": jpeg(0), "label": [1, 2]}, {"jpg": jpeg(0)}]
    made = source(tmp_path, features)
    found = columns_of(made)
    assert [bytes(view) for view in found.values["image"].payloads[:3]] == [jpeg(0)] * 3
    assert found.values["label"].tolist()[:3] == [0, 1, 2]
    assert sorted(found.faults) == [3, 4]
    assert all("label" in fault.reason for fault in found.faults.values())
    assert tuple(source(tmp_path, features, label=None).preset) == ("image",)
    with pytest.raises(
        ConfigError, match=r"member 'lable': no record has it; found jpg, label. Did you mean 'label'\?"
    ):
        block(source(tmp_path, features, label="lable"), 1)
    with pytest.raises(ConfigError, match="without columns= a batch has images; found none"):
        block(source(tmp_path, [{"x": 1}]), 1)


def test_records_that_are_no_example(tmp_path: Path) -> None:
    """Bytes, which may be the image; or what another format reads; what it cannot read is a bad record."""
    raw = source(tmp_path, [jpeg(0), b"x"], format=None)
    assert [bytes(view) for view in block(raw, 2).values["image"]] == [jpeg(0), b"x"]
    assert (tuple(raw.preset), [member.name for member in raw.members()]) == (("image",), ["value"])
    with pytest.raises(ConfigError, match="member 'label': .*found none of that name"):
        Reads(raw, "label")
    texts = [json.dumps({"body": {"n": n}}).encode() for n in range(3)]
    made = source(tmp_path, [*texts, b"{"], format="json")
    with DataLoader(made, 3, columns={"n": Number("body.n")}, tuning=QUICK, device="cpu") as loader:
        assert next(iter(loader))["n"].tolist() == [0, 1, 2]
    found = Reads(made, "body.n").first(4)
    assert found.values["body.n"] == [0, 1, 2, None]
    assert list(found.faults) == [3]
    broken = source(tmp_path, [{"image": jpeg(0)}, b"\xff\xff"])
    assert [reason.startswith("example: ") for reason in reasons(block(broken, 2)).values()] == [True]


def test_a_feature_of_several_values_is_no_image(tmp_path: Path) -> None:
    """Its record is bad, with the name."""
    found = columns_of(source(tmp_path, [{"image": [b"a", b"b"]}, {"image": 3}, {"image": jpeg(0)}]))
    assert sorted(found.faults) == [0, 1]
    assert all(fault.member == "image" and "must be bytes" in fault.reason for fault in found.faults.values())
    columns = {"image": Image("image"), "n": Bytes("image")}
    assert DataLoader(source(tmp_path, [{"image": b"x"}]), 1, columns=columns, tuning=QUICK, device="cpu")


def test_a_path_is_no_source() -> None:
    """A loader that is given one says what to write."""
    with pytest.raises(ConfigError, match=r"For TFRecord files use TFRecords\('a.tfrecord'\)"):
        DataLoader("a.tfrecord", 1)


def test_several_files_are_named_by_a_pattern(tmp_path: Path) -> None:
    """In order; each once."""
    for n in range(3):
        (tmp_path / f"t-{n:05d}-of-00003").write_bytes(tfrecord([example_bytes({"image": b"abc", "label": n})]))
    made = TFRecords(str(tmp_path / "t-{00000..00002}-of-00003"))
    assert made.snapshot().names == tuple(f"t-{n:05d}-of-00003" for n in range(3))
    with pytest.raises(ConfigError, match="TFRecords: each file may be named once"):
        TFRecords([str(tmp_path / "t-*"), tmp_path / "t-00001-of-00003"])
    with pytest.raises(ConfigError, match="TFRecords: must name at least one file"):
        TFRecords([])
