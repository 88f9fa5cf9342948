"""Records written in Avro, of one schema, by fastavro; what goes into a field is made to fit it first."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.avro_schemas import parsed, written
from dali_feed.formats.avro_types import Types
from dali_feed.formats.fitted import Fit, flag, many, octets, real, text, whole
from dali_feed.formats.paths import Steps, path_of, steps_of
from dali_feed.packages import needed

__all__ = ["avro_encoder"]

_PLAIN: dict[str, Fit] = {
    "boolean": flag,
    "int": whole(-(1 << 31), (1 << 31) - 1),
    "long": whole(-(1 << 63), (1 << 63) - 1),
    "float": real(single=True),
    "double": real(single=False),
    "bytes": octets,
    "string": text,
}
_DTYPES = {"int": "i4", "long": "i8", "float": "f4", "double": "f8"}
_MANY = {kind: many(fit, _DTYPES.get(kind)) for kind, fit in _PLAIN.items()}
# Which branch of a union a value of a Python type goes to, if it is there: others are tried in the schema's order.
_FIRST: dict[type, tuple[str, ...]] = {
    bytes: ("bytes", "fixed"),
    memoryview: ("bytes", "fixed"),
    str: ("string", "enum"),
    bool: ("boolean",),
    int: ("long", "int"),
    float: ("double", "float"),
    dict: ("record", "map"),
}


def avro_encoder(schema: Any, names: Sequence[str]) -> Any:
    """What writes members, by path, as one record of the schema.

    Raises:
        ConfigError: the schema is none, or no record's; it has no such field; or it needs another one.
        MissingPackageError: fastavro is not installed.
    """
    with needed():
        from fastavro import schemaless_writer
    named: dict[str, Any] = {}
    whole_schema = parsed(written(schema), named)
    types = Types(named)
    tree: dict[str, Any] = {}
    for name in names:
        _put(tree, steps_of(name), name)
    if types.plain(whole_schema)[0] != "record":
        msg = f"Avro: a schema to write with must be of type record; found {types.plain(whole_schema)[0]}"
        raise ConfigError(msg)
    _check(types, whole_schema, tree, ())

    def encode(members: Mapping[str, Any]) -> bytes:
        record = _filled(tree, members)
        file = io.BytesIO()
        try:
            schemaless_writer(file, whole_schema, _fitted(types, whole_schema, record, ()))
        except FormatError:
            raise
        except Exception as error:
            msg = f"avro: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise FormatError(msg) from error
        return file.getvalue()

    return encode


def _put(tree: dict[str, Any], steps: Steps, name: str) -> None:
    for step in steps[:-1]:
        inner = tree.setdefault(str(step), {})
        if not isinstance(inner, dict):
            break
        tree = inner
    else:
        if tree.setdefault(str(steps[-1]), name) == name and all(isinstance(step, str) for step in steps):
            return
    msg = f"Avro: {name}: must be the path of a field, and no other name may be that path or lead through it"
    raise ConfigError(msg)


def _check(types: Types, schema: Any, tree: Mapping[str, Any], steps: Steps) -> None:
    """Hold the names to the schema."""
    kind, about = types.plain(schema)
    if kind == "union":
        records = [each for each in about if types.plain(each)[0] == "record"]
        kind, about = types.plain(records[0]) if len(records) == 1 else (kind, about)
    if kind != "record":
        msg = f"Avro: {path_of(steps)}: must be a record to have fields of its own; it is of type {kind}"
        raise ConfigError(msg)
    fields = {each["name"]: each for each in about["fields"]}
    for name, inner in tree.items():
        if name not in fields:
            msg = f"Avro: {path_of((*steps, name))}: no such field; {about['name']} has {', '.join(fields)}"
            raise ConfigError(msg)
        if isinstance(inner, dict):
            _check(types, fields[name]["type"], inner, (*steps, name))
    lacking = [name for name, each in fields.items() if name not in tree and not _may_lack(types, each)]
    if lacking:
        msg = (
            f"Avro: {path_of((*steps, lacking[0]))}: the schema needs it, and has no default; name it among the values"
        )
        raise ConfigError(msg)


def _may_lack(types: Types, field: Mapping[str, Any]) -> bool:
    return "default" in field or _takes_null(types, field["type"])


def _takes_null(types: Types, schema: Any) -> bool:
    kind, about = types.plain(schema)
    return kind == "null" or (kind == "union" and any(types.plain(each)[0] == "null" for each in about))


def _filled(tree: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _filled(inner, members) if isinstance(inner, dict) else members[inner] for name, inner in tree.items()
    }


def _fitted(types: Types, schema: Any, value: Any, steps: Steps) -> Any:
    """A value as fastavro takes it. It goes as deep as the value does."""
    kind, about = types.plain(schema)
    if kind == "union":
        return _of_union(types, about, value, steps)
    if kind == "record":
        return _of_record(types, about, value, steps)
    try:
        if kind == "null" and value is None:
            return None
        if kind in _PLAIN:
            return _PLAIN[kind](value)
        if kind == "array":
            items = types.plain(about["items"])[0]
            each = _MANY.get(items) or many(lambda one: _fitted(types, about["items"], one, steps))
            return each(value)
        if kind == "map" and isinstance(value, Mapping):
            return {text(key): _fitted(types, about["values"], one, (*steps, str(key))) for key, one in value.items()}
        if kind == "enum" and text(value) in about["symbols"]:
            return text(value)
        if kind == "fixed" and len(octets(value)) == about["size"]:
            return octets(value)
    except FormatError as error:
        if str(error).startswith("avro: "):
            raise
        msg = f"avro: {path_of(steps)}: {error}"
        raise FormatError(msg) from None
    shown = repr(value[:40] if isinstance(value, str | bytes) else type(value).__name__)
    msg = f"avro: {path_of(steps)}: must be of the type {kind}; found {shown}"
    raise FormatError(msg)


def _of_union(types: Types, about: Any, value: Any, steps: Steps) -> Any:
    branches = [(types.plain(each)[0], each) for each in about]
    if value is None and any(kind == "null" for kind, _ in branches):
        return None
    first = _FIRST.get(type(value), ())
    branches.sort(key=lambda branch: branch[0] not in first)
    why: FormatError | None = None
    for kind, each in branches:
        if kind == "null":
            continue
        try:
            return _fitted(types, each, value, steps)
        except FormatError as error:
            why = why or error
    if why is None:
        why = FormatError(f"avro: {path_of(steps)}: must be null; found {type(value).__name__}")
    raise why


def _of_record(types: Types, about: Any, value: Any, steps: Steps) -> Any:
    if not isinstance(value, Mapping):
        msg = f"avro: {path_of(steps)}: must be a record; found {'nothing' if value is None else type(value).__name__}"
        raise FormatError(msg)
    made: dict[str, Any] = {}
    for field in about["fields"]:
        name = field["name"]
        if name in value:
            made[name] = _fitted(types, field["type"], value[name], (*steps, name))
        elif "default" not in field:
            made[name] = _fitted(types, field["type"], None, (*steps, name))
    return made
