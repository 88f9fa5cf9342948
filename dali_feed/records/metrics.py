"""Numbers of a run, declared once: at the field of the dataclass that holds them.

    samples: int = counter("samples handed to the training loop")

From that line follow the field's text in the reference, its metric for Prometheus and OpenTelemetry, its scalar beside
the loss, what the numbers of several readers are together, and what a run counted between two looks at it.

The law: what is not known is None, never 0. A mean is kept as a sum and a count, so that means can be added up.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal, TypeVar

PREFIX = "dali_feed_"
T = TypeVar("T")
Kind = Literal["counter", "gauge", "histogram", "text", "key", "nested"]
Merge = Callable[[list[Any]], Any]  # of the values that are known, at least one


@dataclass(frozen=True, slots=True)
class Declared:
    """What a field is.

    Attributes:
        kind: "counter": it only grows while its loader lives; "gauge": it goes up and down; "histogram": counts by
            class; "text": a state or a name; "key": which of several this is; "nested": stats, or a tuple of them.
        help: one line for people and for tools, with its unit.
        name: of the metric, with its unit and without `_total`; of a key, of its label. "" keeps it from tools.
        merge: how the values of several readers become one.
        stays: whether it holds when its reader is closed.
        inner: the stats that it nests.
    """

    kind: Kind
    help: str
    name: str | None = None
    merge: Merge = sum
    stays: bool = True
    inner: type | None = None


def _first(values: list[Any]) -> Any:
    return values[0]


def _field(default: Any, kind: Kind, about: str, *more: Any) -> Any:
    return field(default=default, metadata={"metric": Declared(kind, about, *more)})


def counter(about: str, name: str | None = None, *, default: Any = 0) -> Any:
    """A field whose number only grows; of several readers the sum. `about` is the help; all as of `Declared`."""
    return _field(default, "counter", about, name)


def gauge(about: str, name: str | None = None, *, default: Any = 0, merge: Merge = sum, stays: bool = False) -> Any:
    """A field whose number goes up and down."""
    return _field(default, "gauge", about, name, merge, stays)


def histogram(about: str, name: str, *, classes: int) -> Any:
    """A field with counts by class, of which k ends at `2**(k + 1)` microseconds; the field `seconds` has their sum."""
    return _field((0,) * classes, "histogram", about, name, _added)


def text(about: str, name: str | None = None, *, default: Any = "", merge: Merge = _first, stays: bool = True) -> Any:
    """A field that is no number. For tools it is 1 with the text as its label."""
    return _field(default, "text", about, name, merge, stays)


def key(about: str, name: str | None = None) -> Any:
    """The field that says which of several this is: the label of all its numbers, and what readers' stats match by."""
    return _field(MISSING, "key", about, name, _first)


def nested(inner: type, about: str, *, default: Any = None, name: str | None = None, merge: Merge = _first) -> Any:
    """A field with stats of class `inner`, or a tuple of them; its name stands before those of their metrics."""
    return _field(default, "nested", about, name, merge, True, inner)


def derived(name: str | None = None, kind: Kind = "gauge") -> Callable[[T], T]:
    """Below `@property`: a number that tools see too; its help is the first line of its docstring."""

    def mark(get: T) -> T:
        help_ = (get.__doc__ or "").partition("\n")[0]
        get.declared = Declared(kind, help_, name)  # type: ignore[attr-defined]
        return get

    return mark


def _cached(function: T) -> T:
    cached: T = functools.cache(function)  # type: ignore[arg-type, assignment]  # of classes: mypy cannot hash them
    return cached


@_cached
def declarations(kind: type) -> dict[str, Declared]:
    """What the fields of stats are, and behind them what is derived, in order."""
    own = {each.name: each.metadata["metric"] for each in dataclasses.fields(kind) if each.metadata}
    gets = {name: getattr(value, "fget", None) for name, value in vars(kind).items()}
    return own | {name: vars(get)["declared"] for name, get in gets.items() if hasattr(get, "declared")}


# Several as one.


def merged(parts: Sequence[T]) -> T:
    """What several readers measured, as one: each field by its rule, of the parts that know it."""
    if len(parts) == 1:
        return parts[0]
    values: dict[str, Any] = {}
    for each in dataclasses.fields(parts[0]):  # type: ignore[arg-type]  # they are stats
        known = [value for part in parts if (value := getattr(part, each.name)) is not None]
        values[each.name] = each.metadata["metric"].merge(known) if known else None
    return type(parts[0])(**values)


def each_merged(several: Sequence[Sequence[T]]) -> tuple[T, ...]:
    """Stats of several things by several readers: those of one key are one, in the order in which keys come."""
    groups: dict[Any, list[T]] = {}
    for parts in several:
        for part in parts:
            groups.setdefault(_key(part), []).append(part)
    return tuple(map(merged, groups.values()))


def each_in_order(several: Sequence[Sequence[T]]) -> tuple[T, ...]:
    """The same, in the order of their keys."""
    return tuple(sorted(each_merged(several), key=_key))


def _added(rows: list[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def _key(stats: Any) -> Any:
    """The value of its key; None where it has none."""
    return next((getattr(stats, n) for n, each in declarations(type(stats)).items() if each.kind == "key"), None)


def counted(stats: T) -> T:
    """What stays of a reader's numbers when it is closed: what it counted, nothing of how things are now."""
    kept: dict[str, Any] = {}
    for each in dataclasses.fields(stats):  # type: ignore[arg-type]  # they are stats
        declared, value = each.metadata["metric"], getattr(stats, each.name)
        if declared.kind == "nested":
            kept[each.name] = tuple(map(counted, value))
        elif not declared.stays:
            kept[each.name] = None if each.default is None else type(each.default)()  # type: ignore[misc]  # 0 or ""
    return dataclasses.replace(stats, **kept)  # type: ignore[type-var]


def since(before: T | None, after: T) -> T:
    """What was counted between two looks; what goes up and down is as at the second."""
    if before is None:
        return after
    grown: dict[str, Any] = {}
    for name, declared in declarations(type(after)).items():
        old, new = getattr(before, name), getattr(after, name)
        if declared.kind == "counter" and new is not None:
            grown[name] = max(0, new - (old or 0))
        elif declared.kind == "histogram":
            grown[name] = tuple(b - a for a, b in zip(old, new, strict=True))
        elif declared.kind == "nested" and isinstance(new, tuple):
            known = {_key(each): each for each in old}
            grown[name] = tuple(since(known.get(_key(each)), each) for each in new)
        elif declared.kind == "nested" and new is not None:
            grown[name] = since(old, new)
    return dataclasses.replace(after, **grown)  # type: ignore[type-var]


# Fields as metrics.


@dataclass(frozen=True, slots=True)
class Point:
    """A metric's value now with the values of its labels; of a histogram the sum, and `counts` by class."""

    labels: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A number as tools know it.

    Attributes:
        kind: "counter", "gauge" or "histogram".
        name: whole, `dali_feed_read_wait_seconds_total`.
        help: one line.
        labels: their names, in order.
        path: the fields that lead from the stats to its value.
    """

    kind: str
    name: str
    help: str
    labels: tuple[str, ...]
    path: tuple[str, ...]

    def points(self, stats: Any) -> list[Point]:
        """Its values in stats, one for each of several; none of what is not known."""
        owners: list[tuple[tuple[str, ...], Any]] = [((), stats)]
        for step in self.path[:-1]:
            below = ((labels, getattr(owner, step)) for labels, owner in owners)
            several = ((labels, value if isinstance(value, tuple) else (value,)) for labels, value in below)
            owners = [(_labels(labels, one), one) for labels, each in several for one in each if one is not None]
        known = ((labels, owner, getattr(owner, self.path[-1])) for labels, owner in owners)
        if self.kind == "histogram":
            return [Point(labels, owner.seconds, value) for labels, owner, value in known]
        if self.name.endswith("_info"):
            return [Point((*labels, value), 1.0) for labels, _, value in known if value]
        return [Point(labels, float(value)) for labels, _, value in known if value is not None]


def _labels(labels: tuple[str, ...], stats: Any) -> tuple[str, ...]:
    return labels if (value := _key(stats)) is None else (*labels, str(value))


@_cached
def metrics(
    kind: type, prefix: str = PREFIX, labels: tuple[str, ...] = (), path: tuple[str, ...] = ()
) -> tuple[Metric, ...]:
    """All metrics of such stats, in the order of their fields, before there are any values."""
    declared, listed = declarations(kind), list[Metric]()
    labels += tuple(each.name or name for name, each in declared.items() if each.kind == "key")
    for name, each in declared.items():
        called, way = name if each.name is None else each.name, (*path, name)
        if each.inner is not None:
            before = f"{prefix}{called.removesuffix('s')}_" if called else prefix
            listed += metrics(each.inner, before, labels, way)
        elif called and each.kind != "key":
            about = f"{each.help[0].upper()}{each.help[1:].rstrip('.')}."
            if each.kind == "text":
                listed.append(Metric("gauge", f"{prefix}{called}_info", about, (*labels, name), way))
            else:
                total = "_total" if each.kind == "counter" else ""
                listed.append(Metric(each.kind, f"{prefix}{called}{total}", about, labels, way))
    return tuple(listed)
