"""What an image may cost: the budget for passes over a JPEG, and what the worst files that pass the screen take."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import hostile
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg, pixels
from kit.kinds import slow_jpeg
from kit.properties import examples
from kit.warm import Warm
from PIL import Image

from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.screen.jpeg import PIECE, overworked, scans
from dali_feed.screen.screen import MAX_PIXELS, MAX_WORK, header_of, screen

pytestmark = pytest.mark.slow

MANY = 1 << 30


def _saved(mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(1, 40, 48)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def _exactly(payload: bytes) -> int:
    """Counted twice: by the search, whose bound is sure, and by the walk, which stops one above what is asked for."""
    found = scans(memoryview(payload), MANY)
    assert scans(memoryview(payload), 1) in ({1} if found == 1 else {2, found})
    return found


def test_scans_are_counted_as_libjpeg_makes_them() -> None:
    """One of a baseline JPEG however many components; ten of a progressive one in colour, six of a gray one."""
    for options in ({}, {"subsampling": 0}, {"optimize": True}, {"restart_marker_blocks": 1}):
        assert _exactly(_saved(**options)) == 1
    assert _exactly(_saved("L")) == _exactly(_saved("CMYK")) == 1
    assert _exactly(_saved(progressive=True)) == 10
    assert _exactly(_saved("L", progressive=True)) == 6
    assert [_exactly(slow_jpeg(16, n)) for n in (1, 2, 7, 300)] == [1, 2, 7, 300]


def test_what_looks_like_a_scan_and_is_none_does_not_count() -> None:
    """A thumbnail in a header segment, a comment between scans, and a whole video behind the image are no scans."""
    fake = 50 * b"\xff\xda\0\x08\1\1\0\0\0\0"
    comment = b"\xff\xfe" + (2 + len(fake)).to_bytes(2, "big") + fake
    first = slow_jpeg(16, 4)
    cases = {
        "a thumbnail": first[:2] + comment + first[2:],
        "comments": slow_jpeg(16, 4, between=comment),
        "fill bytes": slow_jpeg(16, 4, between=b"\xff" * 7),
        "restarts": slow_jpeg(16, 4, between=b"\xff\xd3"),
        "a marker without a length": slow_jpeg(16, 4, between=b"\xff\x01"),
        "a video": first + fake + os.urandom(1 << 20).replace(b"\xff\xd9", b"") + b"\xff\xd9",
    }
    for name, payload in cases.items():
        assert scans(memoryview(payload), 4) == 4, name
        assert scans(memoryview(payload), 3) == 4, name


def test_a_scan_header_over_the_border_of_two_pieces_is_seen() -> None:
    """The search goes piece by piece through a large file, and misses none that begins at a piece's last byte."""
    payload = slow_jpeg(16, 2)
    first = payload.index(b"\xff\xda")
    for more in range(-3, 4):
        room = PIECE + more - (payload.rindex(b"\xff\xda") - first)
        between = b"\xff\xfe" + (1 << 15).to_bytes(2, "big") + bytes((1 << 15) - 2)
        filled = (room // len(between)) * between + bytes(room % len(between))
        assert scans(memoryview(slow_jpeg(16, 2, between=filled)), 1) == 2


def test_an_end_marker_inside_a_segment_hides_no_scan() -> None:
    """The decoder goes on behind it, and so does the count."""
    end = b"\xff\xfe\0\x06\xff\xd9\xff\xd9"
    assert scans(memoryview(slow_jpeg(16, 300, between=end)), 299) > 299


def test_a_slow_image_is_refused_by_its_header() -> None:
    """A few kilobytes that would keep a decoder busy for many seconds are unusable; at the bound they are not."""
    slow, good = slow_jpeg(4096, 1000), jpeg(0)
    assert len(slow) < 70_000
    found = screen([memoryview(good), memoryview(slow), None, memoryview(good)])
    assert found.sizes.tolist() == [[16, 16], [0, 0], [0, 0], [16, 16]]
    assert list(found.reasons) == [1]
    assert "4096x4096 in more than 128 scans" in found.reasons[1]
    assert "Decode(max_work=...)" in found.reasons[1]
    for count, refused in ((128, False), (129, True)):
        assert bool(screen([memoryview(slow_jpeg(4096, count))]).reasons) is refused
    assert not screen([memoryview(slow)], max_work=1 << 40).reasons


def test_the_bound_leaves_ordinary_images_alone() -> None:
    """The largest image that max_pixels lets pass may have sixteen scans, which no writer of ordinary ones reaches."""
    assert MAX_WORK // MAX_PIXELS == 16
    large = io.BytesIO()
    Image.new("RGB", (3000, 2000), (90, 60, 30)).save(large, "JPEG", progressive=True)
    for payload in (large.getvalue(), _saved(progressive=True) + os.urandom(1 << 20) + b"\xff\xd9"):
        assert not screen([memoryview(payload)]).reasons
    assert overworked(memoryview(_saved()), 1 << 14, 1 << 14, 1) is None  # of one scan max_pixels is the bound
    with pytest.raises(ConfigError, match="max_work"):
        Decode(max_work=0)


@examples(times=2)
@given(data=st.data())
def test_any_damage_is_counted_or_refused(data: st.DataObject) -> None:
    """Whatever bytes passed the header's screen, the count ends, and never with an exception."""
    payload = bytearray(data.draw(st.sampled_from([_saved(progressive=True), slow_jpeg(16, 5), _saved()])))
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(2, len(payload) - 1))
        new = data.draw(st.binary(min_size=1, max_size=6) | st.sampled_from([b"\xff\xda", b"\xff\xd9", b"\xff\xff"]))
        payload[at : at + len(new)] = new
    view = memoryview(bytes(payload[: data.draw(st.integers(2, len(payload)))]))
    assert scans(view, 3) >= 0
    try:
        header = header_of(view)
    except ValueError:
        return
    overworked(view, header.width, header.height, 1)


SECONDS, MEGABYTES = 1.0, 500.0  # at most, of an image at 2**24 pixels
REFUSED = {  # what could be worse, and is refused
    "jpeg of scans, too many": "limit",
    "tiff jpeg tiles of 16": "limit",
    "tiff strips that overlap": "limit",
    "tiff jpegs that overlap": "overlap",
    "bmp ends of a long line": "limit",
    "pnm of text, large": "limit",
    "gif beyond its canvas": "beyond its canvas",
    "gif of comments": "more than 65536 blocks",
}
HONEST = "tiff tiles shared, 1 deep", "tiff raw strips", "gif", "pnm of 16 bits", "webp lossless", "jpeg of scans"
Costs = dict[str, tuple[str, float, float]]  # what became of a file, seconds of processor time, MB at the most


def costs_of(warm: Warm, exponent: int, *names: str) -> Costs:
    """Of all files at 2**exponent pixels, or of these."""
    done = warm.run([hostile.__file__, exponent, *names], env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    assert done.returncode == 0, done.stderr
    costs: Costs = json.loads(done.stdout)
    return costs


@pytest.fixture(scope="module")
def small(warm: Warm) -> Costs:
    """Of all files at a sixteenth of the bound."""
    return costs_of(warm, 20)


@pytest.fixture(scope="module")
def quarter(warm: Warm) -> Costs:
    """Of all files at a quarter of the bound."""
    return costs_of(warm, 22)


@pytest.fixture(scope="module")
def some(warm: Warm) -> Costs:
    """At the bound, of the files whose end there is known."""
    return costs_of(warm, 24, *REFUSED, *HONEST)


@pytest.fixture(scope="module")
def large(warm: Warm) -> Costs:
    """Of all files at the bound."""
    return costs_of(warm, 24)


def assert_small(costs: Costs, megabytes: float) -> None:
    """None takes more, and none ends the process."""
    assert {name: one for name, one in costs.items() if one[2] > megabytes} == {}
    assert [name for name, (what, *_) in costs.items() if what == "died"] == []


def test_none_takes_more_than_500_megabytes(small: Costs, some: Costs) -> None:
    """Whatever a file says or is, at 2**24 pixels and a sixteenth of it at 2**20; and none ends the process."""
    assert_small(small, MEGABYTES / 16)
    assert_small(some, MEGABYTES)


@pytest.mark.long(form="test_none_takes_more_than_500_megabytes")
def test_none_takes_more_at_the_bound_itself(large: Costs) -> None:
    """All of them at 2**24 pixels."""
    assert_small(large, MEGABYTES)


# Time of a processor that two threads share says little.
@pytest.mark.long(form="test_none_takes_more_than_500_megabytes")
def test_none_costs_more_than_a_second(quarter: Costs, large: Costs) -> None:
    """Of a processor, at 2**24 pixels; and a quarter of the pixels a quarter of it, but for what the bytes cost."""
    assert {name: one for name, one in large.items() if one[1] > SECONDS} == {}
    grown = {name: (less, large[name][1]) for name, (_, less, _) in quarter.items()}
    assert {name: pair for name, pair in grown.items() if pair[1] > 4 * pair[0] + 0.3} == {}


def test_what_could_be_worse_is_refused(some: Costs) -> None:
    """With the reason; and what is large and honest is decoded."""
    assert {name: some[name][0] for name, why in REFUSED.items() if why not in some[name][0]} == {}
    assert {name: some[name][0] for name in HONEST} == dict.fromkeys(HONEST, "decoded")
