"""Members written as one value, in each of the formats that are read.

The law: what is written is read back by the same format, member by member; a member that it cannot hold is an error.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.avro import Avro, Types
from dali_feed.formats.avro_schemas import whole, written
from dali_feed.formats.format import Format
from dali_feed.formats.json_text import Json
from dali_feed.formats.message_pack import MsgPack
from dali_feed.formats.npy import ARRAY, MAGIC, Npy, array_of
from dali_feed.formats.paths import Steps, path_of, steps_of
from dali_feed.formats.protobuf import Protobuf, is_map, is_repeated
from dali_feed.packages import needed

# Values of a source made into what a schema wants: bytes and decimal text too, which is all that tar shards have.
#
# The law: nothing is lost on the way but digits, or it is an error.


Fit = Callable[[Any], Any]

_BYTES = (bytes, bytearray, memoryview)
_LONGEST = 40  # letters of a number


def plain(value: Any) -> Any:
    """Without NumPy, and without views of memory that is given back."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value


def octets(value: Any) -> bytes:
    """Bytes."""
    if isinstance(value, _BYTES):
        return bytes(value)
    raise FormatError(_odd("bytes", value))


def text(value: Any) -> str:
    """A text, or one in UTF-8."""
    if isinstance(value, str):
        return value
    if not isinstance(value, _BYTES):
        raise FormatError(_odd("a text", value))
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"must be text in UTF-8; {error}") from None


def flag(value: Any) -> bool:
    """True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise FormatError(_odd("a boolean", value))


def number(dtype: str) -> Fit:
    """A number that such a dtype holds, but for digits of a fraction, or its decimal text."""
    known = np.dtype(dtype)

    def whole(value: Any) -> int:
        value = _parsed(int, value)
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise FormatError(_odd("a whole number", value))
        bounds = np.iinfo(known)
        if not bounds.min <= int(value) <= bounds.max:
            raise FormatError(f"must be a whole number in {bounds.min}..{bounds.max}; found {value}")
        return int(value)

    def real(value: Any) -> float:
        value = _parsed(float, value)
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
            raise FormatError(_odd("a number", value))
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if float(np.finfo(known).max) < abs(number) < math.inf or (math.isinf(number) and isinstance(value, int)):
            raise FormatError(f"must be a number of {8 * known.itemsize} bits; found {str(value)[:_LONGEST]}")
        return number

    return real if known.kind == "f" else whole


def many(each: Fit, dtype: str | None = None) -> Fit:
    """Several in a row: a list, an array of one dimension, or the bytes of one as NumPy saves it.

    dtype  of numbers, all of which are taken as they are
    """
    known = None if dtype is None else np.dtype(dtype)

    def fit(value: Any) -> list[Any]:
        if isinstance(value, _BYTES) and bytes(value[:6]) == MAGIC:
            value = array_of(bytes(value))
        if isinstance(value, np.ndarray):
            if value.ndim != 1:
                raise FormatError(f"must be numbers in a row; found an array of shape {value.shape}")
            if known is not None and value.dtype.kind in known.kind + "iu" and np.can_cast(value.dtype, known):
                return cast("list[Any]", value.tolist())
            value = value.tolist()
        if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Sequence):
            raise FormatError(_odd("a list", value))
        return [each(one) for one in value]

    return fit


def _parsed(kind: Callable[[str], Any], value: Any) -> Any:
    """A number of decimal text; what is no text is as it is."""
    if not isinstance(value, str | bytes | bytearray | memoryview):
        return value
    shown = text(value)
    try:
        if len(shown) > _LONGEST or "_" in shown:
            raise ValueError
        value = kind(shown)
        if isinstance(value, float) and math.isinf(value) and "n" not in shown.lower():
            raise ValueError  # too large
    except ValueError:
        raise FormatError(f"must be a number in decimal text; found {shown[:_LONGEST]!r}") from None
    return value


def _odd(wanted: str, value: Any) -> str:
    return f"must be {wanted}; found {'nothing' if value is None else type(value).__name__}"


# Records written in Avro, of one schema, by fastavro; what goes into a field is made to fit it first.


_AVRO_DTYPES = {"int": "i4", "long": "i8", "float": "f4", "double": "f8"}
_AVRO_FITS: dict[str, Fit] = {"boolean": flag, "bytes": octets, "string": text}
_AVRO_FITS |= {kind: number(dtype) for kind, dtype in _AVRO_DTYPES.items()}
_AVRO_ROWS = {kind: many(fit, _AVRO_DTYPES.get(kind)) for kind, fit in _AVRO_FITS.items()}
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
    types = Types(*whole(schema))
    tree: dict[str, Any] = {}
    for name in names:
        _put(tree, steps_of(name), name)
    if types.plain(types.schema)[0] != "record":
        raise ConfigError(f"Avro: a schema to write with must be of type record; found {types.plain(types.schema)[0]}")
    _check(types, types.schema, tree, ())

    def encode(members: Mapping[str, Any]) -> bytes:
        record = _filled(tree, members)
        file = io.BytesIO()
        try:
            schemaless_writer(file, types.schema, _fitted(types, types.schema, record, ()))
        except FormatError:
            raise
        except Exception as error:
            raise FormatError(f"avro: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
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
        raise ConfigError(f"Avro: {path_of(steps)}: must be a record to have fields of its own; it is of type {kind}")
    fields = {each["name"]: each for each in about["fields"]}
    for name, inner in tree.items():
        if name not in fields:
            msg = f"Avro: {path_of((*steps, name))}: no such field; {about['name']} has {', '.join(fields)}"
            raise ConfigError(msg)
        if isinstance(inner, dict):
            _check(types, fields[name]["type"], inner, (*steps, name))
    lacking = [name for name, each in fields.items() if name not in tree and not _may_lack(types, each)]
    if lacking:
        raise ConfigError(
            f"Avro: {path_of((*steps, lacking[0]))}: the schema needs it, and has no default; name it among the values"
        )


def _may_lack(types: Types, field: Mapping[str, Any]) -> bool:
    kind, about = types.plain(field["type"])
    kinds = [types.plain(each)[0] for each in about] if kind == "union" else [kind]
    return "default" in field or "null" in kinds


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
        if kind in _AVRO_FITS:
            return _AVRO_FITS[kind](value)
        if kind == "array":
            items = types.plain(about["items"])[0]
            each = _AVRO_ROWS.get(items) or many(lambda one: _fitted(types, about["items"], one, steps))
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
        raise FormatError(f"avro: {path_of(steps)}: {error}") from None
    shown = repr(value[:40] if isinstance(value, str | bytes) else type(value).__name__)
    raise FormatError(f"avro: {path_of(steps)}: must be of the type {kind}; found {shown}")


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
    record: dict[str, Any] = {}
    for field in about["fields"]:
        name = field["name"]
        if name in value:
            record[name] = _fitted(types, field["type"], value[name], (*steps, name))
        elif "default" not in field:
            record[name] = _fitted(types, field["type"], None, (*steps, name))
    return record


# Messages written in Protobuf, of a class of the user's, by Google's library; what goes into a field fits it first.


Put = Callable[[Any, Any], None]

_MESSAGE, _TYPE_BYTES = 10, 12  # CPPTYPE_MESSAGE, TYPE_BYTES
_DTYPES = {1: "i4", 2: "i8", 3: "u4", 4: "u8", 5: "f8", 6: "f4"}  # by CPPTYPE_*
_FITS: dict[int, Fit] = {kind: number(dtype) for kind, dtype in _DTYPES.items()}
_FITS |= {7: flag, 8: _FITS[1], 9: text}  # an enum, by number


def protobuf_encoder(message: type[Any], names: Sequence[str]) -> Any:
    """What writes members, by path, as one message. A member that is None leaves its field unset.

    Raises:
        ConfigError: a field that the message has not, or one that is a message.
    """
    puts = [(name, _putter(message.DESCRIPTOR, name)) for name in names]

    def encode(members: Mapping[str, Any]) -> bytes:
        filled = message()
        for name, put in puts:
            value = members[name]
            if value is not None:
                try:
                    put(filled, value)
                except (FormatError, TypeError, ValueError) as error:
                    raise FormatError(f"protobuf: {name}: {error}") from None
        if lacking := filled.FindInitializationErrors():
            raise FormatError(f"protobuf: {lacking[0]}: is required, and has no value")
        data: bytes = filled.SerializeToString(deterministic=True)
        return data

    return encode


def _putter(about: Any, name: str) -> Put:
    steps = steps_of(name)
    way: list[str] = []
    for done, step in enumerate(steps, 1):
        each = about.fields_by_name.get(step) if isinstance(step, str) else None
        if each is None:
            raise ConfigError(
                f"Protobuf: {path_of(steps[:done])}: no such field; {about.name} has {', '.join(about.fields_by_name)}"
            )
        if done < len(steps):
            if each.cpp_type != _MESSAGE or is_repeated(each):
                raise ConfigError(f"Protobuf: {path_of(steps[:done])}: must be a message to have fields of its own")
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
        key, content = (each.message_type.fields_by_name[part] for part in ("key", "value"))
        if content.cpp_type != _MESSAGE:
            of_key, of_value = _fit(key), _fit(content)

            def put_map(message: Any, value: Any) -> None:
                if not isinstance(value, Mapping):
                    raise FormatError(f"must be a mapping; found {type(value).__name__}")
                getattr(message, field).update({of_key(k): of_value(v) for k, v in value.items()})

            return put_map
    if each.cpp_type == _MESSAGE:
        raise ConfigError(f"Protobuf: {name}: is a message, or a list of them: name fields of one")
    fit = _fit(each)
    if is_repeated(each):
        fits = many(fit, _DTYPES.get(each.cpp_type))
        return lambda message, value: getattr(message, field).extend(fits(value))
    return lambda message, value: setattr(message, field, fit(value))


def _fit(each: Any) -> Fit:
    return octets if each.type == _TYPE_BYTES else _FITS[each.cpp_type]


Encode = Callable[[Mapping[str, Any]], bytes]
_NAMED: dict[str, Callable[[], Format]] = {"json": Json, "msgpack": MsgPack, "npy": Npy}


def encoder(form: Format | str, names: Sequence[str]) -> Encode:
    """What writes these members as one value; it raises a FormatError for a member that the format cannot hold.

    Raises:
        ConfigError: a format that is not written; a name that its schema does not have, or lacks.
        MissingPackageError: its library is not installed.
    """
    if isinstance(form, str) and form in _NAMED:
        form = _NAMED[form]()
    if isinstance(form, Json):
        coded = form.base64
        return lambda members: _json(members, coded)
    if isinstance(form, Npy):
        if tuple(names) != (ARRAY,):
            msg = f"Npy: a .npy value has {ARRAY!r} alone; found {', '.join(names)}; give {{{ARRAY!r}: member}}"
            raise ConfigError(msg)
        return lambda members: _npy(members[ARRAY])
    if isinstance(form, Avro):
        if form.schema is None or form.reader_schema is not None:
            other = "schemas" if form.schema is None else "reader_schema"
            raise ConfigError(f"Avro: to write, must have schema= alone; found {other}=")
        return _plainly(avro_encoder(form.schema, names))
    if isinstance(form, Protobuf):
        return _plainly(protobuf_encoder(form.message, names))
    if isinstance(form, MsgPack):
        return _msgpack()
    raise ConfigError(
        "format: must be 'json', 'msgpack', 'npy', Json(...), MsgPack(), Npy(), Avro(schema) or Protobuf(message);"
        f" found {form!r}"
    )


def has_paths(form: Format | str) -> bool:
    """Whether names are paths, `body.label`: where a schema says what is nested."""
    return isinstance(form, Avro | Protobuf)


def title_of(form: Format | str) -> str:
    """A format in one line, the same wherever it is written so."""
    if isinstance(form, str):
        return form
    if isinstance(form, Avro):
        return f"avro {hashlib.sha256(json.dumps(written(form.schema), sort_keys=True).encode()).hexdigest()[:16]}"
    if isinstance(form, Protobuf):
        return f"protobuf {form.message.DESCRIPTOR.full_name}"
    if isinstance(form, Json) and form.base64:
        return f"json {','.join(form.base64)}"
    return type(form).__name__.lower()


def _plainly(encode: Encode) -> Encode:
    """Arrays as they are, other things without NumPy."""
    return lambda members: encode(
        {name: each if isinstance(each, np.ndarray) else plain(each) for name, each in members.items()}
    )


def _json(members: Mapping[str, Any], coded: tuple[str, ...]) -> bytes:
    record = {}
    for name, each in members.items():
        value = plain(each)
        if not isinstance(value, bytes):
            record[name] = value
        elif name in coded:
            record[name] = base64.b64encode(value).decode()
        else:
            try:
                record[name] = value.decode()
            except UnicodeDecodeError as error:
                raise FormatError(
                    f"json: {name}: must be text in UTF-8; {error}; name it in Json(base64=...)"
                ) from None
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:  # a NaN, half of a surrogate pair, no JSON type
        raise FormatError(f"json: {error}") from None


def _npy(value: Any) -> bytes:
    """A .npy file of an array, of numbers in a list, or what is one already."""
    if isinstance(value, bytes | bytearray | memoryview) and bytes(value[:6]) == MAGIC:
        array_of(value)
        return bytes(value)
    if isinstance(value, str | bytes | bytearray | memoryview) or value is None:
        msg = f"npy: must be an array, or a .npy file; found {'nothing' if value is None else type(value).__name__}"
        raise FormatError(msg)
    file = io.BytesIO()
    try:
        np.lib.format.write_array(file, np.asanyarray(value), allow_pickle=False)
    except (TypeError, ValueError, OverflowError) as error:  # objects, rows of different lengths
        raise FormatError(f"npy: {error}") from None
    array_of(file.getvalue())  # its kind of numbers is one that is read
    return file.getvalue()


def _msgpack() -> Encode:
    with needed():
        import msgpack

    def encode(members: Mapping[str, Any]) -> bytes:
        try:
            packed: bytes = msgpack.packb({name: plain(each) for name, each in members.items()})
        except (TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"msgpack: {error}") from None
        return packed

    return encode
