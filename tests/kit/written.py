"""Records as the formats' own libraries write them; message classes from descriptors that are built here."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
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


@functools.cache
def example_class() -> Any:
    """As tensorflow/core/example/example.proto and feature.proto say."""
    file = descriptor_pb2.FileDescriptorProto(name="tf_example.proto", package="theirs", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    kinds = {"BytesList": field.TYPE_BYTES, "FloatList": field.TYPE_FLOAT, "Int64List": field.TYPE_INT64}
    for name, kind in kinds.items():
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, part) in enumerate(zip(("bytes_list", "float_list", "int64_list"), kinds, strict=True), 1):
        feature.field.add(
            name=name, number=number, label=1, type=field.TYPE_MESSAGE, type_name=f".theirs.{part}", oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=1, type=field.TYPE_MESSAGE, type_name=".theirs.Feature")
    features.field.add(
        name="feature",
        number=1,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=".theirs.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=field.TYPE_MESSAGE, type_name=".theirs.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("theirs.Example"))


def example_bytes(features: Mapping[str, Any]) -> bytes:
    """An Example: each value is bytes, an int, a float, or a list of those."""
    example = example_class()()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = example.features.feature[name]
        kind = {bytes: feature.bytes_list, int: feature.int64_list, float: feature.float_list}[type(values[0])]
        kind.value.extend(values)
    found: bytes = example.SerializeToString(deterministic=True)
    return found


def plain(value: Any) -> Any:
    """A value as fastavro takes and gives it: lists for arrays, bytes for views."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value
