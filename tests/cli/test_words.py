"""What the commands say of values: their kinds, their sizes, what was drawn."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from kit.images import jpeg
from kit.written import npy
from torchvision.transforms import v2

from dali_feed.cli.inspect import _small, sizes_text
from dali_feed.cli.members import guess
from dali_feed.cli.show import draws_in_words
from dali_feed.feed import Feed
from dali_feed.testing import ScriptedSource


@pytest.mark.parametrize(
    ("name", "value", "text", "kind"),
    [
        ("x", npy(np.zeros((2, 3), np.float32)), "npy float32 (2, 3)", "Array"),
        ("x", npy(np.zeros(3))[:20], "npy, cut off", "Bytes"),
        ("x", b"\xff\xfe\xfd", "bytes", "Bytes"),
        ("x", "é".encode() * 10000, "text", "Text"),
        ("x", b"a" + "é".encode() * 10000, "text", "Text"),
        ("x", b"", "nothing", "Bytes"),
        ("x", b"{not json", "text", "Text"),
        ("x", b"-1.5e3", "float, as text", "Number"),
        ("x", base64.b64encode(jpeg(0)).decode(), "jpeg image, in base64", "Image"),
        ("x", base64.b64encode(b"a text that is long enough to be an image").decode(), "text", "Text"),
        ("x", [["a"], ["b"]], "list", "JsonValue"),
        ("x", [[1], [1, 2]], "list", "JsonValue"),
        ("x", [[0, 0, 1, 1]], "rows of 4", "Boxes"),
        ("x", [0.5, 1.0], "float32 (2,)", "Array"),
        ("x", True, "bool", "Number"),
        ("x", {"a": 1}, "dict", "JsonValue"),
        ("x", {1}, "set", ""),
    ],
)
def test_a_value_is_guessed_by_what_it_holds(name: str, value: Any, text: str, kind: str) -> None:
    """In words, and the column that reads it."""
    found = guess(name, value)
    assert (found.text, found.kind) == (text, kind)


def test_many_sizes_are_told_by_their_middle_and_their_ends() -> None:
    """A few are counted each; of many the smallest and the largest are those of the fewest and most pixels."""
    assert sizes_text([(4, 3), (4, 3), (8, 6)]) == "4x3 (2), 8x6 (1)"
    many = [(k, 100 - k) for k in range(1, 50)]
    assert sizes_text(many) == "median 25x75, from 1x99 to 49x51; 49 different"


def test_what_pillow_cannot_show_has_a_sentence() -> None:
    """In the place of the small image."""
    assert _small(memoryview(b"no image")) == "an image that Pillow cannot read"
    cut = _small(memoryview(jpeg(0)[:-200]))
    assert isinstance(cut, str)
    assert cut.startswith("Pillow: ")


def test_draws_are_told_in_words() -> None:
    """A crop, a flip, an angle, what was erased, what was added, and the branch that was chosen."""
    transform = v2.Compose(
        [
            v2.RandomCrop(24, padding=4, pad_if_needed=True),
            v2.RandomRotation(30),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomChoice([v2.RandomSolarize(100, p=1.0), v2.ColorJitter(0.4)]),
            v2.RandomErasing(0.5),
        ]
    )
    sizes = np.array([[20, 30]] * 40)
    with Feed(ScriptedSource([(jpeg(0), 1)]), 1, transform=transform) as feed:
        told = draws_in_words(feed.program, sizes, np.arange(40), 3, 0)
    lines = [line for each in told for line in each]
    for word in ("degrees", "x 24 at ", "Flip: yes", "Flip: no", "ColorJitter: ", "Solarize"):
        assert any(word in line for line in lines), (word, told[:3])
    assert any("Erasing: no" in line for line in lines)
    assert any("Erasing: " in line and " x " in line for line in lines)
