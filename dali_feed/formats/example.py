"""`Example`: values that are a `tf.train.Example`, by Google's protobuf.

The message is described here, so that TensorFlow is not needed:

    message Example { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    message BytesList { repeated bytes value = 1; }     and so on

Damaged values that protobuf reads all the same are found by the CRCs of a TFRecord, not here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import FormatError
from dali_feed.formats.format import Parse, Value, checked
from dali_feed.packages import needed

_ROW = "[]"
_DTYPES = {"float_list": np.float32, "int64_list": np.int64}


@dataclass(frozen=True, slots=True)
class Example:
    """A `tf.train.Example`. Its members are its features: `image/encoded`, `image/class/label`.

    A feature of one value is a memoryview, an int or a float; of several a list of memoryviews, an int64 or a float32
    array. `NAME[]` gives them in a row whatever their number: for lists whose length differs. A feature that a record
    lacks, or that is empty, is None.
    """

    def bind(self, members: Sequence[str]) -> Parse:
        """What reads these features.

        Raises:
            MissingPackageError: protobuf is not installed.
        """
        names = checked(members)
        wanted = [(name.removesuffix(_ROW), name.endswith(_ROW)) for name in names]
        from_string = example_class().FromString

        def parse(value: Value) -> tuple[Any, ...]:
            features = _features(from_string, value)
            return tuple([_member(features[key], as_row=row) if key in features else None for key, row in wanted])

        return parse

    def members(self, value: Value) -> dict[str, Any]:
        """All features, by name."""
        features = _features(example_class().FromString, value)
        return {key: _member(features[key], as_row=False) for key in sorted(features)}


def _features(from_string: Any, value: Value) -> Any:
    try:
        return from_string(value).features.feature
    except Exception as error:
        raise FormatError(f"example: {' '.join(str(error).split())}") from error


def _member(feature: Any, *, as_row: bool) -> Any:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    if not as_row and len(values) < 2:
        if not values:
            return None
        return memoryview(values[0]) if kind == "bytes_list" else values[0]
    return [memoryview(one) for one in values] if kind == "bytes_list" else np.array(values, _DTYPES[kind])


@functools.cache
def example_class() -> type[Any]:
    """The class of the message, as protoc would make it. MissingPackageError where protobuf is not installed."""
    with needed():
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    field = descriptor_pb2.FieldDescriptorProto
    package = "dali_feed.tf"
    file = descriptor_pb2.FileDescriptorProto(name="dali_feed/example.proto", package=package, syntax="proto3")

    def add(to: Any, name: str, number: int, kind: int | str, *, many: bool = False) -> Any:
        new = to.field.add(name=name, number=number, label=field.LABEL_REPEATED if many else field.LABEL_OPTIONAL)
        if isinstance(kind, str):
            new.type, new.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
        else:
            new.type = kind
        return new

    lists = {"bytes_list": field.TYPE_BYTES, "float_list": field.TYPE_FLOAT, "int64_list": field.TYPE_INT64}
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(lists.items(), 1):
        add(file.message_type.add(name=name), "value", 1, kind, many=True)
        add(feature, name, number, name).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, "Feature")
    add(features, "feature", 1, "Features.FeatureEntry", many=True)
    add(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Example"))
    return message
