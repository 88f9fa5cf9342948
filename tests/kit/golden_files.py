"""What the product leaves on disks and in topics, byte for byte: others read it, and later versions must.

Texts stand in the JSON as they are, so that a difference can be read; of all else there is a hash. Brokers' addresses,
which change from run to run, are replaced by the word SERVERS, and reasons in words by REASON: they are for people.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kit import api, by_hand
from kit.shelf import GOLDEN, Shelf, payload, record
from kit.ways import TRANSFORMS

from dali_feed import packing
from dali_feed.testing import Message, ScriptedSource, publish
from dali_feed.testing.scripted import Corrupt, Gap

__all__ = ["FILES", "bytes_of", "frozen", "places"]

FILES = GOLDEN / "files.json"
_TEXTS = (".dfset", ".json", ".jsonl", " head")


def frozen() -> Any:
    """Name -> what it was."""
    return json.loads(FILES.read_text()) if FILES.exists() else {}


def places() -> list[str]:
    """Names of all that is frozen."""
    return [*_MAKERS]


def bytes_of(name: str, shelf: Shelf) -> dict[str, Any]:
    """What a run writes, part by part, as it is kept in the JSON. It runs in a folder of its own, with short paths."""
    home = shelf.room("bytes")
    with contextlib.chdir(home):
        parts = _MAKERS[name](shelf)
    return {part: _kept(part, data) for part, data in sorted(parts.items())}


def _kept(part: str, data: bytes) -> str:
    if part.endswith(_TEXTS):
        return data.decode("latin-1")
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def _written(folder: str) -> dict[str, bytes]:
    return {
        os.path.relpath(path, folder): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }


def _source(count: int = 8) -> Any:
    Path("source").mkdir()
    for part in range(2):
        samples = ((f"{n:05d}", record(n)) for n in range(part, count, 2))
        by_hand.tar(Path("source", f"{part}.tar"), samples)
    return api.made("ShardSet", "source/*.tar", index_dir="kept")


def _packed(**options: Any) -> dict[str, bytes]:
    Path("out").mkdir()
    packing.pack(_source(), "out/frozen.dfset", workers=1, **options)
    return _written("out")


def _striped(shelf: Shelf) -> dict[str, bytes]:
    for name in ("out", "out/x", "out/y"):
        Path(name).mkdir()
    packing.pack(_source(), "out/s.dfset", layout=packing.Layout(("x", "y"), 2, 4096))
    return _written("out")


def _changed(shelf: Shelf) -> dict[str, bytes]:
    _packed(shard_bytes=6_000)
    Path("parts").mkdir()
    packing.split(api.made("ShardSet", "out/frozen.dfset"), "parts", {"train": 0.75, "rest": 0.25})
    packing.merge(["parts/train.dfset", "parts/rest.dfset"], "parts/both.dfset")
    return {name: data for name, data in _written("parts").items() if name.endswith(".dfset")}


def _of_files(shelf: Shelf) -> dict[str, bytes]:
    Path("files").mkdir()
    Path("out").mkdir()
    paths = [f"files/{n}.png" for n in range(6)]
    for n, path in enumerate(paths):
        Path(path).write_bytes(payload(n))
    packing.pack(api.made("FileList", paths, np.arange(6) * 2), "out/f.dfset", keys="number")
    return {name: data for name, data in _written("out").items() if not name.endswith(".dfset")}  # it has mtimes


def _of_topic(shelf: Shelf) -> dict[str, bytes]:
    Path("out").mkdir()
    members = {"png": "value", "key": "key", "json": "meta"}  # not their times
    packing.pack(shelf.source("topic"), "out/t.dfset", members=members, shard_bytes=20_000)
    return {name: data for name, data in _written("out").items() if not name.endswith(".dfset")}  # it has addresses


def _converted(to: str) -> dict[str, bytes]:
    api.convert(_source(), "out", to)
    return _written("out")


def _scripted() -> ScriptedSource:
    items: list[Any] = [(payload(n), n) for n in range(20)]
    items[3], items[4], items[11] = Corrupt("torn"), Gap(), Corrupt("of another kind", b"\x00\xff bytes")
    return ScriptedSource(items, name="frozen")


def _letters(source: Any, to: Any) -> None:
    with api.loader(
        source, 4, transform=TRANSFORMS["middle"](), bad=api.bad_records(dead_letter=to), lanes=1
    ) as loader:
        for _ in loader:
            pass
        loader.state_dict()


def _letter_folder(shelf: Shelf) -> dict[str, bytes]:
    _letters(_scripted(), api.made("DeadLetterFolder", "letters"))
    return _written("letters")


def _faulty_topic(shelf: Shelf) -> Any:
    """Records of which two have labels that are none: reasons that are the source's own."""
    messages = [
        Message(payload(0), b"key %d" % n, (("label", b"%d" % n), ("by", b"\xff\x00")), n % 2) for n in range(10)
    ]
    messages[4] = Message(payload(4), b"k", (("label", b"x"), ("by", b"1"), ("by", b"2")), 0)
    messages[7] = Message(payload(7), None, (("label", b"y"),), 1)
    publish(shelf.servers, "frozen", messages, partitions=2)
    return api.made("KafkaTopic", "frozen", shelf.servers)


def _letters_of_topic(shelf: Shelf) -> dict[str, bytes]:
    """In a topic and in a folder, the records in full."""
    source = _faulty_topic(shelf)
    shelf.kafka.create("frozen.dead")
    _letters(source, api.dead_letter_topic("frozen.dead", shelf.servers))
    _letters(source, api.made("DeadLetterFolder", "letters"))
    folder = _written("letters")
    reasons = {json.loads(line)["reason"] for line in folder["letters.jsonl"].splitlines()}
    parts = _in_topic(shelf, "frozen.dead") | {f"folder/{name}": data for name, data in folder.items()}
    servers = shelf.servers
    return {
        _plain(name, reasons, servers): _plain(data.decode("latin-1"), reasons, servers).encode("latin-1")
        for name, data in parts.items()
    }


def _plain(text: str, reasons: Iterable[str], servers: str) -> str:
    """Without what changes from run to run: a file's name has a hash of the source's, which has the address."""
    for reason in reasons:
        text = text.replace(reason, "REASON")
    text = text.replace(servers, "SERVERS")
    return re.sub(r"-[0-9a-f]{8}\.bin", "-HASH.bin", text)


def _produced(name: str, **options: Any) -> Any:
    def make(shelf: Shelf) -> dict[str, bytes]:
        Path("claims").mkdir()
        topic = f"produced {name}".replace(" ", "-")
        shelf.kafka.create(topic, 2)
        api.produce(_source(3), topic, shelf.servers, **options)
        return _in_topic(shelf, topic) | {f"claims/{path}": data for path, data in _written("claims").items()}

    return make


def _in_topic(shelf: Shelf, topic: str) -> dict[str, bytes]:
    """Key, value and headers of each record, as any other consumer has them."""
    told = {}
    for where, message in _records(shelf.servers, topic):
        head = {"key": message.key(), "headers": [[k, v] for k, v in message.headers() or []]}
        text = json.dumps(head, default=lambda data: data.decode("latin-1"))
        told[f"{where} head"] = text.encode()
        told[f"{where} value"] = b"(none)" if message.value() is None else message.value()
    return told


def _records(servers: str, topic: str) -> Iterator[tuple[str, Any]]:
    options = {"bootstrap.servers": servers, "group.id": "anybody", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**options, "isolation.level": "read_committed"})
    try:
        count = len(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(count)])
        ended: set[int] = set()
        while len(ended) < count:
            message = consumer.poll(60)
            assert message is not None, "nothing came for a minute"
            partition = message.partition()
            assert partition is not None
            if message.error() is None:
                yield f"{partition}@{message.offset()}", message
            else:
                ended.add(partition)
    finally:
        consumer.close()


_MAKERS: Mapping[str, Any] = {
    "set": lambda shelf: _packed(),
    "set of several shards": lambda shelf: _packed(shard_bytes=6_000, keys="number"),
    "set of some members": lambda shelf: _packed(members={"png": "png", "cls": "cls", "words": "txt"}),
    "striped set": _striped,
    "sets split and merged": _changed,
    "set of files": _of_files,
    "set of a topic": _of_topic,
    "TFRecords": lambda shelf: _converted("tfrecord"),
    "MDS": lambda shelf: _converted("mds"),
    "dead letters in a folder": _letter_folder,
    "dead letters of a topic": _letters_of_topic,
    "records": _produced("records", key="$where", headers=("txt",)),
    "records with claims": _produced("claims", claim=90, headers=("txt",)),
    "values of JSON": _produced("json", format="json", values=("cls", "txt")),
    "values of MessagePack": _produced("msgpack", format="msgpack", values={"n": "cls", "image": "png"}),
    "values of npy": _produced("npy", format="npy", values={"array": "npy"}),
}
