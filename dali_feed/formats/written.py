"""Members written as one value, in each of the formats that are read.

The law: what is written is read back by the same format, member by member; a member that it cannot hold is an error.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.avro import Avro
from dali_feed.formats.avro_schemas import written
from dali_feed.formats.avro_written import avro_encoder
from dali_feed.formats.contract import Format
from dali_feed.formats.fitted import plain
from dali_feed.formats.json_text import Json
from dali_feed.formats.messagepack import MsgPack
from dali_feed.formats.npy import ARRAY, MAGIC, Npy, array_of
from dali_feed.formats.protobuf import Protobuf
from dali_feed.formats.protobuf_written import protobuf_encoder
from dali_feed.packages import needed

__all__ = ["Encode", "encoder", "has_paths", "told_of"]

Encode = Callable[[Mapping[str, Any]], bytes]
_NAMED: dict[str, Callable[[], Format]] = {"json": Json, "msgpack": MsgPack, "npy": Npy}


def encoder(form: Format | str, names: Sequence[str], base64: tuple[str, ...] = ()) -> Encode:
    """What writes these members as one value; it raises a FormatError for a member that the format cannot hold.

    Raises:
        ConfigError: a format that is not written, or `base64` for one that holds bytes as they are; a name that its
            schema does not have, or lacks.
        MissingPackageError: its library is not installed.
    """
    form = _form(form)
    if isinstance(form, Json):
        coded = (*form.base64, *base64)
        return lambda members: _json(members, coded)
    if base64:
        msg = f"base64: is for JSON only, as other formats hold bytes as they are; found {base64!r}; leave it out"
        raise ConfigError(msg)
    if isinstance(form, Npy):
        if tuple(names) != (ARRAY,):
            msg = f"Npy: a .npy value has {ARRAY!r} alone; found {', '.join(names)}; give {{{ARRAY!r}: member}}"
            raise ConfigError(msg)
        return lambda members: _npy(members[ARRAY])
    if isinstance(form, Avro):
        if form.schema is None:
            msg = "Avro: schema= is needed to write; found schemas="
            raise ConfigError(msg)
        return _plainly(avro_encoder(form.schema, names))
    if isinstance(form, Protobuf):
        return _plainly(protobuf_encoder(form.message, names))
    return _msgpack()


def has_paths(form: Format | str) -> bool:
    """Whether names are paths, `body.label`: where a schema says what is nested."""
    return isinstance(form, Avro | Protobuf)


def told_of(form: Format | str) -> str:
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


def _form(form: Format | str) -> Format:
    made = _NAMED[form]() if isinstance(form, str) and form in _NAMED else form
    if isinstance(made, Json | MsgPack | Npy | Avro | Protobuf):
        return made
    msg = (
        "format: must be 'json', 'msgpack', 'npy', Json(...), MsgPack(), Npy(), Avro(schema) or Protobuf(message);"
        f" found {form!r}"
    )
    raise ConfigError(msg)


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
                msg = f"json: {name}: must be text in UTF-8; {error}; name it in base64="
                raise FormatError(msg) from None
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:  # a NaN, half of a surrogate pair, no JSON type
        msg = f"json: {error}"
        raise FormatError(msg) from None


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
        msg = f"npy: {error}"
        raise FormatError(msg) from None
    array_of(file.getvalue())  # its kind of numbers is one that is read
    return file.getvalue()


def _msgpack() -> Encode:
    with needed():
        import msgpack

    def encode(members: Mapping[str, Any]) -> bytes:
        try:
            packed: bytes = msgpack.packb({name: plain(each) for name, each in members.items()})
        except (TypeError, ValueError, OverflowError) as error:
            msg = f"msgpack: {error}"
            raise FormatError(msg) from None
        return packed

    return encode
