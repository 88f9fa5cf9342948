"""What sources of records in files share, whatever the file is: TFRecord, MDS, RecordIO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.blocks import pictures, rows
from kit.by_others import written_to
from kit.images import QUICK, jpeg, text
from kit.inside import write_shard
from kit.record_files import make
from torchvision.transforms import v2

from dali_feed import DataLoader, Shuffle
from dali_feed.columns import Array, Image, JsonValue, Number, Text
from dali_feed.errors import (
    SourceError,
    SourceNotFoundError,
)
from dali_feed.external_sources import MDS, RecordIO, ShardSet, TFRecords
from dali_feed.testing import assert_resumes_anywhere

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
    assert_resumes_anywhere(source, transform=CROP, shuffle=shuffle, positions=3, absent=0)


def test_columns_resume_anywhere(tmp_path: Path) -> None:
    """Images and numbers by the names of features."""
    columns = {"image": Image("image/encoded", v2.Resize((8, 8))), "n": Number("image/class/label")}
    assert_resumes_anywhere(make("tfrecord", tmp_path), columns=columns, positions=2, world_sizes=(2,), absent=0)


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


@each
def test_what_cannot_be_is_told(kind: str, tmp_path: Path) -> None:
    """Files that are not there."""
    source = make(kind, tmp_path)
    name = type(source).__name__
    with pytest.raises(SourceNotFoundError, match=f"{name}: |index.json"):
        type(source)(str(tmp_path / "none*"))


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
