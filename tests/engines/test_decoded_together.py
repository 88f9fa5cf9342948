"""JPEGs that one call decodes: the same pixels and the same reasons as one by one, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import bad_tables, jpeg, png

from dali_feed.engines.host import decode
from dali_feed.engines.host.decode import decoded, decoded_jpegs, jpegs, new_decoder
from dali_feed.screen.header import UnusableError

NO_PICTURE = b"\xff\xd8 no picture \xff\xd9"  # it cannot even be parsed
KINDS = [jpeg(0, 16, 24), jpeg(1, 40, 8), jpeg(2, 64, 64), png(3), bad_tables(), NO_PICTURE, b""]


def _alone(decoder: Any, payload: memoryview, window: Sequence[int] | None) -> Any:
    try:
        return decoded(decoder, payload, window)
    except UnusableError as error:
        return str(error)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12), st.booleans(), st.integers(1, 20_000))
def test_one_call_gives_what_each_gives_alone(payloads: list[bytes], windowed: bool, memory: int) -> None:
    """Windows or whole images, bad ones among them, with others before and behind, whatever one call may hold."""
    views, decoder = [memoryview(payload) for payload in payloads], new_decoder()
    windows = [[1, 2, 5, 6]] * len(views) if windowed else None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decode, "TOGETHER", memory)
        streams = jpegs(views, windows)
    for k, found in enumerate(decoded_jpegs(decoder, streams) if streams else ()):
        alone = _alone(decoder, views[k], None if windows is None else windows[k])
        if isinstance(found, str):
            assert found == alone
        else:
            np.testing.assert_array_equal(found, alone)


def test_they_are_the_jpegs_at_the_front() -> None:
    """Up to what is no JPEG or cannot be parsed, which is left to be decoded alone, with its reason."""
    front = [memoryview(jpeg(n)) for n in range(3)]
    for other in (png(0), NO_PICTURE, b""):
        assert len(jpegs([*front, memoryview(other), *front], None)) == 3
        assert jpegs([memoryview(other), *front], None) == []


def test_their_pixels_are_bounded_and_the_first_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels of the windows that are decoded count; an image above the bound has a call of its own."""
    views = [memoryview(jpeg(n, 64, 64)) for n in range(8)]
    monkeypatch.setattr(decode, "TOGETHER", 3 * 64 * 64 * 3)
    assert len(jpegs(views, None)) == 3
    assert len(jpegs(views, [[0, 0, 32, 64]] * 8)) == 6
    monkeypatch.setattr(decode, "TOGETHER", 1)
    assert len(jpegs(views, None)) == 1
