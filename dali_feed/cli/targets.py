"""The targets of a command: topics, folders, shards, files of records and images, as sources."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dali_feed.bad_records import DeadLetters
from dali_feed.errors import ConfigError, SourceDeniedError, SourceEmptyError, SourceNotFoundError
from dali_feed.external_sources import (
    MDS,
    Arrays,
    DeadLetterFolder,
    FileList,
    KafkaTopic,
    Producer,
    RecordIO,
    Secret,
    ShardSet,
    Table,
    TFRecords,
)
from dali_feed.external_sources.files import IMG_EXTENSIONS
from dali_feed.external_sources.kafka.connection import addresses
from dali_feed.external_sources.mds import is_mds
from dali_feed.records.source import Source
from dali_feed.secrets import is_secret

KAFKA = "kafka://"
IMAGES = (*IMG_EXTENSIONS, ".gif", ".avif")  # files named one by one may be what from_folder passes over
_TFRECORD = re.compile(r"\.tf(rec|records?)(-[^/.]*)?$|-of-[0-9*?]+$", re.IGNORECASE)  # train-00000-of-01024 too
_ENDINGS = {".rec": "recordio", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".npy": "array"}


@dataclass(frozen=True, slots=True)
class Access:
    """How targets are reached.

    config   options of librdkafka, for topics
    storage  options of the store, for shards at addresses; None for none
    timeout  seconds for a broker to answer in
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    storage: Mapping[str, Any] | None = None
    timeout: float = 10.0

    @classmethod
    def of(cls, config: Sequence[str] | None, timeout: float, storage: Sequence[str] | None = None) -> Access:
        """What --config and --storage-option were given, KEY=VALUE each. Raises ConfigError for no such pairs."""
        return cls(_options(config or ()), _storage_options(storage or ()), timeout)


def sources(targets: Sequence[str], access: Access) -> list[Source]:
    """To look into: a source per topic, per folder, and one for all shards, all files of a format, all single images.

    Raises ConfigError for a target or an option that is not allowed, SourceError where there is nothing.
    """
    return _sources(targets, access, partial(_bare_topic, access))


def source_of(
    targets: Sequence[str], access: Access, topic: Callable[..., Source] = KafkaTopic, **options: Any
) -> Source:
    """The one source that is named, as a training run has it; ConfigError for several. `topic` makes a topic's."""

    def one(target: str) -> Source:
        name, servers = topic_of(target)
        return topic(name, servers, config=access.config, timeout=access.timeout, **options)

    chosen = _sources(targets, access, one)
    if len(chosen) != 1:
        raise ConfigError(f"source: must be one topic, one folder, or tar shards; found {', '.join(targets)}")
    return chosen[0]


def _sources(targets: Sequence[str], access: Access, topic: Callable[[str], Source]) -> list[Source]:
    if not all(target.strip() for target in targets):
        raise ConfigError("source: must be named; found '', which has no name; for the current folder give '.'")
    chosen: list[Source] = []
    files: dict[str, list[str]] = {}
    for target in targets:
        if target.startswith(KAFKA):
            chosen.append(topic(target))
        elif Path(target).is_dir():
            chosen.append(MDS(target) if is_mds(target) else _folder(target))
        else:
            files.setdefault(_kind(target), []).append(target)
    if access.storage and "shards" not in files:
        msg = f"--storage-option: is for shards at addresses such as s3://bucket/a.tar; found {', '.join(targets)}"
        raise ConfigError(msg)
    makers: dict[str, Callable[[list[str]], Source]] = {
        "shards": partial(ShardSet, storage_options=access.storage),
        "tfrecord": TFRecords,
        "recordio": RecordIO,
        "parquet": Table,
        "arrow": Table,
        "array": Arrays,
        "image": lambda paths: FileList([path for each in paths for path in _images(each)]),
    }
    return chosen + [make(files[kind]) for kind, make in makers.items() if kind in files]


def _kind(target: str) -> str:
    """What a file's name says that it holds: tar shards where it says nothing else."""
    name = target.lower()
    if "://" not in target and name.endswith(IMAGES):
        return "image"
    if _TFRECORD.search(target):
        return "tfrecord"
    return _ENDINGS.get(Path(name).suffix, "shards")


def dead_letters_at(target: str, access: Access) -> DeadLetters:
    """The folder or the topic that a target names."""
    if not target.startswith(KAFKA):
        return DeadLetterFolder(target)
    topic, servers = topic_of(target)
    return Producer(topic, servers, config=access.config, timeout=access.timeout)


def topic_of(target: str) -> tuple[str, str]:
    """The topic and the servers of kafka://host:port/topic. Raises ConfigError where it is none."""
    servers, _, topic = target.removeprefix(KAFKA).partition("/")
    if not target.startswith(KAFKA) or not servers or not topic or "/" in topic or "@" in servers:
        raise ConfigError(
            "target: must be a topic, kafka://host:port/topic or kafka://host:port,host:port/topic; found "
            f"{re.sub('//.*@', '//***@', target)!r}"  # somebody's password
        )
    return topic, addresses("target: ", servers)


def _bare_topic(access: Access, target: str) -> KafkaTopic:
    """Which header holds the label is for the reader of the report to say, and holes are told."""
    topic, servers = topic_of(target)
    return KafkaTopic(topic, servers, label=None, config=access.config, timeout=access.timeout, holes="replace")


def _folder(target: str) -> FileList:
    """A folder per class, as training has it; or a flat one."""
    try:
        entries = sorted(Path(target).iterdir())
    except OSError as error:
        msg = f"{target}: the folder of an image set must be readable; found: {error.strerror}; check its permissions"
        raise SourceDeniedError(msg) from error
    flat = [str(path) for path in entries if path.name.lower().endswith(IMAGES) and not path.is_dir()]
    if flat:
        return FileList(flat)
    if any(path.is_dir() for path in entries):
        return FileList.from_folder(target)
    sets = [str(path) for path in entries if path.suffix == ".dfset"]
    tars = any(path.suffix == ".tar" for path in entries)
    shards = sets[0] if len(sets) == 1 else str(Path(target, "*.tar"))
    cure = f"for its shards write {shards!r}" if sets or tars else "check the path"
    msg = f"{target}: a folder must hold images, or folders of them; found {len(entries)} other files; {cure}"
    raise SourceEmptyError(msg)


def _images(target: str) -> list[str]:
    # Path.glob takes no absolute pattern.
    paths = [target] if Path(target).exists() else sorted(glob.glob(target, recursive=True))  # noqa: PTH207
    if not paths:
        raise SourceNotFoundError(f"{target!r} must name files that exist; found none; check the path")
    return paths


def _options(pairs: Sequence[str]) -> dict[str, Any]:
    """Of librdkafka; of a secret env:NAME and file:PATH say where it is."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (equals and name):
            raise ConfigError(f"--config: must be KEY=VALUE; found {'***' if is_secret(pair) else pair!r}")
        options[name] = _secret(value) if is_secret(name) else value
    return options


def _storage_options(pairs: Sequence[str]) -> dict[str, Any] | None:
    """Of a store, `headers.Authorization=env:NAME` as {"headers": {...}}; None for none."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        *outer, last = name.split(".")
        if not (equals and last and all(outer)):
            raise ConfigError(f"--storage-option: must be KEY=VALUE; found {'***' if is_secret(name) else name!r}")
        inner = options
        for part in outer:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                msg = f"--storage-option: {part!r} must have a value or parts, not both; found {name!r} too"
                raise ConfigError(msg)
        inner[last] = {"true": True, "false": False}.get(value, _secret(value))
    return options or None


def _secret(value: str) -> str | Secret:
    kind, _, where = value.partition(":")
    return Secret(**{kind: where}) if where and kind in ("env", "file") else value
