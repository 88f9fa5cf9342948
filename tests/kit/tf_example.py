"""The class `tf.train.Example` from descriptors that are built here, and records written with it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


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
