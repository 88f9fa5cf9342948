"""`Json`: values that are JSON text, by orjson: no NaN or Infinity, no half of a surrogate pair."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from dali_feed.errors import FormatError
from dali_feed.formats.format import Parse, Value, checked
from dali_feed.formats.paths import flatten, pick, steps_of

Decode = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Json:
    """JSON text in UTF-8, without a byte order mark.

    base64  members whose text is base64, with or without a `data:` address before it: they are given as bytes

    Of two equal names in one record the last counts. Nesting of more than about a thousand levels is refused.
    """

    base64: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "base64", checked(self.base64))
        for path in self.base64:
            steps_of(path)

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members. They may be any paths.

        Raises:
            ConfigError: a member that is no path.
        """
        texts = {steps_of(path) for path in self.base64}
        wanted = [(steps_of(path), steps_of(path) in texts, path) for path in members]
        decode = _decoder()

        def parse(value: Value) -> tuple[Any, ...]:
            record = loads(value)
            return tuple(
                [
                    _unwrapped(pick(record, steps, "json"), path, decode) if text else pick(record, steps, "json")
                    for steps, text, path in wanted
                ]
            )

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All members by path. FormatError where the value is no JSON."""
        record = loads(value)
        members = flatten(record)
        return members | {path: _unwrapped(members[path], path, _decoder()) for path in self.base64 if path in members}


def _unwrapped(text: Any, path: str, decode: Decode) -> memoryview:
    if not isinstance(text, str):
        raise FormatError(f"json: {path}: must be base64 in a text; found {type(text).__name__}")
    if text.startswith("data:"):
        about, comma, text = text.partition(",")
        if not comma or not about.endswith(";base64"):
            raise FormatError(f"json: {path}: must be base64; found an address {about[:40]!r}")
    try:
        return memoryview(decode(text))
    except ValueError as error:  # binascii.Error, or a letter that is not ASCII
        if "\n" in text:  # lines of 76 letters, as mail has them
            return _unwrapped("".join(text.splitlines()), path, decode)
        raise FormatError(f"json: {path}: must be base64; {error}") from None


def loads(value: Value | str) -> Any:
    """What a JSON text holds. A whole number that does not fit in 64 bits is a float.

    Raises:
        FormatError: it is no JSON.
    """
    try:
        return orjson.loads(value)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise FormatError(f"json: {error}") from None


def _decoder() -> Decode:
    """What gives the bytes of a text, or a ValueError where it is not base64 to the last letter.

    pybase64, where it is installed, is a hundred times as fast as the standard library; both take and refuse the same.
    """
    try:
        import pybase64
    except ImportError:
        return _plain_decode
    fast = pybase64.b64decode
    return lambda text: fast(text, validate=True)


def _plain_decode(text: str) -> bytes:
    if len(text) % 4 or text.endswith("==="):  # the standard library lets more padding pass than there may be
        raise ValueError("incorrect padding")
    return binascii.a2b_base64(text, strict_mode=True)
