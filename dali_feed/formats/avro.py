"""`Avro`: values in Avro's binary encoding, with a schema that is known or that each value names.

Schemas are fastavro's business, values are not: its reader copies what it reads and makes an object of each number, has
no way past what nobody asked for, and trusts the bytes. Five of them that announce a hundred million nulls keep it busy
for seconds, and a value nested deeply enough ends the process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.avro_members import ABSENT, Wanted, takes, wanted_of
from dali_feed.formats.avro_schemas import Schemas, parsed, written
from dali_feed.formats.avro_types import Types
from dali_feed.formats.contract import Parse, Value
from dali_feed.formats.paths import WHOLE, flatten

__all__ = ["Avro"]

_FRAME = struct.Struct(">BI")  # a zero and the schema's id, as Confluent's serializers write them


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro's binary encoding. Give one of the two.

    schema   that all values are of: a dict or list, JSON text, or the path of an `.avsc` file
    schemas  values begin with a zero byte and four of their schema's id, as Confluent's serializers write them; this
             says where the schemas are: a folder of ID.avsc files, a schema registry client (confluent_kafka's, or
             what has its `get_schema` and, for references, `get_version`), or a function of an id that gives a schema

    Bytes and fixed are given as views, arrays of numbers and booleans as NumPy arrays (of floats and doubles: views
    too, where they were written in one block; ints and longs as int64), an enum as its symbol. A logical type is
    given as what it is stored as. There is no reader's schema: a member that a value's own schema lacks is missing.
    """

    schema: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any] | None = None
    schemas: Any = None

    def __post_init__(self) -> None:
        if (self.schema is None) == (self.schemas is None):
            msg = "Avro: must have either schema= (one for all values) or schemas= (a folder or a registry); found " + (
                "none" if self.schema is None else "both"
            )
            raise ConfigError(msg)

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these members: paths through records, maps, arrays and unions.

        Raises:
            ConfigError: the schema cannot be read, or has no such member; where values name their schemas, that is an
                error of the values.
            MissingPackageError: fastavro is not installed.
        """
        wanted = wanted_of(members)
        if self.schemas is None:
            named: dict[str, Any] = {}
            return _parse(Types(named), parsed(written(self.schema), named), wanted, members)
        schemas = Schemas(self.schemas)
        made: dict[int, Parse] = {}

        def parse(value: Value) -> tuple[Any, ...]:
            buf = memoryview(value)
            if len(buf) < _FRAME.size or buf[0]:
                msg = f"avro: must begin with a zero byte and a schema's id; found {bytes(buf[:5])!r}"
                raise FormatError(msg)
            number = _FRAME.unpack_from(buf)[1]
            if number not in made:
                made[number] = self._of(schemas, number, wanted, members)
            return made[number](buf[_FRAME.size :])

        return parse

    def _of(self, schemas: Schemas, number: int, wanted: Wanted, members: Sequence[str]) -> Parse:
        named: dict[str, Any] = {}
        schema = schemas.get(number, named)
        try:
            return _parse(Types(named), schema, wanted, members)
        except (ConfigError, FormatError) as error:
            msg = f"{error}; schema {number}"
            raise FormatError(msg) from None

    def members(self, value: Value) -> dict[str, Any]:
        """All members by path."""
        return flatten(self.bind((WHOLE,))(value)[0])


def _parse(types: Types, schema: Any, wanted: Wanted, members: Sequence[str]) -> Parse:
    take, empty = takes(types, schema, wanted), [ABSENT] * len(members)

    def parse(value: Value) -> tuple[Any, ...]:
        buf, out = memoryview(value), empty.copy()
        try:
            end = take(buf, 0, out)
        except IndexError:
            msg = f"avro: cut off, or of another schema: its {len(buf)} bytes end before the value does"
            raise FormatError(msg) from None
        if end != len(buf):
            msg = f"avro: must be one value of the schema; {len(buf) - end} of {len(buf)} bytes are left over"
            raise FormatError(msg)
        for slot, each in enumerate(out):
            if each is ABSENT:
                msg = f"avro: {members[slot]}: no such member in this value"
                raise FormatError(msg)
        return tuple(out)

    return parse
