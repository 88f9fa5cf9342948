"""The screen against PIL's sizes, the decoders' own parsers, and bytes of every bad kind."""

from __future__ import annotations

import functools
import io
import math
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hostile import JPEG, LZW, RAW, rle, tiff
from hypothesis import example, given
from hypothesis import strategies as st
from kit.kinds import gifs, opened, saved, slow_jpeg
from kit.properties import examples
from nvidia import nvimgcodec
from PIL import Image
from zoo import big_endian_tiff, chunk, zoo

from dali_feed.engines.host.decode import decoded, new_decoder
from dali_feed.screen import pillow
from dali_feed.screen.header import Header, UnusableError
from dali_feed.screen.png import MAX_CHUNKS
from dali_feed.screen.screen import MAX_PIXELS, header_of, screen, turned


def verdict(payload: bytes) -> tuple[int, int] | str:
    """Height and width by `header_of`, or its reason."""
    try:
        header = header_of(payload)
    except UnusableError as error:
        return str(error)
    return header.height, header.width


def screened(payloads: list[bytes]) -> list[tuple[int, int] | str]:
    """What `screen` says of each, in the form of `verdict`."""
    result = screen([memoryview(payload) for payload in payloads], 1 << 62)
    assert result.sizes.dtype == np.int32
    assert all(not result.sizes[row].any() for row in result.reasons)
    sizes = [(int(height), int(width)) for height, width in result.sizes]
    return [result.reasons.get(row, size) for row, size in enumerate(sizes)]


def patched(name: str, at: int, value: bytes) -> bytes:
    """A good file with some bytes replaced; a PNG's IHDR gets its checksum anew."""
    file = bytearray(zoo()[name])
    file[at : at + len(value)] = value
    if name.startswith("png"):
        struct.pack_into(">I", file, 29, zlib.crc32(file[12:29]))
    return bytes(file)


def frame_at(file: bytes) -> int:
    """Where a baseline JPEG's frame header starts."""
    return file.index(b"\xff\xc0\x00\x11\x08")


def with_segment(segment: bytes) -> bytes:
    """The small JPEG with a segment in front of the others."""
    return zoo()["jpeg"][:2] + segment + zoo()["jpeg"][2:]


PNG, TEXT = b"\x89PNG\r\n\x1a\n", chunk(b"tEXt", b"")
HEAD, INDEXED = (chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, colour, 0, 0, 0)) for colour in (0, 3))
IDAT = chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


def bad() -> dict[str, tuple[bytes, str]]:
    """Payloads no decoder may see, and what their reason must say."""
    jpeg, png, webp = zoo()["jpeg"], zoo()["png rgb"], zoo()["webp lossy"]
    frame = frame_at(jpeg)
    scan = jpeg.index(b"\xff\xda\x00\x0c\x03")
    animated = io.BytesIO()
    Image.new("RGB", (8, 8)).save(animated, "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "empty": (b"", "empty payload"),
        "html": (b"<html>404 not found</html>", 'text, not an image (starts with "<html>40")'),
        "json": (b'\xef\xbb\xbf{"a": 1}', "text, not an image"),
        "text of words": (b"no image\n", 'text, not an image (starts with "no image")'),
        "text of lines": (b"error:\r\n404", 'text, not an image (starts with "error:\\r\\n")'),
        "wav": (b"RIFF\x24\0\0\0WAVEfmt " + bytes(20), "unknown format (starts with 52 49 46 46)"),
        "garbage": (bytes(range(200)), "unknown format (starts with 00 01 02 03)"),
        "avif": (b"\0\0\0\x20ftypavif" + bytes(50), "AVIF is not supported; decode it by a function of your own"),
        "heic": (b"\0\0\0\x20ftypheic" + bytes(50), "HEIC is not supported"),
        "bigtiff": (b"II+\0\x08\0\0\0" + bytes(50), "BigTIFF is not supported"),
        "jpeg of two bytes": (jpeg[:2], "JPEG cut off"),
        "jpeg head only": (jpeg[:200], "JPEG cut off"),
        "jpeg half": (jpeg[: scan + 60], "JPEG cut off: no end marker in its last 2048 bytes"),
        "jpeg without end marker": (jpeg[:-2], "no end marker"),
        "jpeg then garbage": (b"\xff\xd8\xff" + bytes(range(250)), "JPEG damaged"),
        "jpeg of no height": (patched("jpeg", frame + 5, b"\0\0"), "impossible size of 40x0"),
        "jpeg lossless": (patched("jpeg", frame + 1, b"\xc3"), "JPEG is lossless"),
        "jpeg arithmetic": (patched("jpeg", frame + 1, b"\xc9"), "JPEG is arithmetic-coded"),
        "jpeg hierarchical": (patched("jpeg", frame + 1, b"\xc5"), "JPEG is hierarchical"),
        "jpeg 12 bit": (patched("jpeg", frame + 4, b"\x0c"), "JPEG with 12 bits per sample"),
        "jpeg of 2 components": (patched("jpeg", frame + 9, b"\x02"), "JPEG with 2 components"),
        **{
            f"jpeg sampled {x}x{y}": (patched("jpeg", frame + 11, bytes([x << 4 | y])), f"sampling factors {x}x{y}")
            for x, y in ((0, 0), (0, 1), (1, 0), (1, 5), (5, 1))
        },
        "jpeg with two frames": (jpeg[:frame] + jpeg[frame : frame + 19] + jpeg[frame:], "two frames"),
        "jpeg with no marker behind stray bytes": (jpeg[:20] + bytes(70_000) + jpeg[20:], "where a marker should be"),
        "jpeg with a short exif segment": (
            with_segment(b"\xff\xe1\x00\x06Exif\0\0"),
            "segment e1 at byte 2 has length 6",
        ),
        "jpeg with a segment beyond its end": (
            b"\xff\xd8\xff\xfe\xff\xff" + jpeg[2:],
            "JPEG cut off: segment fe at byte 2 ends at 65539 of",
        ),
        "jpeg with a stray third byte": (jpeg[:2] + b"a" + jpeg[2:], "61 ff at byte 2, where a marker should be"),
        "jpeg with an inner start": (with_segment(b"\xff\xd8\x00\x04ab"), "marker d8 at byte 2 has no place"),
        "jpeg of fill bytes": (b"\xff\xd8" + b"\xff" * 200_000, "header segments"),
        "jpeg of segments": (b"\xff\xd8" + b"\xff\xfe\x00\x02" * 100_000 + jpeg[2:], "header segments"),
        "jpeg scan header cut by its own end marker": (jpeg[: scan + 12] + b"\xff\xd9", "no end marker"),
        "png half": (png[: len(png) // 2], "PNG cut off"),
        "png without IEND": (png[:-12], "PNG cut off: no IEND chunk"),
        "png of 3 bits": (patched("png rgb", 24, b"\x03"), "no such format"),
        "png rgb of 4 bits": (patched("png rgb", 24, b"\x04"), "no such format"),
        "png of colour type 1": (
            patched("png rgb", 25, b"\x01"),
            "no such format (bits 8, colour type 1, interlace 0)",
        ),
        "png checksum": (png[:16] + b"\x7f" + png[17:], "checksum"),
        "png of no width": (patched("png rgb", 16, bytes(4)), "impossible size of 0x31"),
        "png of two heads": (PNG + HEAD + HEAD + IDAT, "PNG damaged: chunk b'IHDR' of length 13 at byte 33"),
        "png of a short palette": (
            PNG + INDEXED + chunk(b"PLTE", b"1234") + IDAT,
            "PNG damaged: chunk b'PLTE' of length 4",
        ),
        "png of chunks": (PNG + HEAD + TEXT * MAX_CHUNKS + IDAT, f"PNG with more than {MAX_CHUNKS} chunks"),
        "png of no pixels": (PNG + HEAD + chunk(b"IEND", b""), "PNG damaged: no IDAT chunk"),
        "png of no palette": (PNG + INDEXED + IDAT, "PNG damaged: no PLTE chunk"),
        "webp half": (webp[: len(webp) // 2], "WebP damaged, or none that Pillow reads"),
        "webp without a key frame": (patched("webp lossy", 20, bytes([webp[20] | 1])), "WebP damaged, or none"),
        "webp animated": (animated.getvalue(), "WebP is animated"),
        "bmp of 2 bits": (patched("bmp", 28, b"\x02"), "BMP damaged, or none that Pillow reads: OSError"),
        "bmp core header": (patched("bmp", 14, b"\x10"), "OSError: Unsupported BMP header type (16)"),
        "tiff half": (tiff_with(273, 273, 40000), "TIFF cut off: image data up to byte 40035 of"),
        "tiff directory outside": (patched("tiff", 4, b"\xff\xff\xff\x7f"), "TIFF damaged"),
        "tiff without a width": (tiff_with(256, 65000, 1), "TIFF damaged: an image of Nonex5"),
        "tiff of doubles": (tiff_with(258, 258, 64), "unknown pixel mode (photometric 1, bits (64,), compression 1)"),
        "tiff of 7 samples": (tiff_with(277, 277, 7), "TIFF that Pillow does not read: "),
        "tiff of two tile widths": (tiff_with(278, 322, 16), "an image of 7x5 in strips or tiles of 16xNone"),
        "tiff of no rows": (tiff_with(278, 278, 0), "TIFF damaged: an image of 7x5 in strips or tiles of 7x0"),
        "pnm without a height": (b"P6 40 \n", "PNM damaged, or none that Pillow reads: ValueError: Reached EOF"),
        "pnm of comments": (b"P3\n" + b"#\n" * 2000 + b"1 1 255 0 0 0", "PNM with more than 1024 comments"),
        "pnm of level 70000": (b"P5 1 1 70000 \0\0", "maxval must be greater than 0 and less than 65536"),
    }


def tiff_with(tag: int, name: int, value: int) -> bytes:
    """The big-endian TIFF with a tag replaced."""
    file = big_endian_tiff()
    at = file.index(struct.pack(">HH", tag, 3), 10)
    return file[:at] + struct.pack(">HHIH", name, 3, 1, value) + file[at + 10 :]


def parsed(payload: bytes) -> tuple[int, int] | str:
    """Height and width by the parser that DALI uses, of what it is given; or by Pillow, of what that decodes.

    "?" where the first fails, which must not be; a reason where the second does, which costs the payload's slot.
    """
    plain = header_of(payload).plain or payload
    try:
        if plain[0] not in b"\xff\x89":
            height, width, _ = pillow.decode(memoryview(payload)).shape
            return height, width
        stream = nvimgcodec.CodeStream(plain)
        return stream.height, stream.width
    except RuntimeError:
        return "?"
    except UnusableError as error:
        return str(error)


@functools.cache
def decoder() -> Any:
    """DALI's decoder, on the CPU."""
    return new_decoder()


@pytest.mark.parametrize("name", zoo())
def test_good_files_have_the_size_that_pil_and_the_decoder_see(name: str) -> None:
    """A good file's size is that of PIL and of the decoder's parser, by both ways, and so are its pixels."""
    payload = zoo()[name]
    want = opened(payload)
    size = want.shape[:2]
    assert [verdict(payload), *screened([payload]), parsed(payload)] == [size] * 3
    assert header_of(payload).format == name.split(maxsplit=1)[0]
    found = decoded(decoder(), memoryview(header_of(payload).plain or payload), None)
    assert found.dtype == np.uint8
    assert np.array_equal(found, want) or name.endswith("16 bit")  # which Pillow cuts off


def test_a_file_that_contradicts_itself_is_taken_without_its_fault() -> None:
    """What `bad` has of it is refused for the part that is named."""
    for good in (INDEXED + chunk(b"PLTE", b"123"), HEAD + TEXT * 9):
        assert header_of(PNG + good + IDAT).height == 4
    with pytest.raises(UnusableError, match="truncated"):
        pillow.decode(memoryview(zoo()["bmp of os2"][:-4]))


@pytest.mark.parametrize("name", bad())
def test_bad_payloads_are_refused_with_their_reason(name: str) -> None:
    """A payload that could fail a decoder's parser has a reason that says what is wrong with it."""
    payload, reason = bad()[name]
    assert reason in str(verdict(payload))
    good = zoo()["jpeg"]
    assert screened([good, payload, good])[1:2] == [verdict(payload)]


def test_orientation_and_components_are_read() -> None:
    """EXIF orientation is found in all formats that carry it, and components are counted."""
    rotated = [zoo()[name] for name in ("jpeg exif", "jpeg icc", "png exif", "webp exif")]
    assert [header_of(payload).orientation for payload in rotated] == [6] * 4
    assert [verdict(payload) for payload in rotated] == [(31, 40)] * 4  # as stored
    turned = saved(Image.new("RGB", (40, 31)), "TIFF", tiffinfo={274: 6})
    assert header_of(turned).orientation == 1
    assert verdict(turned) == parsed(turned) == (40, 31)  # as Pillow turns it
    assert header_of(zoo()["jpeg"]) == Header("jpeg", 40, 31, 3)
    one, three = (
        ("jpeg gray", "png gray", "tiff gray", "pnm pgm"),
        ("png palette", "tiff palette", "webp lossy", "pnm ppm"),
    )
    assert [header_of(zoo()[name]).components for name in (*one, *three)] == [1] * 4 + [3] * 4
    clear = saved(Image.new("RGBA", (4, 4), (1, 2, 3, 4)), "WEBP", lossless=True)
    assert [header_of(payload).components for payload in (zoo()["jpeg cmyk"], zoo()["png rgba"], clear)] == [4] * 3


def test_images_that_are_turned_keep_their_reasons() -> None:
    """And what a decoder is given in place of some of them."""
    views = [memoryview(payload) for payload in (b"", zoo()["jpeg stray bytes"], zoo()["jpeg exif"])]
    found, upright = turned(screen(views), views), screen(views)
    assert (found.reasons, found.plain) == (upright.reasons, upright.plain)
    assert found.sizes.tolist() == [[0, 0, 1], [31, 40, 1], [40, 31, 6]]


def test_few_files_are_written_anew() -> None:
    """Those over which a decoder's parser stumbles: stray bytes, four colours without Adobe's mark, an animation."""
    anew = {name for name, payload in zoo().items() if header_of(payload).plain is not None}
    assert anew == {
        *("jpeg stray bytes", "jpeg stray zeros", "jpeg cmyk unmarked", "jpeg cmyk unmarked, stray"),
        *("png animated", "png animated beside its image"),
    }


USUAL = [
    "jpeg",
    "jpeg progressive",
    "jpeg optimized",
    "jpeg 4:4:4",
    "jpeg 4:2:2",
    "jpeg restarts",
    "jpeg 1x1",
    "jpeg comment",
]


@pytest.mark.parametrize("exif", [False, True], ids=["as stored", "turned"])
def test_ordinary_files_need_no_long_way(exif: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of JPEGs as most writers make them are looked up, also behind long metadata, and that none is turned."""
    long_way = {"jpeg exif": 6, "jpeg icc": 6} if exif else {}
    payloads = [zoo()[name] for name in (*USUAL, "jpeg exif", "jpeg icc", *USUAL)]
    views = [memoryview(payload) for payload in payloads]
    walked: list[bytes] = []

    def written_down(view: memoryview) -> Header:
        walked.append(bytes(view))
        return header_of(view)

    monkeypatch.setattr("dali_feed.screen.screen.header_of", written_down)
    found = turned(screen(views), views) if exif else screen(views)
    assert found.sizes[:2, :2].tolist() == [[31, 40]] * 2
    assert walked == [zoo()[name] for name in long_way]


@pytest.mark.parametrize(("edge", "good"), [(2048, True), (2064, False)])
def test_a_tiffs_tile_may_be_larger_than_its_image_within_a_bound(edge: int, good: bool) -> None:
    """A decoder makes room for whole tiles: of 2**22 pixels whatever the image has."""
    file = tiff(4, 4, bytes(16), 1, LZW, tile=(2048, edge))
    assert (header_of(file).width == 4) if good else f"tiles of 2048x{edge} pixels in an image of 16" in verdict(file)


@pytest.mark.parametrize(
    ("most", "samples", "levels"), [(65535, (0, 257, 65535), (0, 1, 255)), (1000, (0, 500, 1000), (0, 128, 255))]
)
def test_text_of_more_levels_than_a_byte_has_is_scaled(
    most: int, samples: tuple[int, ...], levels: tuple[int, ...]
) -> None:
    """The upper eight bits, as of samples that are no text."""
    file = f"P2 3 1 {most}\n{' '.join(map(str, samples))}\n".encode()
    assert pillow.decode(memoryview(file)).tolist() == [[[level] * 3 for level in levels]]


def test_planes_of_wide_samples_are_refused_where_pillow_reads_them_as_bytes() -> None:
    """Which is where they are not compressed."""
    file = tiff(16, 16, bytes(512), 4, RAW, "deep", rows=16, entries=[(284, 3, 1, 2)])
    assert header_of(file).width == 16
    with pytest.raises(UnusableError, match="TIFF with uncompressed planes of 16 bits, which Pillow reads as 8"):
        pillow.decode(memoryview(file))


def test_wide_samples_that_are_cut_off_are_counted_in_bytes() -> None:
    """Two each."""
    with pytest.raises(UnusableError, match="PNM cut off: 8 bytes of pixels are needed after byte 13; found 3"):
        pillow.decode(memoryview(b"P5 2 2 65535 abc"))


STRIPS_OF_16 = tiff(16, 8, bytes(16), 8, RAW)
PLANES = tiff(16, 16, bytes(256), 1, RAW, rows=16, kind="colour", entries=[(284, 3, 1, 2)])
JPEG_TILE = tiff(16, 16, slow_jpeg(16, 3), 1, JPEG, tile=(16, 16))


@pytest.mark.parametrize(
    ("payload", "work"),
    [
        (zoo()["bmp"], 0),  # a decoder in C, and no more than its pixels
        (rle(5, 3, b"\1a" * 15), pillow.PYTHON * (5 * (3 + pillow.DELTA) + len(rle(5, 3, b"\1a" * 15)))),
        (zoo()["pnm of text"], pillow.PYTHON * (3 * 2 + len(zoo()["pnm of text"]))),
        (zoo()["pnm pgm"], 0),
        (STRIPS_OF_16, 8 * pillow.STRIP + 8 * 16 + 8 * 16),  # strips, their bytes, and their pixels
        (PLANES, 3 * pillow.STRIP + 256 + 256),  # of which it names but one
        (JPEG_TILE, pillow.JPEG_STRIP + len(slow_jpeg(16, 3)) + 3 * 16 * 16),  # each scan goes over all pixels
    ],
    ids=["bmp", "bmp of runs", "pnm of text", "pnm", "tiff of strips", "tiff of planes", "tiff of a tile of scans"],
)
def test_the_work_that_decoding_takes_is_told_by_the_header(payload: bytes, work: int) -> None:
    """And what is more than a loader allows is refused, at the bound it is not."""
    assert header_of(payload).work == work
    if work:
        view = [memoryview(payload)]
        assert not screen(view, max_work=work).reasons
        assert "is more work than the limit of" in screen(view, max_work=work - 1).reasons[0]


def test_the_pixel_bound_holds_and_absent_rows_have_no_reason() -> None:
    """A header that announces 60000x60000 pixels is refused by the bound; None is skipped; a bound is exact."""
    jpeg = zoo()["jpeg"]
    bomb = patched("jpeg", frame_at(jpeg) + 5, struct.pack(">HH", 60000, 60000))
    result = screen([memoryview(bomb), None, memoryview(jpeg)])
    assert result.sizes.tolist() == [[0, 0], [0, 0], [31, 40]]
    assert result.reasons == {
        0: f"60000x60000 is 3600000000 pixels, more than the limit of {MAX_PIXELS}; see Decode(max_pixels=...)"
    }
    assert not screen([memoryview(jpeg)], 31 * 40).reasons
    assert 0 in screen([memoryview(jpeg)], 31 * 40 - 1).reasons
    assert screen([]).sizes.shape == (0, 2)


@pytest.mark.parametrize("name", ["jpeg", "jpeg progressive", "png rgb", "webp lossy"])
def test_every_cut_is_refused(name: str) -> None:
    """A file that ends early is refused wherever it ends, by both ways alike."""
    cuts = [zoo()[name][:end] for end in range(len(zoo()[name]))]
    verdicts = screened(cuts)
    assert all(isinstance(reason, str) for reason in verdicts)
    assert verdicts == [verdict(cut) for cut in cuts]


@pytest.mark.parametrize("name", ["bmp", "tiff big endian", "tiff lzw", "pnm ppm", "pnm pgm", "gif"])
def test_every_cut_is_refused_by_the_screen_or_the_decoder(name: str) -> None:
    """A file that Pillow decodes has its whole pixels wherever it is cut, or a reason."""
    payload = (zoo() | gifs())[name]
    whole = opened(payload)
    for end in range(0, len(payload), 1 + len(payload) // 400):
        try:
            found = pillow.decode(memoryview(payload[:end]))
        except UnusableError:
            continue
        assert np.array_equal(found, whole)
        assert end > len(payload) - 200


FILES = zoo() | gifs()
FILE, EDITS = st.sampled_from(sorted(FILES)), st.integers(1, 4)
NEAR, PLACE = st.sampled_from((40, 250, 700, 1 << 20)), st.integers(0, 1 << 20)
EDIT, BYTE = (
    st.sampled_from(("set", "set", "set", "out", "in", "off")),
    st.sampled_from((0, 1, 0xFF, 0xD9)) | st.integers(0, 255),
)
GONE, ODD = st.integers(1, 30), st.binary(max_size=20)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good file with a few bytes set, cut out, put in, or cut off, mostly near its start."""
    file = bytearray(FILES[draw(FILE)])
    for _ in range(draw(EDITS)):
        at = draw(PLACE) % (1 + min(len(file), draw(NEAR)))
        match draw(EDIT):
            case "set":
                file[at : at + 1] = bytes([draw(BYTE)])
            case "out":
                del file[at : at + draw(GONE)]
            case "in":
                file[at:at] = draw(ODD)
            case _:
                del file[at:]
    return bytes(file)


@examples(times=6)
@given(damaged())
@example(b"P5 2 2 5 abc")
def test_what_passes_is_parsed_by_the_decoder_with_the_same_size(payload: bytes) -> None:
    """Whatever a damaged file says, if it passes, the decoder's parser reads it and finds the same size.

    Or Pillow does, or says why not. What is too large for the screen does not pass: a damaged TIFF that said 2097152031
    pixels in a row made Pillow take all memory there was, and the process was killed.
    """
    found = verdict(payload)
    if isinstance(found, tuple) and math.prod(found) <= MAX_PIXELS:
        other = parsed(payload)
        assert other == found or (isinstance(other, str) and other != "?")


@examples(times=1.5)
@given(st.lists(damaged(), min_size=1, max_size=8))
def test_the_quick_way_and_the_long_way_agree(payloads: list[bytes]) -> None:
    """`screen` says of every row of a batch what `header_of` says of it alone."""
    assert screened(payloads) == [verdict(payload) for payload in payloads]


MAGICS = (
    *(b"", b"\xff\xd8", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"MM\0*", b"GIF89a"),
    *(b"RIFF\0\0\0\0WEBP", b"P6 ", b"P2 2 2 9 "),
)


@examples(times=5)
@given(st.sampled_from(MAGICS), st.binary(max_size=300))
def test_any_bytes_give_a_verdict(magic: bytes, rest: bytes) -> None:
    """No bytes whatever raise anything but UnusableError, nor anything at all from `screen`."""
    assert screened([magic + rest]) == [verdict(magic + rest)]
