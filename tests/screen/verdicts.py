"""What is found of a payload's header, one by one and by `screen`, in one form."""

from __future__ import annotations

import numpy as np

from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of, screen


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
