"""What sources of records in files share, whatever the file is: TFRecord, MDS, RecordIO."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.blocks import Reads, columns_of, pictures, reasons, rows
from kit.by_others import written_to
from kit.images import QUICK, jpeg, text
from kit.inside import write_shard
from kit.record_files import make, tfrecord
from kit.resumes import assert_resumes_in_turn
from kit.written import example_bytes
from torchvision.transforms import v2

from dali_feed import DataLoader, Shuffle
from dali_feed.columns import Array, Bytes, Image, JsonValue, Number, Text
from dali_feed.errors import (
    ConfigError,
    DataLostError,
    SourceEmptyError,
    SourceError,
)
from dali_feed.external_sources import MDS, RecordIO, ShardSet, TFRecords

pytestmark = pytest.mark.usefixtures("cache_home")


KINDS = ("tfrecord", "mds", "recordio")
each = pytest.mark.parametrize("kind", KINDS)
CROP = v2.Compose([v2.RandomResizedCrop(16, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])


@each
def test_pixels_and_labels_are_those_of_the_same_images_in_tar(kind: str, tmp_path: Path) -> None:
    """In the same order."""
    images = [jpeg(n) for n in range(5)]
    write_shard(tmp_path / "a.tar", [(image, n) for n, image in enumerate(images)])
    batches = []
    for source in (ShardSet(tmp_path / "a.tar"), make(kind, tmp_path, images, 3)):
        with DataLoader(source, 5, tuning=QUICK, device="cpu") as loader:
            batches += list(loader)
    (pixels, labels), (others, same) = batches
    assert torch.equal(pixels, others)
    assert labels.tolist() == same.tolist() == list(range(5))


@each
@pytest.mark.parametrize("shuffle", [True, Shuffle(4, 2)], ids=["uniform", "windows"])
def test_resumes_anywhere(kind: str, shuffle: bool | Shuffle, tmp_path: Path) -> None:
    """Files of unequal lengths, one record that is no image; of a TFRecord one whose CRC is wrong, too."""
    source = make(kind, tmp_path, [*(jpeg(n, 16 + n % 3 * 4) for n in range(19)), text()], 13)
    if kind == "tfrecord":
        _flip(tmp_path / "s-0.tfrecord", 2000)
        assert [row[2] for row in pictures(source)].count(
            "the record's CRC is wrong: its bytes are not what was written"
        ) == 1
    assert_resumes_in_turn(source, transform=CROP, shuffle=shuffle, positions=3, absent=0)


def test_columns_resume_anywhere(tmp_path: Path) -> None:
    """Images and numbers by the names of features."""
    columns = {"image": Image("image/encoded", v2.Resize((8, 8))), "n": Number("image/class/label")}
    assert_resumes_in_turn(make("tfrecord", tmp_path), columns=columns, positions=2, world_sizes=(2,), absent=0)


@each
def test_any_flipped_byte_and_any_cut(kind: str, tmp_path: Path) -> None:
    """Give an error that names the file, faults, or the records as they were: other bytes only without a checksum."""
    wanted = pictures(make(kind, tmp_path, [b"abcdef", b"", b"0123"], 2))
    path = next(iter(sorted([*tmp_path.glob("s-0.*"), *tmp_path.glob("mds/*0.mds")])))
    whole = path.read_bytes()
    outcomes = set()
    for harm in [(at, bytes([whole[at] ^ 1 << at % 8])) for at in range(len(whole))] + [
        (at, None) for at in range(1, len(whole))
    ]:
        at, byte = harm
        path.write_bytes(whole[:at] + byte + whole[at + 1 :] if byte is not None else whole[:at])
        try:
            source = MDS(tmp_path / "mds") if kind == "mds" else make_again(kind, tmp_path)
            found = pictures(source)
        except SourceError as error:
            assert path.name in str(error), harm
            outcomes.add("error")
            continue
        assert byte is not None or kind == "recordio" or len(found) < len(wanted), harm  # cut between two records
        if kind == "tfrecord":
            assert all(row[2] or row in wanted for row in found), harm
            outcomes.add("fault" if any(row[2] for row in found) else "fewer")
    assert "error" in outcomes
    assert kind != "tfrecord" or outcomes == {"error", "fault", "fewer"}


def make_again(kind: str, folder: Path) -> Any:
    """The source of the files that are there."""
    if kind == "recordio":
        return RecordIO(str(folder / "s-*.rec"), index_dir=folder / "index")
    return TFRecords(
        str(folder / "s-*.tfrecord"), index_dir=folder / "index", image="image/encoded", label="image/class/label"
    )


def test_what_other_libraries_wrote_is_read_right(tmp_path: Path) -> None:
    """TensorFlow's, Mosaic's and MXNet's own writers, every kind of value that they have."""
    written_to(tmp_path)
    examples = TFRecords(tmp_path / "tensorflow.tfrecord")
    assert [row[1:] for row in pictures(examples)] == [(-1, None), (0, None), (1, None)]
    columns: Any = {
        "image": Image("image/encoded"),
        "bbox": Array("image/object/bbox"),
        "text": Text("text"),
    }
    with DataLoader(examples, 3, columns=columns, tuning=QUICK, device="cpu") as loader:
        (batch,) = loader
    assert batch["image"].shape == (3, 3, 8, 8)
    assert batch["bbox"].tolist() == [[0.25, 0.5, n + 0.5] for n in range(3)]
    assert batch["text"] == [f"é {n}" for n in range(3)]
    assert [row["ids[]"] for row in rows(examples, "ids[]")] == [list(range(-1, 9 * n)) for n in range(3)]

    streaming = MDS(tmp_path / "mds")
    columns = {name: Array(name) for name in "xab"} | {
        name: Number(name, "float64") for name in ("id", "f", "i", "big", "d")
    }
    columns |= {"image": Image("image"), "n": Number("label"), "caption": Text("caption"), "meta": JsonValue("meta")}
    with DataLoader(streaming, 3, columns=columns, tuning=QUICK, device="cpu") as loader:
        (batch,) = loader
    assert batch["image"].shape == (3, 3, 8, 8)
    assert batch["x"].tolist() == [[n, n + 1, n + 2] for n in range(3)]
    assert batch["a"].tolist() == [[[0, 1, 2], [3, 4, 5]]] * 3
    assert batch["b"].tolist() == [[[-n, -n], [-n, -n]] for n in range(3)]
    assert (batch["n"].tolist(), batch["meta"]) == ([-1, 0, 1], [{"n": n} for n in range(3)])
    assert batch["caption"] == [f"é {n}" for n in range(3)]
    numbers = [batch[name].tolist() for name in ("id", "f", "i", "big", "d")]
    assert numbers == [[0, 1000, 2000], [0, 0.25, 0.5], [0, -1, -2], [0, 0.125, 0.25], [1.5] * 3]

    mark = bytes.fromhex("0a23d7ce")
    mxnet = rows(RecordIO(tmp_path / "mxnet.rec"), "image", "label", "id")
    images = [b"abc", b"wxyz" + mark + b"tail", mark + mark + b"12345", b""]
    assert [row["image"] for row in mxnet] == images
    assert [row["label"] for row in mxnet] == [3.0, [1.5, -2.0], -1.0, 4.0]
    assert [row["id"] for row in mxnet] == [7, 8, 9, 10]


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


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


def test_several_files_are_named_by_a_pattern(tmp_path: Path) -> None:
    """In order; each once."""
    for n in range(3):
        (tmp_path / f"t-{n:05d}-of-00003").write_bytes(tfrecord([example_bytes({"image": b"abc", "label": n})]))
    made = TFRecords(str(tmp_path / "t-{00000..00002}-of-00003"))
    assert made.snapshot().names == tuple(f"t-{n:05d}-of-00003" for n in range(3))
