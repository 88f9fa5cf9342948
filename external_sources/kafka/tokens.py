"""Tokens of OAUTHBEARER from a function of the user's.

The law: librdkafka is never given an exception or a token that it refuses, for either would come out of it anywhere
else. So the first token is asked for here, before a client is made, and where a later one fails the one before is
given once more: what the broker then says is raised, with why there was no new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dali_feed.errors import ConfigError, SourceDeniedError
from dali_feed.secrets import hidden

__all__ = ["Tokens"]

AGAIN_SECONDS = 30.0  # until a token that could not be had is asked for again


class Tokens:
    """An `oauth_cb` for librdkafka, of the user's, which takes a text and gives (token, unix seconds of its end, ...).

    Raises:
        SourceDeniedError: the function raised.
        ConfigError: it gave something else than a token, or one that has expired.
    """

    def __init__(self, subject: str, given: Callable[[str], Any], asked: str, failed: Callable[[str], None]) -> None:
        self._given, self._failed = given, failed
        try:
            found = given(asked)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            msg = f"{subject}: oauth_cb in config= must give a token; it raised {type(error).__name__}: {error}"
            raise SourceDeniedError(hidden(msg)) from None
        if wrong := _wrong(found):
            msg = f"{subject}: oauth_cb in config= must give (token, unix seconds of its end); {wrong}"
            raise ConfigError(msg)
        self._last, self._fresh = found, True

    def __call__(self, asked: str) -> Any:
        """A token that has not expired."""
        if self._fresh:
            self._fresh = False
            return self._last
        try:
            found = self._given(asked)
            why = _wrong(found)
        except Exception as error:  # noqa: BLE001
            why = f"it raised {type(error).__name__}: {error}"
        if why:
            self._failed(hidden(f"SASL: oauth_cb gave no new token: {why}"))
            return self._last[0], time.time() + AGAIN_SECONDS, *self._last[2:]
        self._failed("")
        self._last = found
        return found


def _wrong(found: Any) -> str:
    """What is wrong with what the function gave, a clause without the token; empty where nothing is."""
    if not isinstance(found, tuple) or len(found) < 2 or not isinstance(found[0], str) or not found[0]:
        return f"it gave {type(found).__name__}" if not isinstance(found, tuple) else "it gave a tuple with other items"
    if isinstance(found[1], bool) or not isinstance(found[1], int | float):
        return f"its end is {type(found[1]).__name__}"
    ago = time.time() - found[1]
    return f"it ended {ago:.0f} s ago" if ago >= 0 else ""
