"""Records as the formats' own libraries write them."""

from __future__ import annotations

import functools
import io
from typing import Any

import fastavro
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

EXAMPLE = {  # a header and a body, as many topics have them
    "type": "record",
    "name": "Record",
    "namespace": "cameras",
    "fields": [
        {
            "name": "header",
            "type": {
                "type": "record",
                "name": "Header",
                "fields": [
                    {"name": "version", "type": "int"},
                    {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                    {"name": "source", "type": "string"},
                ],
            },
        },
        {
            "name": "body",
            "type": {
                "type": "record",
                "name": "Body",
                "fields": [
                    {"name": "image_id", "type": "string"},
                    {"name": "features", "type": {"type": "array", "items": "float"}},
                    {"name": "label", "type": "int"},
                    {"name": "image", "type": ["null", "bytes"]},
                ],
            },
        },
    ],
}


def example(features: int = 4, image: bytes | None = b"\xff\xd8 an image") -> dict[str, Any]:
    """A record of that schema; its features are exact as float32."""
    return {
        "header": {"version": 3, "timestamp": 1_700_000_000_123, "source": "north gate"},
        "body": {"image_id": "a-1", "features": [k / 8 for k in range(features)], "label": -7, "image": image},
    }


def avro(schema: Any, value: Any) -> bytes:
    """One value, without a header of any kind."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    """An array as NumPy saves it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version=version)
    return file.getvalue()


_FIELDS: dict[str, list[tuple[str, str, bool]]] = {  # message -> name, type, repeated
    "Image": [("data", "bytes", False), ("width", "int32", False)],
    "Body": [
        ("features", "float", True),
        ("label", "int32", False),
        ("image", "bytes", False),
        ("images", "Image", True),
        ("names", "string", True),
        ("crops", "bytes", True),
        ("ids", "int64", True),
        ("deeper", "Body", False),
    ],
    "Record": [("source", "string", False), ("body", "Body", False)],
}


@functools.cache
def message_class(name: str = "Record") -> Any:
    """A message class as protoc would generate it: records with a body, with images in it, a map, an optional field."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="records.proto", package="made", syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for number, (field, kind, many) in enumerate(fields, 1):
            label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
            if kind in _FIELDS:
                made.field.add(
                    name=field, number=number, label=label, type=kinds.TYPE_MESSAGE, type_name=f".made.{kind}"
                )
            else:
                made.field.add(name=field, number=number, label=label, type=getattr(kinds, f"TYPE_{kind.upper()}"))
    record = file.message_type[-1]
    record.oneof_decl.add(name="_weight")
    record.field.add(
        name="weight", number=9, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_DOUBLE, proto3_optional=True, oneof_index=0
    )
    entry = record.nested_type.add(name="ScoresEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    entry.field.add(name="value", number=2, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_FLOAT)
    record.field.add(
        name="scores",
        number=10,
        label=kinds.LABEL_REPEATED,
        type=kinds.TYPE_MESSAGE,
        type_name=".made.Record.ScoresEntry",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"made.{name}"))
