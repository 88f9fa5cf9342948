"""`Json`: values that are JSON text, read by orjson where it is installed, else by the standard library, all the same.

The two differ in what they let pass, and what a record holds must not hang on what is installed: so the standard
library is held to what orjson says. No NaN or Infinity, no half of a surrogate pair, and a whole number that does not
fit in 64 bits is a float.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed.errors import FormatError
from dali_feed.formats.base64_text import decoder
from dali_feed.formats.contract import Parse, Value, checked
from dali_feed.formats.paths import flatten, pick, steps_of

__all__ = ["Json", "loads", "plain_loads"]

Decode = Callable[[str], bytes]

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


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
        load, decode = loads(), decoder()

        def parse(value: Value) -> tuple[Any, ...]:
            record = load(value)
            return tuple(
                [
                    _unwrapped(pick(record, steps, "json"), path, decode) if text else pick(record, steps, "json")
                    for steps, text, path in wanted
                ]
            )

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All members by path. FormatError where the value is no JSON."""
        record = loads()(value)
        found = flatten(record)
        return found | {path: _unwrapped(found[path], path, decoder()) for path in self.base64 if path in found}


def _unwrapped(text: Any, path: str, decode: Decode) -> memoryview:
    if not isinstance(text, str):
        msg = f"json: {path}: must be base64 in a text; found {type(text).__name__}"
        raise FormatError(msg)
    if text.startswith("data:"):
        about, comma, text = text.partition(",")
        if not comma or not about.endswith(";base64"):
            msg = f"json: {path}: must be base64; found an address {about[:40]!r}"
            raise FormatError(msg)
    try:
        return memoryview(decode(text))
    except ValueError as error:  # binascii.Error, or a letter that is not ASCII
        if "\n" in text:  # lines of 76 letters, as mail has them
            return _unwrapped("".join(text.splitlines()), path, decode)
        msg = f"json: {path}: must be base64; {error}"
        raise FormatError(msg) from None


def loads() -> Callable[[Value], Any]:
    """What reads JSON here. It raises FormatError alone."""
    try:
        import orjson
    except ImportError:
        return plain_loads
    fast, wrong = orjson.loads, orjson.JSONDecodeError

    def load(value: Value) -> Any:
        try:
            return fast(value)
        except (wrong, RecursionError) as error:
            msg = f"json: {error}"
            raise FormatError(msg) from None

    return load


def plain_loads(value: Value) -> Any:
    """The same by the standard library."""
    try:
        text = str(value, "utf-8")
        record = _decode(text)
        if "\\u" in text:
            json.dumps(record, ensure_ascii=False).encode()  # half of a surrogate pair cannot be encoded
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeError among them
        msg = f"json: {error}"
        raise FormatError(msg) from None
    return record


def _integer(text: str) -> int | float:
    number = int(text) if len(text) < 21 else _MOST + 1
    return number if _LEAST <= number <= _MOST else _float(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = f"the number {text[:20]} is too large"
        raise ValueError(msg)
    return number


def _constant(text: str) -> Any:
    msg = f"{text} is not a number of JSON"
    raise ValueError(msg)


_decode = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant).decode
