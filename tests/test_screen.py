"""The screen against PIL's sizes, the decoder's own parser, and bytes of every bad kind."""

from __future__ import annotations

import functools
import io
import mmap
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from nvidia import nvimgcodec
from PIL import Image
from skimage import data

from dali_feed.screen import MAX_PIXELS, Header, UnusableError, header_of, screen

ICC = b"i" * 5000  # longer than what the quick way reads at once


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@functools.cache
def big_endian_tiff() -> bytes:
    """A gray 7x5 TIFF in Motorola order."""
    entries = ((256, 7), (257, 5), (258, 8), (259, 1), (262, 1), (273, 122), (277, 1), (278, 5), (279, 35))
    head = b"MM\0*" + struct.pack(">IH", 8, len(entries))
    return head + b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in entries) + bytes(4 + 35)


def chunk(name: bytes, body: bytes) -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def interlaced_png(gray: NDArray[np.uint8]) -> bytes:
    """A gray PNG in Adam7 order."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = [row for y, x, down, right in passes for row in gray[y::down, x::right]]
    head = struct.pack(">IIBBBBB", *gray.shape[::-1], 8, 0, 0, 0, 1)
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@functools.cache
def zoo() -> dict[str, bytes]:
    """Small good files of every kind that is taken."""
    colour = Image.fromarray(data.astronaut()[:93, :120]).resize((40, 31))  # type: ignore[no-untyped-call]
    gray, alpha = colour.convert("L"), colour.convert("RGBA")
    wide = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    pages = io.BytesIO()
    colour.save(pages, "TIFF", save_all=True, append_images=[gray])
    top_down = bytearray(encode(colour, "BMP"))
    struct.pack_into("<i", top_down, 22, -31)
    jpeg = encode(colour)
    return {
        "jpeg": jpeg,
        "jpeg progressive": encode(colour, progressive=True),
        "jpeg optimized": encode(colour, optimize=True),
        "jpeg gray": encode(gray),
        "jpeg cmyk": encode(colour.convert("CMYK")),
        "jpeg 4:4:4": encode(colour, subsampling=0),
        "jpeg 4:2:2": encode(colour, subsampling=1),
        "jpeg restarts": encode(colour, restart_marker_rows=1),
        "jpeg exif": encode(colour, exif=exif),
        "jpeg icc": encode(colour, icc_profile=ICC, exif=exif),
        "jpeg fill bytes": jpeg[:20] + b"\xff\xff" + jpeg[20:],
        "jpeg trailing junk": jpeg + bytes(1000),
        "jpeg 1x1": encode(colour.resize((1, 1))),
        "png rgb": encode(colour, "PNG"),
        "png rgba": encode(alpha, "PNG"),
        "png palette": encode(colour.convert("P"), "PNG"),
        "png gray": encode(gray, "PNG"),
        "png 1 bit": encode(colour.convert("1"), "PNG"),
        "png 16 bit": encode(wide, "PNG"),
        "png interlaced": interlaced_png(np.asarray(gray)),
        "png exif": encode(colour, "PNG", exif=exif),
        "webp lossy": encode(colour, "WEBP"),
        "webp lossless": encode(colour, "WEBP", lossless=True),
        "webp alpha": encode(alpha.resize((40, 31)), "WEBP"),
        "webp exif": encode(colour, "WEBP", exif=exif),
        "bmp": encode(colour, "BMP"),
        "bmp top down": bytes(top_down),
        "bmp palette": encode(colour.convert("P"), "BMP"),
        "bmp rgba": encode(alpha, "BMP"),
        "tiff": encode(colour, "TIFF"),
        "tiff lzw": encode(colour, "TIFF", compression="tiff_lzw"),
        "tiff gray": encode(gray, "TIFF"),
        "tiff palette": encode(colour.convert("P"), "TIFF"),
        "tiff 16 bit": encode(wide, "TIFF"),
        "tiff pages": pages.getvalue(),
        "tiff big endian": big_endian_tiff(),
    }


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


def bad() -> dict[str, tuple[bytes, str]]:
    """Payloads no decoder may see, and what their reason must say."""
    jpeg, png, webp = zoo()["jpeg"], zoo()["png rgb"], zoo()["webp lossy"]
    frame = frame_at(jpeg)
    scan = jpeg.index(b"\xff\xda\x00\x0c\x03")
    animated = io.BytesIO()
    Image.new("RGB", (8, 8)).save(animated, "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
    exif = Image.Exif()
    exif[0x0112] = 6
    small = Image.new("RGB", (40, 31))
    return {
        "empty": (b"", "empty payload"),
        "html": (b"<html>404 not found</html>", 'text, not an image (starts with "<html>40")'),
        "json": (b'\xef\xbb\xbf{"a": 1}', "text, not an image"),
        "garbage": (bytes(range(200)), "unknown format (starts with 00 01 02 03)"),
        "gif": (encode(small.convert("P"), "GIF"), "GIF is not supported"),
        "avif": (b"\0\0\0\x20ftypavif" + bytes(50), "AVIF is not supported"),
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
        "jpeg sampled 0x0": (patched("jpeg", frame + 11, b"\0"), "sampling factors 0x0"),
        "jpeg with two frames": (jpeg[:frame] + jpeg[frame : frame + 19] + jpeg[frame:], "two frames"),
        "jpeg with broken tables": (patched("jpeg", frame + 19, b"\0"), "where a marker should be"),
        "jpeg with a short exif segment": (
            with_segment(b"\xff\xe1\x00\x06Exif\0\0"),
            "segment e1 at byte 2 has length 6",
        ),
        "jpeg with an inner start": (with_segment(b"\xff\xd8\x00\x04ab"), "marker d8 at byte 2 has no place"),
        "jpeg of fill bytes": (b"\xff\xd8" + b"\xff" * 200_000, "header segments"),
        "jpeg of segments": (b"\xff\xd8" + b"\xff\xfe\x00\x02" * 100_000 + jpeg[2:], "header segments"),
        "jpeg scan header cut by its own end marker": (jpeg[: scan + 12] + b"\xff\xd9", "no end marker"),
        "png half": (png[: len(png) // 2], "PNG cut off"),
        "png without IEND": (png[:-12], "PNG cut off: no IEND chunk"),
        "png of 3 bits": (patched("png rgb", 24, b"\x03"), "no such format"),
        "png rgb of 4 bits": (patched("png rgb", 24, b"\x04"), "no such format"),
        "png checksum": (png[:16] + b"\x7f" + png[17:], "checksum"),
        "png of no width": (patched("png rgb", 16, bytes(4)), "impossible size of 0x31"),
        "webp half": (webp[: len(webp) // 2], "WebP cut off"),
        "webp without a key frame": (patched("webp lossy", 20, bytes([webp[20] | 1])), "is no image"),
        "webp animated": (animated.getvalue(), "WebP is animated"),
        "webp odd chunk": (encode(small, "WEBP", exif=exif, icc_profile=b"x" * 333), "odd-sized chunk"),
        "bmp half": (zoo()["bmp"][:2000], "BMP cut off"),
        "bmp of 2 bits": (patched("bmp", 28, b"\x02"), "BMP with 2 bits per pixel"),
        "bmp core header": (patched("bmp", 14, b"\x10"), "BMP with a header of 16 bytes"),
        "tiff half": (zoo()["tiff"][:2000], "TIFF cut off"),
        "tiff directory outside": (patched("tiff", 4, b"\xff\xff\xff\x7f"), "TIFF cut off"),
        "tiff of one bit": (encode(small.convert("1"), "TIFF"), "TIFF without BitsPerSample"),
        "tiff loop": (tiff_loop(), "loop"),
    }


def tiff_loop() -> bytes:
    """A TIFF whose first directory names itself as the next."""
    file = bytearray(big_endian_tiff())
    struct.pack_into(">I", file, 10 + 12 * 9, 8)
    return bytes(file)


def parsed(payload: bytes) -> tuple[int, int] | None:
    """Height and width by the parser that DALI uses; None where it fails."""
    try:
        stream = nvimgcodec.CodeStream(payload)
        return stream.height, stream.width
    except RuntimeError:
        return None


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


@functools.cache
def decoder() -> Any:
    """DALI's decoder, on the CPU."""
    backend = nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)
    return nvimgcodec.Decoder(device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, backends=[backend])


@pytest.mark.parametrize("name", zoo())
def test_good_files_have_the_size_that_pil_and_the_decoder_see(name: str) -> None:
    """A good file's size is that of PIL and of the decoder's parser, by both ways, and the decoder decodes it."""
    payload = zoo()[name]
    with Image.open(io.BytesIO(payload)) as image:
        size = image.height, image.width
    assert [verdict(payload), *screened([payload]), parsed(payload)] == [size] * 3
    assert header_of(payload).format == name.split(maxsplit=1)[0]
    (image,) = decoder().decode([payload])
    assert image is not None


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
    rotated.append(encode(Image.new("RGB", (40, 31)), "TIFF", tiffinfo={274: 6}))
    assert [header_of(payload).orientation for payload in rotated] == [6] * 5
    assert verdict(rotated[-1]) == parsed(rotated[-1]) == (31, 40)  # as stored
    assert header_of(zoo()["jpeg"]) == Header("jpeg", 40, 31, 3, 1)
    assert [header_of(zoo()[name]).components for name in ("jpeg gray", "jpeg cmyk", "png rgba")] == [1, 4, 4]


def test_the_pixel_bound_holds_and_absent_rows_have_no_reason() -> None:
    """A header that announces 60000x60000 pixels is refused by the bound; None is skipped; a bound is exact."""
    jpeg = zoo()["jpeg"]
    bomb = patched("jpeg", frame_at(jpeg) + 5, struct.pack(">HH", 60000, 60000))
    result = screen([memoryview(bomb), None, memoryview(jpeg)])
    assert result.sizes.tolist() == [[0, 0], [0, 0], [31, 40]]
    assert result.reasons == {0: f"60000x60000 is 3600000000 pixels, more than the bound of {MAX_PIXELS}"}
    assert not screen([memoryview(jpeg)], 31 * 40).reasons
    assert 0 in screen([memoryview(jpeg)], 31 * 40 - 1).reasons
    assert screen([]).sizes.shape == (0, 2)


def test_a_mixed_batch_in_one_slab_keeps_its_rows() -> None:
    """Good and bad payloads of all kinds end to end in one map each get their own verdict, in any neighbourhood."""
    payloads = [*zoo().values(), *(payload for payload, _ in bad().values())] * 2
    payloads = [payloads[k] for k in np.random.default_rng(0).permutation(len(payloads))]
    slab = memoryview(mmap.mmap(-1, sum(map(len, payloads))))
    views, at = [], 0
    for payload in payloads:
        views.append(slab[at : at + len(payload)])
        views[-1][:] = payload
        at += len(payload)
    result = screen(views)
    assert [result.reasons.get(row, tuple(size)) for row, size in enumerate(result.sizes.tolist())] == [
        verdict(payload) for payload in payloads
    ]


@pytest.mark.parametrize("name", ["jpeg", "jpeg progressive", "png rgb", "webp lossy", "bmp", "tiff big endian"])
def test_every_cut_is_refused(name: str) -> None:
    """A file that ends early is refused wherever it ends, by both ways alike."""
    cuts = [zoo()[name][:end] for end in range(len(zoo()[name]))]
    verdicts = screened(cuts)
    assert all(isinstance(reason, str) for reason in verdicts)
    assert verdicts == [verdict(cut) for cut in cuts]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good file with a few bytes set, cut out, put in, or cut off, mostly near its start."""
    file = bytearray(zoo()[draw(st.sampled_from(sorted(zoo())))])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(file), draw(st.sampled_from((40, 250, 700, 1 << 20))))))
        match draw(st.sampled_from(("set", "set", "set", "out", "in", "off"))):
            case "set":
                file[at : at + 1] = bytes([draw(st.sampled_from((0, 1, 0xFF, 0xD9)) | st.integers(0, 255))])
            case "out":
                del file[at : at + draw(st.integers(1, 30))]
            case "in":
                file[at:at] = draw(st.binary(max_size=20))
            case _:
                del file[at:]
    return bytes(file)


@settings(max_examples=600, deadline=None)
@given(damaged())
def test_what_passes_is_parsed_by_the_decoder_with_the_same_size(payload: bytes) -> None:
    """Whatever a damaged file says, if it passes, the decoder's parser reads it and finds the same size."""
    found = verdict(payload)
    if isinstance(found, tuple):
        assert parsed(payload) == found


@settings(max_examples=150, deadline=None)
@given(st.lists(damaged(), min_size=1, max_size=8))
def test_the_quick_way_and_the_long_way_agree(payloads: list[bytes]) -> None:
    """`screen` says of every row of a batch what `header_of` says of it alone."""
    assert screened(payloads) == [verdict(payload) for payload in payloads]


MAGICS = (
    b"",
    b"\xff\xd8",
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"GIF89a",
    b"RIFF\0\0\0\0WEBP",
)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(MAGICS), st.binary(max_size=300))
def test_any_bytes_give_a_verdict(magic: bytes, rest: bytes) -> None:
    """No bytes whatever raise anything but UnusableError, nor anything at all from `screen`."""
    assert screened([magic + rest]) == [verdict(magic + rest)]
