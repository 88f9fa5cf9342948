"""The screen on GIF and AVIF: PIL's sizes, cuts, damage, and bytes made to mislead it."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import pytest
from gif_avif import AVIF, avif, avifs, box, coded, full, gifs, hand_made, on_canvas, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.images import jpeg, png
from PIL import Image
from verdicts import screened, verdict

from dali_feed.engines.host import pillow
from dali_feed.screen.av1 import frame_sizes
from dali_feed.screen.gif import MAX_BLOCKS
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import MAX_PIXELS, header_of, screen

KINDS = [pytest.param(gifs, id="gif"), pytest.param(avifs, id="avif", marks=AVIF)]
Files = Callable[[], dict[str, bytes]]


def decoded(payload: bytes, bound: int = MAX_PIXELS) -> bytes | None:
    """The pixels, of the size that the screen found; None where screen or decoder gave a reason."""
    view = memoryview(payload)
    result = screen([view], bound)
    if result.reasons:
        return None
    try:
        pixels = pillow.decode(view)
    except UnusableError:
        return None
    assert pixels.shape == (*result.sizes[0].tolist(), 3)
    return pixels.tobytes()


@pytest.mark.parametrize("files", KINDS)
def test_good_files_have_pillows_size(files: Files) -> None:
    """Every kind of good file has Pillow's size, alone and between other payloads."""
    for name, payload in files().items():
        with Image.open(io.BytesIO(payload)) as image:
            size = image.height, image.width
        assert screened([jpeg(0), payload, png(0)]) == [(16, 16), size, (16, 16)], name
        assert header_of(payload).format == name.split()[0]


def bad_gifs() -> dict[str, tuple[bytes, str]]:
    """GIFs that Pillow must not see, and what their reason must say."""
    plain = gifs()["gif"]
    image = 13 + (6 << (plain[10] & 7))
    codes = image + 10

    def extended(*parts: bytes) -> bytes:
        return plain[:image] + b"".join(parts) + plain[image:]

    return {
        "other version": (b"GIF88a" + plain[6:], "GIF of an unknown version, b'88a'"),
        "no width": (plain[:6] + b"\0\0" + plain[8:], "impossible size of 0x31"),
        "no image": (plain[:image] + b";", "GIF without an image"),
        "half": (plain[: len(plain) // 2], "GIF cut off"),
        "junk": (extended(b"\1\2\3"), f"GIF damaged: 01 at byte {image}"),
        "image beyond the canvas": (on_canvas(plain, 50, 60, 20, 9), "an image of 40x31 at 9,20 on a canvas of 60x50"),
        "image of no size": (plain[: image + 5] + b"\0\0" + plain[image + 7 :], "an image of 0x31"),
        "no data": (plain[: codes + 1] + b"\0;", "an image without data"),
        "codes of 12 bits": (plain[:codes] + b"\x0c" + plain[codes + 1 :], "codes of 12 bits"),
        "empty extension": (extended(b"!\1\0"), f"extension 01 at byte {image} lacks its data"),
        "short control": (extended(b"!\xf9\3abc\0"), f"extension f9 at byte {image} lacks its data"),
        "empty loop": (extended(b"!\xff\x0bNETSCAPE2.0\0"), f"extension ff at byte {image} lacks its data"),
        "extensions": (extended(b"!\xfe\0" * MAX_BLOCKS), "GIF with more than 1048576 blocks"),
        "blocks": (extended(b"!\1" + b"\1a" * MAX_BLOCKS + b"\0"), "GIF with more than 1048576 blocks"),
    }


def patched(file: bytes, old: bytes, new: bytes) -> bytes:
    """A file with the only place that reads `old` replaced."""
    assert file.count(old) == 1
    return file.replace(old, new)


def bad_avifs() -> dict[str, tuple[bytes, str]]:
    """AVIFs that libavif must not see, and what their reason must say."""
    good, grid = hand_made(), hand_made(tiles=2)
    head = good[:28]
    primary = full(b"pitm", 0, 0, b"\0\1")
    infe = full(b"infe", 2, 0, b"\0\7\0\0av01\0")
    ipma = full(b"ipma", 0, 0, struct.pack(">I", 200), (b"\0\7\xff" + bytes(255)) * 200)
    bad = {
        "head only": (head[:12], "AVIF cut off"),
        "no meta": (head, "AVIF cut off: no box meta"),
        "no moov": (hand_made(brands=b"avifavis"), "AVIF cut off: no box moov"),
        "box of 4 bytes": (head + b"\0\0\0\4free", "AVIF damaged: box b'free' of 4 bytes"),
        "boxes": (head + b"\0\0\0\x08free" * 5000, "AVIF with more than 4096 boxes"),
        "two primaries": (hand_made(more=primary), "two boxes b'pitm'"),
        "primary without size": (patched(good, b"\0\1\3\1\x83\4", b"\0\1\3\4\x83\4"), "or has no size"),
        "primary elsewhere": (patched(good, primary, full(b"pitm", 0, 0, b"\0\7")), "of the type ''"),
        "primary of HEVC": (patched(good, b"\0\1\0\0av01", b"\0\1\0\0hvc1"), "of the type 'hvc1'"),
        "items": (
            hand_made(without=(b"iinf",), more=full(b"iinf", 0, 0, b"\xff\xff", infe * 5000)),
            "AVIF with more than 4096 boxes",
        ),
        "uses of properties": (
            hand_made(without=(b"iprp",), more=box(b"iprp", ipma, ipma)),
            "AVIF with 65792 uses of properties; at most 65536",
        ),
        "no width": (hand_made(size=(0, 64)), "impossible size of 0x64"),
        "no data": (hand_made(data=b""), "item 1 has no data"),
        "data beyond the end": (good[:-1], "AVIF cut off: the data of item 1 end at"),
        "pieces": (hand_made(data=bytes(40000), pieces=40000), "AVIF with 40000 extents; at most 16384"),
        "no sequence header": (hand_made(data=b"\x12\0"), "without a sequence header"),
        "unit beyond its data": (hand_made(data=b"\x0a\x7f"), "an AV1 unit of 127 bytes ends at 129 of 2"),
        "size of a unit": (hand_made(data=b"\x0a" + b"\xff" * 9), "takes more than 8 bytes"),
        "units": (hand_made(data=b"\x12\0" * 20000), "too many units"),
        "half a sequence header": (hand_made(data=b"\x0a\1\0"), "AVIF cut off"),
        "larger frames": (hand_made(data=coded(256)[0]), "256x256 in item 1, of an image of 64x64"),
        "larger tiles": (hand_made(tiles=2, data=coded(512)[0]), "512x512 in item 2, of an image of 128x64"),
        "two sizes of a grid": (hand_made(tiles=2, grid_size=(128, 60)), "two sizes, (128, 64) and (128, 60)"),
        "half a grid": (patched(grid, b"idat\0\0\0\1", b"idat\0\1\0\1"), "AVIF cut off"),
    }
    for kind in (b"pitm", b"iinf", b"iprp", b"iloc"):
        bad[f"no {kind.decode()}"] = (hand_made(without=(kind,)), f"AVIF without a still image: no box {kind!r}")
    return bad


@pytest.mark.parametrize("files", [pytest.param(bad_gifs, id="gif"), pytest.param(bad_avifs, id="avif", marks=AVIF)])
def test_bad_files_are_refused_with_their_reason(files: Callable[[], dict[str, tuple[bytes, str]]]) -> None:
    """What could mislead a decoder has a reason that says what is wrong with it, found in bounded time."""
    for name, (payload, reason) in files().items():
        found = verdict(payload)
        assert reason in str(found), name
        assert screened([payload]) == [found]


@pytest.mark.parametrize("files", KINDS)
def test_a_cut_is_refused_or_changes_nothing(files: Files) -> None:
    """A file that ends early is refused wherever it ends, or nothing of its image was behind the cut."""
    for name, payload in files().items():
        whole = decoded(payload)
        assert whole == opened(payload).tobytes()
        cuts = [payload[:end] for end in range(len(payload))]
        verdicts = screened(cuts)
        assert verdicts == [verdict(cut) for cut in cuts]
        kept = [n for n, found in enumerate(verdicts) if not isinstance(found, str)]
        assert kept == list(range(len(payload) - len(kept), len(payload)))
        assert len(kept) <= 1 or "animated" in name
        assert {decoded(cuts[n]) for n in kept[:: max(1, len(kept) // 20)]} <= {whole, None}


def damaged(files: Files) -> st.SearchStrategy[bytes]:
    """A good file with bits turned, bytes cut out, put in, or cut off, mostly near its start."""

    @st.composite
    def draw_one(draw: st.DrawFn) -> bytes:
        file = bytearray(files()[draw(st.sampled_from(sorted(files())))])
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, max(0, min(len(file), draw(st.sampled_from((40, 300, 900)))) - 1)))
            match draw(st.sampled_from(("turn", "turn", "set", "out", "in", "off"))):
                case "turn" if file:
                    file[at] ^= 1 << draw(st.integers(0, 7))
                case "set" if file:
                    file[at] = draw(st.sampled_from((0, 1, 0x7F, 0xFF)))
                case "out":
                    del file[at : at + draw(st.integers(1, 30))]
                case "in":
                    file[at:at] = draw(st.binary(max_size=20))
                case _:
                    del file[at:]
        return bytes(file)

    return draw_one()


def assert_calm(payload: bytes) -> None:
    """Screen and decoder give pixels of one size, or a reason; nothing else, and no warning."""
    assert screened([payload]) == [verdict(payload)]
    decoded(payload, 1 << 20)


@settings(max_examples=400, deadline=None)
@given(damaged(gifs))
def test_a_damaged_gif_is_decoded_or_bad(payload: bytes) -> None:
    """Whatever a damaged GIF says, it comes out with the size that was found, or with a reason."""
    assert_calm(payload)


@AVIF
@settings(max_examples=400, deadline=None)
@given(damaged(avifs))
def test_a_damaged_avif_is_decoded_or_bad(payload: bytes) -> None:
    """Whatever a damaged AVIF says, it comes out with the size that was found, or with a reason."""
    assert_calm(payload)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from((b"GIF87a", b"GIF89a\5\0\5\0\0\0\0", b"\0\0\0\x14ftypavif\0\0\0\0avif", b"\0\0\0\x10ftypavif")),
    st.binary(max_size=300),
)
def test_any_bytes_give_a_verdict(magic: bytes, rest: bytes) -> None:
    """No bytes whatever raise anything but UnusableError."""
    assert_calm(magic + rest)


def test_the_bound_holds_for_a_gif() -> None:
    """A canvas above the bound is refused by it, one at the bound is not."""
    payload = gifs()["gif on a canvas"]
    large = payload[:6] + struct.pack("<HH", 60000, 60000) + payload[10:]
    result = screen([memoryview(large)])
    assert result.reasons == {
        0: f"60000x60000 is 3600000000 pixels, more than the limit of {MAX_PIXELS}; see Decode(max_pixels=...)"
    }
    assert not screen([memoryview(payload)], 50 * 60).reasons
    assert screen([memoryview(payload)], 50 * 60 - 1).reasons


@AVIF
def test_the_bound_holds_for_an_avif() -> None:
    """A size above the bound is refused by it, and the two sizes that frames may differ by are no way round it."""
    result = screen([memoryview(hand_made(size=(60000, 60000)))])
    assert result.reasons == {
        0: f"60000x60000 is 3600000000 pixels, more than the limit of {MAX_PIXELS}; see Decode(max_pixels=...)"
    }
    assert not screen([memoryview(avif())], 31 * 40).reasons
    assert screen([memoryview(avif())], 31 * 40 - 1).reasons


@AVIF
def test_a_turned_avif_is_as_stored() -> None:
    """Pillow leaves a rotation to its caller, so the size and the pixels are those of the file that has none."""
    turned = avifs()["avif turned"]
    assert b"irot" in turned
    assert verdict(turned) == (31, 40)
    assert decoded(turned) == decoded(avifs()["avif"])


def sequence(*fields: tuple[int, int]) -> memoryview:
    """A sequence header of (value, bits) as AV1 data."""
    text = "".join(f"{value:0{bits}b}" for value, bits in fields)
    text += "0" * (-len(text) % 8)
    body = int(text, 2).to_bytes(len(text) // 8, "big")
    return memoryview(b"\x0a" + bytes([len(body)]) + body)


SIDES = ((9, 4), (8, 4), (639, 10), (479, 9), (0, 5))
POINT = ((0, 12), (5, 5))
HIGH = ((0, 12), (9, 5), (1, 1))


@pytest.mark.parametrize(
    "fields",
    [
        ((0, 3), (1, 1), (1, 1), (5, 5)),
        ((0, 3), (0, 2), (0, 1), (0, 1), (0, 5), *POINT),
        ((0, 3), (0, 2), (0, 1), (1, 1), (1, 5), *HIGH, (1, 1), (7, 4), *POINT, (0, 1)),
        ((0, 3), (0, 2), (1, 1), (1, 64), (1, 1), (0, 2), (1, 1), (3, 2), (0, 1), (0, 1), (0, 5), *POINT),
        (
            *((0, 3), (0, 2), (1, 1), (1, 64), (0, 1), (1, 1), (9, 5), (1, 42), (0, 1)),
            *((1, 5), *POINT, (1, 1), (99, 21), *HIGH, (0, 1)),
        ),
    ],
    ids=["reduced", "plain", "levels and delays", "equal intervals", "decoder model"],
)
def test_a_sequence_header_says_its_size(fields: tuple[tuple[int, int], ...]) -> None:
    """Whatever stands before them, the largest width and height are found."""
    assert list(frame_sizes(sequence(*fields, *SIDES), iter(range(9)))) == [(640, 480)]
