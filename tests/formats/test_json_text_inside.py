"""Insides that contract/formats/test_json_text.py needs not: they go with what they test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dali_feed.formats.json_text import _decoder, _plain_decode


@given(st.text("AQgw=-_ \n", max_size=12))
def test_both_decoders_take_and_refuse_the_same(text: str) -> None:
    """A record is bad by both or by none, and its bytes are the same."""
    found = []
    for decode in (_decoder(), _plain_decode):
        try:
            found.append(decode(text))
        except ValueError:
            found.append(b"bad!")
    assert found[0] == found[1]
