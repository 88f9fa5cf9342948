"""Messages written in Protobuf, of a class of the user's, by Google's library; what goes into a field fits it first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.fitted import Fit, flag, many, octets, real, text, whole
from dali_feed.formats.paths import path_of, steps_of
from dali_feed.formats.protobuf import is_map, is_repeated

__all__ = ["protobuf_encoder"]

Put = Callable[[Any, Any], None]

_MESSAGE, _BYTES = 10, 12  # CPPTYPE_MESSAGE, TYPE_BYTES
_INT32 = whole(-(1 << 31), (1 << 31) - 1)
_FITS: dict[int, Fit] = {  # by CPPTYPE_*
    1: _INT32,
    2: whole(-(1 << 63), (1 << 63) - 1),
    3: whole(0, (1 << 32) - 1),
    4: whole(0, (1 << 64) - 1),
    5: real(single=False),
    6: real(single=True),
    7: flag,
    8: _INT32,  # an enum, by number
    9: text,
}
_DTYPES = {1: "i4", 2: "i8", 3: "u4", 4: "u8", 5: "f8", 6: "f4"}


def protobuf_encoder(message: type[Any], names: Sequence[str]) -> Any:
    """What writes members, by path, as one message. A member that is None leaves its field unset.

    Raises:
        ConfigError: a field that the message has not, or one that is a message.
    """
    puts = [(name, _putter(message.DESCRIPTOR, name)) for name in names]

    def encode(members: Mapping[str, Any]) -> bytes:
        made = message()
        for name, put in puts:
            value = members[name]
            if value is not None:
                try:
                    put(made, value)
                except (FormatError, TypeError, ValueError) as error:
                    msg = f"protobuf: {name}: {error}"
                    raise FormatError(msg) from None
        if lacking := made.FindInitializationErrors():
            msg = f"protobuf: {lacking[0]}: is required, and has no value"
            raise FormatError(msg)
        found: bytes = made.SerializeToString(deterministic=True)
        return found

    return encode


def _putter(about: Any, name: str) -> Put:
    steps = steps_of(name)
    way: list[str] = []
    for done, step in enumerate(steps, 1):
        each = about.fields_by_name.get(step) if isinstance(step, str) else None
        if each is None:
            msg = (
                f"Protobuf: {path_of(steps[:done])}: no such field; {about.name} has {', '.join(about.fields_by_name)}"
            )
            raise ConfigError(msg)
        if done < len(steps):
            if each.cpp_type != _MESSAGE or is_repeated(each):
                msg = f"Protobuf: {path_of(steps[:done])}: must be a message to have fields of its own"
                raise ConfigError(msg)
            way.append(each.name)
            about = each.message_type
    put = _field(each, name)

    def follow(message: Any, value: Any) -> None:
        for part in way:
            message = getattr(message, part)
        put(message, value)

    return follow


def _field(each: Any, name: str) -> Put:
    field = each.name
    if is_map(each):
        key, held = (each.message_type.fields_by_name[part] for part in ("key", "value"))
        if held.cpp_type != _MESSAGE:
            of_key, of_value = _fit(key), _fit(held)

            def put_map(message: Any, value: Any) -> None:
                if not isinstance(value, Mapping):
                    msg = f"must be a mapping; found {type(value).__name__}"
                    raise FormatError(msg)
                getattr(message, field).update({of_key(k): of_value(v) for k, v in value.items()})

            return put_map
    if each.cpp_type == _MESSAGE:
        msg = f"Protobuf: {name}: is a message, or a list of them: name fields of one"
        raise ConfigError(msg)
    fit = _fit(each)
    if is_repeated(each):
        fits = many(fit, _DTYPES.get(each.cpp_type))
        return lambda message, value: getattr(message, field).extend(fits(value))
    return lambda message, value: setattr(message, field, fit(value))


def _fit(each: Any) -> Fit:
    return octets if each.type == _BYTES else _FITS[each.cpp_type]
