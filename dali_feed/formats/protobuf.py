"""`Protobuf`: values that are a message of a class of the user's, by Google's library.

The library reads a message as a whole and copies its bytes; what is not asked for costs the reading, but no Python
object. It bounds nesting at a hundred messages itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.format import Parse, Value
from dali_feed.formats.paths import MOST, MissingPathError, Steps, path_of, steps_of

Get = Callable[[Any], Any]

_DTYPES = {1: np.int32, 2: np.int64, 3: np.uint32, 4: np.uint64, 5: np.float64, 6: np.float32, 7: np.bool_}
_ENUM, _TEXT, _MESSAGE = 8, 9, 10  # the library's numbers for how a field is held, CPPTYPE_*; numbers are above
_BYTES = 12  # TYPE_BYTES


@dataclass(frozen=True, slots=True)
class Protobuf:
    """A message.

    message  its class, as protoc generates it

    Members are paths of its fields: `body.features`, `images[0].data`, a map's `scores["a"]`. A repeated number is
    given as a NumPy array, a repeated text or bytes as a list, a map of such as a dict, an enum as its number, bytes
    as a memoryview. A field that is not set has its default, but where the message tells that it is not set
    (`optional`, a oneof, a message) it is missing. A message cannot be a member: ask for its fields.
    """

    message: type[Any]

    def __post_init__(self) -> None:
        if not (hasattr(self.message, "DESCRIPTOR") and hasattr(self.message, "FromString")):
            raise ConfigError(f"Protobuf: must be given a message class made by protoc; found {self.message!r}")

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members.

        Raises:
            ConfigError: a field that the message has not, or one that is a message.
        """
        from_string = self.message.FromString
        gets = [_getter(self.message.DESCRIPTOR, steps_of(path)) for path in members]

        def parse(value: Value) -> tuple[Any, ...]:
            try:
                message = from_string(value)
            except Exception as error:
                raise FormatError(f"protobuf: {' '.join(str(error).split())}") from error
            return tuple([get(message) for get in gets])

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All fields that are set, by path."""
        fields: dict[str, Any] = {}
        ahead: list[tuple[Steps, Any]] = [((), self.message.FromString(value))]
        while ahead and len(fields) < MOST:
            steps, message = ahead.pop()
            for each, content in message.ListFields():
                path = (*steps, each.name)
                if each.cpp_type != _MESSAGE:
                    fields[path_of(path)] = _giver(each)(content)
                elif not is_repeated(each):
                    ahead.append((path, content))
                elif not is_map(each):
                    ahead += [((*path, k), one) for k, one in enumerate(content[:MOST])]
                elif each.message_type.fields_by_name["value"].cpp_type != _MESSAGE:
                    fields[path_of(path)] = dict(content)
        return fields


def is_repeated(each: Any) -> bool:
    """Whether a field holds several, a map too."""
    answer = getattr(each, "is_repeated", None)  # newer than `label`, which is gone where this is there
    return bool(each.label == each.LABEL_REPEATED if answer is None else answer)


def is_map(each: Any) -> bool:
    """Whether a field is a map."""
    return each.message_type is not None and bool(each.message_type.GetOptions().map_entry)


def _lost(steps: Steps, done: int, why: str) -> str:
    return f"protobuf: {path_of(steps)}: no such member; {path_of(steps[:done]) if done else 'the message'} {why}"


def _getter(about: Any, steps: Steps) -> Get:
    """What follows the steps from a message: a chain, the first of them outside."""
    gets: list[Get] = []
    done = 0
    while done < len(steps):
        name = steps[done]
        each = about.fields_by_name.get(name) if isinstance(name, str) else None
        if each is None:
            msg = _lost(steps, done, f"has the fields {', '.join(sorted(about.fields_by_name)[:20]) or 'none'}")
            raise ConfigError(msg)
        done += 1
        inner = each
        if not is_repeated(each):
            gets.append(_field(each, _lost(steps, done, "is not set")))
        elif done < len(steps):
            inner = each.message_type.fields_by_name["value"] if is_map(each) else each
            gets.append(_one_of(each, steps, done))
            done += 1
        else:
            if each.cpp_type == _MESSAGE and not (is_map(each) and _plain_map(each)):
                raise ConfigError(_lost(steps, done, "is a list of messages: ask for fields of one, as in x[0].y"))
            gets.append(_many(each))
            break
        if inner.cpp_type != _MESSAGE:
            if done < len(steps):
                raise ConfigError(_lost(steps, done, "is not a message"))
            gets.append(_one(inner))
            break
        about = inner.message_type
    else:
        raise ConfigError(_lost(steps, len(steps), "is a message: ask for its fields"))

    def get(message: Any) -> Any:
        for step in gets:
            message = step(message)
        return message

    return get


def _plain_map(each: Any) -> bool:
    return bool(each.message_type.fields_by_name["value"].cpp_type != _MESSAGE)


def _field(each: Any, unset: str) -> Get:
    name = each.name
    if not each.has_presence:
        return lambda message: getattr(message, name)

    def get(message: Any) -> Any:
        if not message.HasField(name):
            raise MissingPathError(unset)
        return getattr(message, name)

    return get


def _one_of(each: Any, steps: Steps, done: int) -> Get:
    """An item of a repeated field, or what a map has under a key."""
    name, step, keys = each.name, steps[done], is_map(each)
    keyed = keys and each.message_type.fields_by_name["key"].cpp_type
    if isinstance(step, int) == (keyed == _TEXT) or (keys and keyed not in (1, 2, 3, 4, _TEXT)):
        raise ConfigError(_lost(steps, done, f"has {'keys of another kind' if keys else 'numbered items'}"))

    def get(message: Any) -> Any:
        items = getattr(message, name)
        if step not in (items if keys else range(len(items))):
            raise MissingPathError(_lost(steps, done, f"has {len(items)} items"))
        return items[step]

    return get


def _one(each: Any) -> Get:
    return memoryview if each.type == _BYTES else lambda value: value


def _many(each: Any) -> Get:
    name, give = each.name, dict if is_map(each) else _giver(each)
    return lambda message: give(getattr(message, name))


def _giver(each: Any) -> Get:
    """How what a field holds is given."""
    if not is_repeated(each):
        return _one(each)
    if each.type == _BYTES:
        return lambda items: [memoryview(one) for one in items]
    if each.cpp_type == _ENUM:
        return lambda items: np.array(items, np.int32)
    dtype = _DTYPES.get(each.cpp_type)
    return list if dtype is None else lambda items: np.array(items, dtype)
