"""How frozen rows say what they want: every maker whose shape may change, in one place.

A row of `kit.ways` says `engine="dali"`, `exif=True`, `cache={"memory": "1MB"}`; here that becomes the product's
arguments. Digests are written by the code of before, in an environment of its own, and held against the code of now, so
this file (and no other) may ask which of the two it talks to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dali_feed
from dali_feed import columns as column_kinds
from dali_feed import external_sources as sources
from dali_feed import packing

__all__ = [
    "avro",
    "bad_records",
    "column",
    "convert",
    "from_folder",
    "iterator",
    "loader",
    "made",
    "parts",
    "position",
    "protobuf_timestamp",
    "shuffle",
]

_product: Any = dali_feed  # of two versions, so no checker knows what it has
_GROUPED = hasattr(dali_feed, "Decode")  # what changes pixels stands in one group
_DECODE = {"engine": "engine", "exif": "exif", "hardware": "hw_decoder_load", "memory_format": "memory_format"}
_BOUNDS = ("max_pixels", "max_work")
_NAMES = {  # a name of the rows -> what it is or was called
    "ArrayShards": ("Arrays",),
    "ArrowFiles": ("Table",),
    "ArrowRows": ("Table",),
    "Json": ("JsonValue",),
    "Packed": ("PackedTokens",),
    "ParquetRows": ("Table",),
}


def made(name: str, *args: Any, **options: Any) -> Any:
    """An object of `dali_feed.external_sources`, by the name that the rows use."""
    return _named(sources, name)(*args, **options)


def from_folder(folder: Any) -> Any:
    """A `FileList` of a folder per class."""
    return sources.FileList.from_folder(str(folder))


def column(name: str, *args: Any, **options: Any) -> Any:
    """A column, by the name that the rows use."""
    return _named(column_kinds, name)(*args, **options)


def avro(schema: Any) -> Any:
    """The format of values of one schema."""
    from dali_feed.formats import Avro

    return Avro(schema)


def protobuf_timestamp() -> Any:
    """The format of values that are Google's Timestamp."""
    from google.protobuf import timestamp_pb2

    from dali_feed.formats import Protobuf

    return Protobuf(timestamp_pb2.Timestamp)


def shuffle(value: Any) -> Any:
    """A row's shuffle: a bool, or (extent, window)."""
    return _product.Shuffle(*value) if isinstance(value, tuple) else value


def bad_records(**options: Any) -> Any:
    """`BadRecords`, without a limit unless one is given."""
    return _product.BadRecords(**{"limit": None} | options)


def loader(dataset: Any, batch_size: int, **way: Any) -> Any:
    """A `DataLoader` on the CPU with one thread, which reads no more than it gives.

    Takes the loader's arguments, and beside them flat: `engine`, `exif`, `hardware`, `memory_format`, `max_pixels`,
    `max_work`, `threads`, `readers`, `prefetch` and `cache` (a mapping of `Cache`'s arguments).
    """
    options = {"device": "cpu", "info": True} | way
    tuning = _tuning(options)
    decode = {name: options.pop(name) for name in (*_DECODE, *_BOUNDS) if name in options}
    if _GROUPED:
        options["decode"] = _product.Decode(**decode)
    else:
        tuning |= {name: decode.pop(name) for name in _BOUNDS if name in decode}
        options |= {_DECODE[name]: value for name, value in decode.items()}
    options["shuffle"] = shuffle(options.get("shuffle"))
    return _product.DataLoader(dataset, batch_size, tuning=_product.Tuning(**tuning), **options)


def iterator(pipeline: Any, source: Any, outputs: list[str], **options: Any) -> Any:
    """A `DALIGenericIterator` around a pipeline."""
    from dali_feed.dali import DALIGenericIterator, LastBatchPolicy

    options["last_batch_policy"] = LastBatchPolicy[options.pop("policy", "PARTIAL")]
    options["shuffle"] = shuffle(options.get("shuffle"))
    return DALIGenericIterator(pipeline, outputs, source, tuning=_product.Tuning(**_tuning(options)), **options)


def convert(source: Any, out: Any, to: str) -> None:
    """Write a source in a format of others: "tfrecord" or "mds"."""
    packing.pack(source, out, to=to)


def produce(source: Any, topic: str, servers: str, **way: Any) -> None:
    """Write a source into a topic: payloads, or, with `format` and `values`, members in one value.

    `key` and `headers` name members; `claim` is the size of values above which they lie in the folder "claims".
    """
    claim = way.pop("claim", None)
    claims = None if claim is None else made("Claim", "claims", claim)
    options = {"claim": claims, "compression": "none"}
    if hasattr(sources, "Payload"):  # how a record is written was an object
        options["writes"] = made("Values" if "format" in way else "Payload", **way)
        made("Producer", source, topic, servers, readers=1, **options).run()
        return
    if "values" in way:
        way["columns"] = way.pop("values")
    made("Producer", topic, servers, **options).run(source, readers=1, **way)


def shared_stream(topic: str, servers: str, group: str) -> Any:
    """A stream whose partitions the workers of a consumer group share."""
    return made("KafkaStream", topic, servers, start="earliest", label=None, group=made("ConsumerGroup", group))


def dead_letter_topic(topic: str, servers: str) -> Any:
    """Where `BadRecords(dead_letter=...)` keeps bad records in a topic."""
    return made("Producer", topic, servers)


def parts(batch: Any) -> tuple[dict[str, Any], Any]:
    """What a batch of a loader holds, by name, and its `Info`, if it has one; a tuple's items are called 0, 1, ..."""
    items, info = list(batch) if isinstance(batch, list | tuple) else [batch], None
    if type(items[-1]).__name__ == "Info":
        info = items.pop()
    if len(items) == 1 and isinstance(items[0], Mapping):
        return dict(items[0]), info
    return {str(place): item for place, item in enumerate(items)}, info


def position(fresh: Mapping[str, Any], where: Mapping[str, Any]) -> dict[str, Any]:
    """A state that stands at `where`, in today's form: made of that of a loader which has given nothing yet.

    `where` has `epoch` and `consumed` (samples that each lane has given); of a stream the next `offsets` of partitions.
    """
    state = dict(fresh)
    if "offsets" not in where:
        return state | {"epoch": where["epoch"], "consumed": where["consumed"]}
    stream = dict(state["stream"])
    key = "positions" if "positions" in stream else "position"
    return state | {"stream": stream | {key: dict(where["offsets"])}}


def _tuning(options: dict[str, Any]) -> dict[str, Any]:
    """Take what is the tuning's out of the options."""
    ahead = "next_epoch" if _GROUPED else "prefetch_next_epoch"
    tuning: dict[str, Any] = {"threads": 1, "readers": 1, ahead: False}
    for name in ("threads", "readers", "prefetch", "memory"):
        if name in options:
            tuning[name] = options.pop(name)
    if cache := options.pop("cache", None):
        tuning["cache"] = _product.Cache(**cache)
    return tuning


def _named(module: Any, name: str) -> Any:
    """What has this name, or the one that it has now."""
    return next(getattr(module, each) for each in (*_NAMES.get(name, ()), name) if hasattr(module, each))
