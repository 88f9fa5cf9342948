"""What the tests of sources share: the bytes of payloads that must be there."""

from __future__ import annotations


def taken(view: memoryview | None) -> bytes:
    """A payload as bytes; None, an absent position, fails the test."""
    assert view is not None, "the position is absent"
    return bytes(view)
