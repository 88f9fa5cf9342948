"""Figures: stats walked through field by field, each number with its name, its labels and what it is.

The law: nothing here knows a field by name. A number is a figure, a short text one that is 1 with the text as its
label, what is nested has its name before its figures', and of a tuple each has a label: its first field, which names
it. What has no name but happened once, as `recent_bad`, is no figure.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dali_feed.records.gauges import LATENCIES
from dali_feed.watching.names import DERIVED, SPREAD, Form, form_of, told

__all__ = ["BORDERS", "PREFIX", "Figure", "Metric", "figures", "metrics"]

PREFIX = "dali_feed_"
BORDERS = tuple(float(1 << (k + 1)) / 1e6 for k in range(LATENCIES - 1))  # of the classes of a store's latency, seconds


@dataclass(frozen=True, slots=True)
class Metric:
    """What a figure is of: its whole name, what it is, the names of its labels in their order.

    classes  it is a histogram; its value is the counts by class of `BORDERS` and the sum of the times
    """

    name: str
    form: Form
    labels: tuple[str, ...] = ()
    classes: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A number as it is now; of a histogram the counts by class are in `counts`, and the sum is the value."""

    metric: Metric
    values: tuple[str, ...]
    value: float
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    """A field: `inner` is what it nests, `several` in a tuple."""

    name: str
    inner: type | None
    several: bool
    text: bool
    number: bool
    classes: bool


@functools.cache
def _steps(kind: type) -> tuple[_Step, ...]:
    hints = typing.get_type_hints(kind)
    steps = [_step(each.name, hints[each.name]) for each in dataclasses.fields(kind)]
    steps += [_Step(name, None, False, False, True, False) for name in DERIVED.get(kind.__name__, ())]
    return tuple(steps)


def _step(name: str, hint: Any) -> _Step:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    one = next((part for part in parts if part is not type(None)), hint)
    arguments = typing.get_args(one)
    several = typing.get_origin(one) is tuple and len(arguments) == 2 and arguments[1] is ...
    inside = arguments[0] if several else one
    nested = isinstance(inside, type) and dataclasses.is_dataclass(inside) and (not several or _is_named(inside))
    return _Step(
        name,
        inside if nested else None,
        several and nested,
        one is str,
        one in (int, float, bool),
        name == SPREAD and several and inside is int,
    )


def _is_named(kind: Any) -> bool:
    """Whether the first field of each says which it is, as a partition's number does, and not when it happened."""
    first = dataclasses.fields(kind)[0]
    return typing.get_type_hints(kind)[first.name] is str or kind.__name__.endswith("Stats")


def _label(step: _Step) -> str:
    """Of each of several: its first field, or where that is called "name", what the several are called."""
    first: str = dataclasses.fields(step.inner)[0].name  # type: ignore[arg-type]  # it nests something
    return _single(step) if first == "name" else first


def _single(step: _Step) -> str:
    return step.name.removesuffix("s") if step.several else step.name


def _before(prefix: str, step: _Step) -> str:
    return f"{prefix}{_single(step)}_"


def metrics(kind: type, prefix: str = PREFIX, labels: tuple[str, ...] = (), *, one: bool = True) -> Iterator[Metric]:
    """All metrics that the figures of such stats may be of; `one` of them, or one of several with a label each."""
    for step in _steps(kind)[0 if one else 1 :]:
        form = form_of(kind, step.name)
        if step.inner is not None:
            more = (*labels, _label(step)) if step.several else labels
            yield from metrics(step.inner, _before(prefix, step), more, one=not step.several)
        elif step.number or step.classes:
            yield Metric(prefix + form.name, form, labels, step.classes)
        elif step.text:
            yield _text(prefix, form, labels, step.name)


def _text(prefix: str, form: Form, labels: tuple[str, ...], name: str) -> Metric:
    whole = form.name if form.name.endswith("_info") else f"{form.name}_info"
    return Metric(prefix + whole, form, (*labels, name))


def figures(
    stats: Any, prefix: str = PREFIX, labels: Mapping[str, str] | None = None, *, one: bool = True
) -> Iterator[Figure]:
    """The figures of stats, in the order of their fields; what is not known (None) has none."""
    kind: type = type(stats)
    labels = labels or {}
    names, values = tuple(labels), tuple(labels.values())
    for step in _steps(kind)[0 if one else 1 :]:
        value = getattr(stats, step.name)
        if value is None:
            continue
        form = form_of(kind, step.name)
        if step.inner is not None:
            for each in value if step.several else (value,):
                at = {_label(step): str(_first(each))} if step.several else {}
                yield from figures(each, _before(prefix, step), {**labels, **at}, one=not step.several)
        elif step.classes:
            yield Figure(Metric(prefix + form.name, form, names, classes=True), values, stats.seconds, tuple(value))
        elif step.number:
            yield Figure(Metric(prefix + form.name, form, names), values, float(value))
        elif step.text and told(value):
            yield Figure(_text(prefix, form, names, step.name), (*values, value), 1.0)


def _first(stats: Any) -> Any:
    return getattr(stats, dataclasses.fields(stats)[0].name)
