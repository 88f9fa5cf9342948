"""Decodes a payload whole and throws the pixels away: what the host engine would say of it."""

from __future__ import annotations

from dali_feed.engines.host.engine import decoded, new_decoder
from dali_feed.screen.screen import UnusableError, header_of

__all__ = ["Trial"]


class Trial:
    """One thread's decoder."""

    def __init__(self) -> None:
        self._decoder = new_decoder()

    def refusal(self, payload: memoryview) -> str | None:
        """Why a screened payload cannot be decoded, or None."""
        try:
            plain = header_of(payload).plain
            decoded(self._decoder, payload if plain is None else memoryview(plain), None)
        except UnusableError as error:
            return str(error)
        return None
