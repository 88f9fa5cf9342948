"""What a value becomes in tar files, TFRecords and MDS; who may pack; a set of a topic."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg
from kit.member_shards import shards
from kit.written import example_bytes as theirs
from kit.written import example_class
from PIL import Image

from dali_feed.errors import ConfigError, DataLostError, FormatError, StateError
from dali_feed.external_sources import FileList
from dali_feed.external_sources.replay import Replay
from dali_feed.packing import pack
from dali_feed.packing.changes import Decoded, OnImages, Reencode
from dali_feed.packing.rows import as_file, numbers_of
from dali_feed.packing.sinks import MdsColumns, _header, columns_of, encodings_of, example_bytes, shard_bytes
from dali_feed.packing.work import WorkFolder
from dali_feed.records.extents import Extents, Present, packed

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)


@given(
    st.dictionaries(
        st.text(max_size=9),
        st.binary(max_size=300) | INTS | FLOATS | st.lists(INTS, min_size=1) | st.lists(FLOATS, min_size=1),
    )
)
def test_examples_are_those_of_protocol_buffers(features: dict[str, Any]) -> None:
    """It reads what was meant, whatever the order; a single feature is its own, byte for byte."""
    assert example_class().FromString(example_bytes(features)) == example_class().FromString(theirs(features))
    for name, value in features.items():
        assert example_bytes({name: value}) == theirs({name: value})


ARRAY = np.zeros(3, np.float32)
FIRST = {"x": 1, "a": ARRAY, "j": {"a": 1}, "s": "a"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"x": 1}, "'a' is missing"),
        (FIRST | {"x": "1"}, "is int in this set"),
        (FIRST | {"a": np.zeros(4, np.float32)}, "is ndarray:float32:3 in this set"),
        (FIRST | {"x": 2**63}, "64 bits"),
        (FIRST | {"j": {"a": b"1"}}, "column 'j': "),
        (FIRST | {"s": "\ud800"}, "column 's': "),
        (FIRST | {"a": ["a", "b"]}, r"column 'a': MDS has no encoding for list of str, or lists of"),
    ],
)
def test_what_a_column_of_mds_cannot_hold(values: dict[str, Any], words: str) -> None:
    """It costs the sample, and is said with the column; what it holds is written as it is."""
    columns = columns_of([encodings_of(FIRST)])
    assert columns.sample(FIRST | {"j": {"b": [1]}, "s": "é"}).endswith(b'{"b": [1]}\xc3\xa9')
    with pytest.raises(FormatError, match=words):
        columns.sample(values)


def test_what_no_format_has_a_place_for() -> None:
    """A float that 32 bits cannot hold, a number above 64 bits, objects, no column at all, a shard of 4 GiB."""
    for value, words in (
        *((1e300, "fit in 32 bits"), (2**63, "64 bits with a sign"), ([None], "bytes, a text, or")),
        ("\ud800", "feature 'x': "),
    ):
        with pytest.raises(FormatError, match=words):
            example_bytes({"x": value})
    with pytest.raises(FormatError, match="a sample of an MDS set has columns; found none"):
        encodings_of({})
    with pytest.raises(FormatError, match="member 'odd': Object of type set is not JSON serializable"):
        as_file("odd", {1}, None, False, "bin")

    class Huge(bytes):
        """Says that it is as large as no shard may be."""

        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(ConfigError, match=r"a shard has less than 4 GiB; .* give a smaller shard size"):
        shard_bytes(MdsColumns(("a",), ("bytes",)), [Huge()], 1)


@pytest.mark.parametrize(
    ("name", "value", "file", "data"),
    [
        ("a text", "é", "a_text.txt", "é".encode()),
        ("txt", "x", "txt", b"x"),
        ("names", ["a", None], "names.json", b'["a", null]'),
        ("n", np.float32(0.5), "n.txt", b"0.5"),
        ("x", b"RIFF\0\0\0\0WEBPVP8 ", "x.webp", None),
        ("x", b"\0\0\0\x1cftypavif", "x.avif", None),
        ("x", b"\0\0\0\x1cftypavis", "x.avif", None),
        ("x", b"??", "x", None),
    ],
)
def test_values_become_files_by_their_kind(name: str, value: Any, file: str, data: bytes | None) -> None:
    """Texts, numbers, rows of numbers, what else JSON holds, and bytes by what they begin with."""
    assert as_file(name, value, None, False, "bin") == (file, value if data is None else data)


def test_a_member_of_8_gib_gets_its_size_from_a_pax_header() -> None:
    """What no octal field holds is said before the header, as tarfile reads it."""
    head = _header("big.bin", 9 << 30)
    (info,) = (tarfile.TarInfo.frombuf(head[:512], "utf-8", "strict"),)
    assert info.type == tarfile.XHDTYPE
    assert head[512:].startswith(b"19 size=9663676416\n")


def test_one_process_packs_a_set(tmp_path: Path) -> None:
    """Another that is at it is found by its lock, and waits for nobody."""
    source = shards(tmp_path, 2)
    (tmp_path / "out").mkdir()
    with (
        WorkFolder(tmp_path / "out", "x").alone(),
        pytest.raises(ConfigError, match="one process at a time may pack the set"),
    ):
        pack(source, tmp_path / "out" / "x.dfset")


def test_a_path_in_no_encoding_is_a_bad_record(tmp_path: Path) -> None:
    """A file's name that is no UTF-8 has no place in a column of text; the other files are converted."""
    for name in (b"a.jpg", b"b\xff.jpg"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(jpeg(0))
    source = FileList(sorted(map(str, tmp_path.glob("*.jpg"))))
    for to in ("mds", "tfrecord"):
        done = pack(source, tmp_path / to, to=to, members={"image": "bytes", "name": "path"})
        assert (done.tally.records, done.tally.failed) == (1, 1)
        assert all("'name'" in each.first[0] for each in done.tally.failures.values())
    with pytest.raises(ConfigError, match='keys="own": records of .* have no names, or the same names'):
        pack(source, tmp_path / "own", keys="own")


def test_images_are_made_smaller() -> None:
    """The shorter side is as long as asked for, the kind and the orientation stay; what is small is not enlarged."""
    made = Reencode(16, 90)
    for kind in ("JPEG", "PNG", "WEBP"):
        out, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (60, 40), (200, 10, 10)).save(out, kind, exif=exif)
        with Image.open(io.BytesIO(made(out.getvalue()))) as image:
            assert (image.format, image.size, image.getexif()[0x0112]) == (kind, (24, 16), 6)
    out = io.BytesIO()
    Image.new("P", (10, 10)).save(out, "PNG")
    assert made(out.getvalue()) == out.getvalue()
    with Image.open(io.BytesIO(Reencode(None, 5)(jpeg(3)))) as image, Image.open(io.BytesIO(jpeg(3))) as before:
        assert image.size == before.size
    assert len(Reencode(None, 5)(jpeg(3))) < len(Reencode(None, 95)(jpeg(3)))


def pin(starts: list[int], ends: list[int], present: Present | None = None) -> dict[str, Any]:
    """The pin of a topic that is nowhere."""
    told = {"topic": "t", "id": "", "starts": starts, "ends": ends, "extent": 4, "record_bytes": 10, "absent": 0.0}
    return told if present is None else told | {"present": packed(present, np.array(starts, np.int64))}


def test_a_set_of_a_topic_with_known_holes_deals_the_same_records() -> None:
    """Where the topic's snapshot knew which offsets hold a record, so does the set's; other pins are refused."""
    present = Present.of(Extents(np.array([0, 1]), np.array([11, 2]), np.array([13, 6])), 2)
    found = Replay.missing(pin([10, 0], [16, 6], present), [[1, 3, 4]])
    assert found.rows(np.array([0, 0, 0, 1, 1, 1]), np.array([10, 11, 13, 2, 3, 5])).tolist() == [
        -1, 0, -1, 2, -1, 4,
    ]  # fmt: skip
    snapshot = found.snapshot("set", np.array([5]))
    assert snapshot.present == present
    assert found.snapshot("set", np.array([5]), snapshot.pin).fingerprint == snapshot.fingerprint
    with pytest.raises(StateError, match="the pin must be of the stretch of t"):
        found.snapshot("set", np.array([5]), pin([10, 0], [16, 6]))
    with pytest.raises(DataLostError, match="must hold 5 records of its topic; found 4 samples"):
        found.snapshot("set", np.array([4]))


@pytest.mark.parametrize(
    ("value", "file"),
    [
        ([1, "a"], ("x.json", b'[1, "a"]')),
        ([True, "x"], ("x.json", b'[true, "x"]')),
        ([[1, 2, 3], [4, 5]], ("x.json", b"[[1, 2, 3], [4, 5]]")),
        ([2**63, -1], ("x.json", b"[9223372036854775808, -1]")),
        ([1.5, "a"], ("x.json", b'[1.5, "a"]')),
        ([1, [2]], ("x.json", b"[1, [2]]")),
        ([[2**63], [-1]], ("x.json", b"[[9223372036854775808], [-1]]")),
        ([[np.int64(1)], "a\0"], ("x.json", b'[[1], "a\\u0000"]')),
        (np.array(["a"], object), ("x.json", b'["a"]')),
        ([np.array(["a"]), [1]], ("x.json", b'[["a"], [1]]')),
    ],
)
def test_lists_stay_what_they_are(value: Any, file: tuple[str, bytes]) -> None:
    """Those that are no rows of numbers become JSON, and no number becomes a text or another number."""
    assert as_file("x", value, None, False, "bin") == file


@pytest.mark.parametrize("value", [[[1, 2], [3]], [1, "a"], [2**64], np.array(["a"], object)])
def test_no_json_under_a_suffix_of_arrays(value: Any) -> None:
    """The record fails, as no reader of .npy has it; under another suffix, and by its kind, it is JSON."""
    for suffix in ("npy", "boxes.NPY"):
        with pytest.raises(FormatError, match=rf"member 'x': a file \.{suffix} must hold an array of numbers; "):
            as_file("x", value, suffix, False, "bin")
    assert as_file("x", value, "x.txt", False, "bin")[1] == as_file("x", value, None, False, "bin")[1]
    assert as_file("x", [[1, 2], [3, 4]], "npy", False, "bin")[1][:6] == b"\x93NUMPY"


@pytest.mark.parametrize("value", [[0.5] * 1000, list(range(1000)), [[0.5, 1, 2, True]] * 250, [1, 2.5] * 500])
def test_lists_of_numbers_are_packed_without_a_step_for_each(value: Any) -> None:
    """They go into an array as they are; what is called for them does not grow with their length."""
    calls = list[str]()
    array = np.asarray(value)
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        packed_numbers = numbers_of(value)
    finally:
        sys.setprofile(None)
    assert packed_numbers is not None
    assert packed_numbers.dtype == array.dtype
    assert (packed_numbers == array).all()
    assert len(calls) < 50


def test_lists_of_bytes_are_no_numbers() -> None:
    """A tar has no file for them, nor MDS a column; a TFRecord has a list. Uneven lists are said to be that."""
    views = [memoryview(b"dog"), memoryview(b"cat")]
    with pytest.raises(FormatError, match="member 'x': a list of bytes has no file in a tar; name the members"):
        as_file("x", views, None, False, "bin")
    with pytest.raises(FormatError, match="column 'x': MDS has no encoding for list of memoryview"):
        encodings_of({"x": views})
    features = example_class().FromString(example_bytes({"x": views, "y": ["é", "b"]})).features.feature
    assert list(features["x"].bytes_list.value) == [b"dog", b"cat"]
    assert list(features["y"].bytes_list.value) == ["é".encode(), b"b"]
    with pytest.raises(FormatError, match="feature 'x': must be .*, not lists of different lengths; found list"):
        example_bytes({"x": [[1, 2], [3]]})
    with pytest.raises(FormatError, match="column 'x': .* for list of int, or lists of different lengths"):
        encodings_of({"x": [[1, 2], [3]]})


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    """A file of a picture."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_masks_keep_their_classes() -> None:
    """Beside a picture what has one channel is scaled without new values, in its mode; alone it is a picture."""
    classes = np.zeros((64, 64), np.uint8)
    classes[:, 32:], classes[30:34], classes[10:20, 5:40] = 20, 255, 7
    palette = Image.frombytes("P", (64, 64), classes.tobytes())
    palette.putpalette([k % 256 for k in range(768)])
    picture, gray = ("jpg", encoded(Image.new("RGB", (64, 64)), "JPEG")), encoded(Image.fromarray(classes), "PNG")
    change = OnImages(Reencode(24, 90))
    for mask in (gray, encoded(palette, "PNG")):
        mode = Image.open(io.BytesIO(mask)).mode
        files: Any
        for files in ([picture, ("seg.png", mask)], [("seg.png", mask), picture]):
            with Image.open(io.BytesIO(dict(change(files))["seg.png"])) as image:
                assert (image.mode, image.size, np.unique(np.asarray(image)).tolist()) == (
                    mode,
                    (24, 24),
                    [0, 7, 20, 255],
                )
    ((_, alone),) = change([("png", gray)])
    assert alone == Reencode(24, 90)(gray)
    assert len(np.unique(np.asarray(Image.open(io.BytesIO(alone))))) > 4


def test_pictures_of_several_images_are_encoded_again() -> None:
    """An MPO, as cameras write them, begins with a JPEG, which is what decoders read."""
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    several = encoded(image, "MPO", save_all=True, append_images=[image], quality=95)
    for change in (Reencode(None, 30), Reencode(32, 30)):
        assert change(several) == change(encoded(image, "JPEG", quality=95))


def test_gray_of_sixteen_bits_is_decoded_as_loaders_do() -> None:
    """Its upper eight bits, and not white from 255 on; what nobody knows white of is refused."""
    gray = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    for kind in ("TIFF", "PNG", "PPM"):
        pixels = np.frombuffer(Decoded()(encoded(Image.fromarray(gray), kind)).split(b"\n255\n", 1)[1], np.uint8)
        np.testing.assert_allclose(pixels.reshape(8, 8, 3)[..., 0], gray / 257, atol=1.1)
    with pytest.raises(FormatError, match="TIFF"):
        Decoded()(encoded(Image.fromarray(gray.astype(np.float32)), "TIFF"))
