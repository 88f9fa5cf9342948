"""Members written as one value, for those formats whose values say themselves what they hold.

The law: what is written is read back by the format of the same name, member by member.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from dali_feed.errors import ConfigError, FormatError
from dali_feed.packages import needed

__all__ = ["Encode", "encoder"]

Encode = Callable[[Mapping[str, Any]], bytes]


def encoder(format: str, base64: tuple[str, ...] = ()) -> Encode:  # noqa: A002  what users call it
    """What writes members, by name, as one value; it raises a FormatError for a member that the format cannot hold.

    Raises:
        ConfigError: a format that is not written, or `base64` for one that holds bytes as they are.
        MissingPackageError: msgpack is not installed.
    """
    if format == "json":
        return lambda members: _json(members, base64)
    if format != "msgpack":
        msg = f"format: 'json' and 'msgpack' are written; found {format!r}"
        raise ConfigError(msg)
    if base64:
        msg = f"base64: MessagePack holds bytes as they are; found {base64!r}; leave it out"
        raise ConfigError(msg)
    return _msgpack()


def _json(members: Mapping[str, Any], coded: tuple[str, ...]) -> bytes:
    record = {}
    for name, value in members.items():
        if not isinstance(value, bytes):
            record[name] = value
        elif name in coded:
            record[name] = base64.b64encode(value).decode()
        else:
            try:
                record[name] = value.decode()
            except UnicodeDecodeError as error:
                msg = f"json: {name}: must be text in UTF-8; {error}; name it in base64="
                raise FormatError(msg) from None
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:  # a NaN, half of a surrogate pair, no JSON type
        msg = f"json: {error}"
        raise FormatError(msg) from None


def _msgpack() -> Encode:
    with needed():
        import msgpack

    def encode(members: Mapping[str, Any]) -> bytes:
        try:
            packed: bytes = msgpack.packb(dict(members))
        except (TypeError, ValueError, OverflowError) as error:
            msg = f"msgpack: {error}"
            raise FormatError(msg) from None
        return packed

    return encode
