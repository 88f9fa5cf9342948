"""The members of an Avro value that were asked for: those are read, the rest is gone over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.formats.avro_bytes import FLAT, count
from dali_feed.formats.avro_types import Types, branch, text
from dali_feed.formats.paths import SHOWN, Steps, path_of, steps_of

__all__ = ["ABSENT", "Wanted", "takes", "wanted_of"]

ABSENT = object()  # where a value has no such member, as its union is of another branch or its list is shorter
Take = Callable[[memoryview, int, list[Any]], int]


@dataclass(slots=True)
class Wanted:
    """What is asked for of a value: itself, into a slot, or members of its own."""

    steps: Steps
    slot: int | None = None
    below: dict[str | int, Wanted] = field(default_factory=dict)


def wanted_of(members: Sequence[str]) -> Wanted:
    """The paths as a tree. ConfigError where one is no path."""
    root = Wanted(())
    for slot, path in enumerate(members):
        node = root
        for step in steps_of(path):
            node = node.below.setdefault(step, Wanted((*node.steps, step)))
        node.slot = slot
    return root


def takes(types: Types, schema: Any, wanted: Wanted) -> Take:
    """What reads what is wanted of a value into the slots of a list, and says where the value ends.

    Raises:
        ConfigError: no value of this schema can have such a member.
    """
    if wanted.slot is not None:
        return _whole(types, schema, wanted, wanted.slot)
    kind, about = types.plain(schema)
    if kind == "record":
        return _of_record(types, about, wanted)
    if kind == "union":
        return _of_union(types, about, wanted)
    if kind == "map":
        return _of_map(types, about, wanted)
    if kind == "array":
        return _of_array(types, about, wanted)
    first = next(iter(wanted.below.values()))
    msg = f"avro: {path_of(first.steps)}: no such member; {path_of(wanted.steps)} is of type {kind}"
    raise ConfigError(msg)


def _whole(types: Types, schema: Any, wanted: Wanted, slot: int) -> Take:
    read = types.read(schema)
    parts = takes(types, schema, Wanted(wanted.steps, None, wanted.below)) if wanted.below else None

    def take(buf: memoryview, at: int, out: list[Any]) -> int:
        out[slot], end = read(buf, at)
        if parts is not None:
            parts(buf, at, out)
        return end

    return take


def _of_record(types: Types, about: Any, wanted: Wanted) -> Take:
    names = [each["name"] for each in about["fields"]]
    for step, node in wanted.below.items():
        if step not in names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            msg = f"avro: {path_of(node.steps)}: no such member; {about['name']} has {', '.join(names[:SHOWN])}{more}"
            raise ConfigError(msg)
    ways: list[tuple[bool, Callable[..., Any]]] = []  # whether it takes, or goes over
    for each in about["fields"]:
        below = wanted.below.get(each["name"])
        ways.append((False, types.skip(each["type"])) if below is None else (True, takes(types, each["type"], below)))

    def take(buf: memoryview, at: int, out: list[Any]) -> int:
        for wants, go in ways:
            at = go(buf, at, out) if wants else go(buf, at)
        return at

    return take


def _over(types: Types, schema: Any) -> Take:
    skip = types.skip(schema)
    return lambda buf, at, _out: skip(buf, at)


def _of_union(types: Types, about: Any, wanted: Wanted) -> Take:
    ways: list[Take] = []
    errors: list[ConfigError] = []
    for each in about:
        try:
            ways.append(takes(types, each, wanted))
        except ConfigError as error:  # of a null, say: other branches may have it
            errors.append(error)
            ways.append(_over(types, each))
    if len(errors) == len(about):
        raise errors[-1]

    def take(buf: memoryview, at: int, out: list[Any]) -> int:
        chosen, at = branch(buf, at, len(ways))
        return ways[chosen](buf, at, out)

    return take


def _of_map(types: Types, about: Any, wanted: Wanted) -> Take:
    ways = {step: takes(types, about["values"], node) for step, node in wanted.below.items()}
    over = types.skip(about["values"])

    def take(buf: memoryview, at: int, out: list[Any]) -> int:
        while True:
            items, _, at = count(buf, at, 1)
            if not items:
                return at
            for _ in itertools.repeat(None, items):
                key, at = text(buf, at)
                way = ways.get(key)
                at = over(buf, at) if way is None else way(buf, at, out)

    return take


def _of_array(types: Types, about: Any, wanted: Wanted) -> Take:
    item = types.items(about)
    if types.plain(item)[0] in FLAT:
        return _of_numbers(types, about, wanted)
    ways = {step: takes(types, item, node) for step, node in wanted.below.items()}
    over = types.skip(item)

    def take(buf: memoryview, at: int, out: list[Any]) -> int:
        number = 0
        while True:
            items, _, at = count(buf, at, 1)
            if not items:
                return at
            for _ in itertools.repeat(None, items):
                way = ways.get(number)
                at = over(buf, at) if way is None else way(buf, at, out)
                number += 1

    return take


def _of_numbers(types: Types, about: Any, wanted: Wanted) -> Take:
    read = types.read(about)
    ways = {step: node.slot for step, node in wanted.below.items() if isinstance(step, int) and node.slot is not None}

    def take(buf: memoryview, at: int, out: list[Any]) -> int:
        found, at = read(buf, at)
        for step, slot in ways.items():
            if step < len(found):
                out[slot] = found[step].item()
        return at

    return take
