"""What reading a value costs: microseconds of CPU time per record, for each format, beside its library alone.

    python bench/bench_formats.py [--passes 60] [--seconds 0.05]

Records: `image` (a label and an image of 100 KB), `features` (2048 float32 and a label) and `fields` (20 numbers and
texts). Asked for are all members, or one of the 20. Beside each stands what the format's own library takes to read
the same value as a whole (`json`, `fastavro.schemaless_reader`, `msgpack.unpackb`, `FromString` alone, `numpy.load`).
The two take turns; of each the best pass counts. Rows go to results/formats.csv.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import numpy as np
import orjson
from _results import RESULTS, Rows
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from dali_feed.bench.facts import facts
from dali_feed.formats import Avro, Format, Json, MsgPack, Npy, Protobuf, bound

IMAGE_BYTES, FEATURES, FIELDS = 100_000, 2048, 20
KINDS: dict[type, tuple[Any, str]] = {  # as Avro and Protocol Buffers call them
    int: ("long", "TYPE_INT64"),
    float: ("double", "TYPE_DOUBLE"),
    str: ("string", "TYPE_STRING"),
    bytes: ("bytes", "TYPE_BYTES"),
    list: ({"type": "array", "items": "float"}, "TYPE_FLOAT"),
}


@dataclass(frozen=True)
class Case:
    """One value, what reads it here, and what its library does with it."""

    form: Format
    value: bytes
    alone: Callable[[bytes], object]


def records() -> dict[str, dict[str, Any]]:
    """The three kinds of records."""
    draw = np.random.default_rng(0)
    made = {f"field_{k}": [k * 1000, k / 3, f"the text of field {k}"][k % 3] for k in range(FIELDS)}
    return {
        "image": {"label": 7, "image": draw.bytes(IMAGE_BYTES)},
        "features": {"features": draw.random(FEATURES, np.float32).tolist(), "label": 7},
        "fields": made,
    }


def message_class(record: dict[str, Any]) -> Any:
    """A message class for such a record, as protoc would make it."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="record.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Record")
    for number, (name, held) in enumerate(record.items(), 1):
        label = field.LABEL_REPEATED if isinstance(held, list) else field.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=getattr(field, KINDS[type(held)][1]), label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Record"))


def cases(record: dict[str, Any]) -> dict[str, Case]:
    """The record in each format."""
    fields = [{"name": name, "type": KINDS[type(held)][0]} for name, held in record.items()]
    schema = {"type": "record", "name": "Record", "fields": fields}
    parsed, file, message = fastavro.parse_schema(schema), io.BytesIO(), message_class(record)
    fastavro.schemaless_writer(file, parsed, record)
    texts = {
        name: base64.b64encode(held).decode() if isinstance(held, bytes) else held for name, held in record.items()
    }
    images = tuple(name for name, held in record.items() if isinstance(held, bytes))
    made = {
        "json": Case(Json(base64=images), orjson.dumps(texts), json.loads),
        "avro": Case(Avro(schema), file.getvalue(), lambda v: fastavro.schemaless_reader(io.BytesIO(v), parsed, None)),
        "msgpack": Case(MsgPack(), msgpack.packb(record), msgpack.unpackb),
        "protobuf": Case(Protobuf(message), message(**record).SerializeToString(), message.FromString),
    }
    if "features" in record:
        saved = io.BytesIO()
        np.save(saved, np.array(record["features"], np.float32))
        made["npy"] = Case(Npy(), saved.getvalue(), lambda v: np.load(io.BytesIO(v), allow_pickle=False))
    return made


def timed(call: Callable[[bytes], object], value: bytes, seconds: float) -> float:
    """Microseconds of CPU time per call, over a pass of about so many seconds."""
    calls, begun = 0, time.thread_time()
    while (spent := time.thread_time() - begun) < seconds:
        for _ in range(20):
            call(value)
        calls += 20
    return spent / calls * 1e6


def main() -> int:
    """Measure, print, and add rows to results/formats.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a pass (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    libraries = {name: version(name) for name in ("orjson", "pybase64", "fastavro", "msgpack", "protobuf")}
    rows = Rows("formats", facts() | libraries | {"passes": args.passes, "seconds": args.seconds}, args.results)
    for kind, record in records().items():
        for name, case in cases(record).items():
            whole = ["array"] if name == "npy" else list(record)
            for asked in [whole, whole[:1]] if kind == "fields" else [whole]:

                def row(case: Case = case, asked: list[str] = asked, about: tuple[str, str] = (name, kind)) -> Any:
                    read = bound(case.form, asked)
                    both = [(timed(read, case.value, args.seconds), timed(case.alone, case.value, args.seconds))
                            for _ in range(args.passes)]  # fmt: skip
                    ours, alone = (min(column) for column in zip(*both, strict=True))
                    figures = {"us": f"{ours:.2f}", "library us": f"{alone:.2f}", "MB/s": round(len(case.value) / ours)}
                    return dict(zip(("format", "record"), about, strict=True)) | {
                        "bytes": len(case.value), "members": len(asked), **figures}  # fmt: skip

                rows.measure(f"{name}, {kind}", row)
    return rows.end()


if __name__ == "__main__":
    raise SystemExit(main())
