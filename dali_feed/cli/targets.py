"""The targets of a command: topics, folders, shards, files of records and images, as sources."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError, SourceDeniedError, SourceEmptyError, SourceNotFoundError
from dali_feed.external_sources import (
    MDS,
    ArrayShards,
    ArrowFiles,
    DeadLetterFolder,
    DeadLetterTopic,
    FileList,
    FromEnv,
    FromFile,
    KafkaTopic,
    ParquetRows,
    RecordIO,
    Renamed,
    ShardSet,
    TFRecords,
)
from dali_feed.external_sources.files import IMG_EXTENSIONS
from dali_feed.external_sources.kafka.connection import addresses
from dali_feed.external_sources.record_files.mds_index import is_mds
from dali_feed.quarantine.letters import DeadLetters
from dali_feed.records.source import Source
from dali_feed.secrets import is_secret

__all__ = [
    "HEADERS",
    "KAFKA",
    "letters_at",
    "named",
    "one_source",
    "options_of",
    "sources",
    "storage_options_of",
    "with_members",
    "with_names",
]

KAFKA = "kafka://"
IMAGES = (*IMG_EXTENSIONS, ".gif", ".avif")  # files named one by one may be what from_folder passes over
_TFRECORD = re.compile(r"\.tf(rec|records?)(-[^/.]*)?$|-of-[0-9*?]+$", re.IGNORECASE)  # train-00000-of-01024 too
_ENDINGS = {".rec": "recordio", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".npy": "array"}
HEADERS = "headers"  # the field of a topic's records that holds them all


def sources(
    targets: Sequence[str],
    *,
    config: dict[str, Any],
    timeout: float,
    check: bool = False,
    storage: Sequence[str] = (),
) -> list[Source]:
    """A source per topic, per folder, and one for all shards together, all files of a format, all single images.

    check    whether hashes of whole files are checked, where a set has them
    storage  options of the store that shards lie in, KEY=VALUE each
    """
    if not all(target.strip() for target in targets):
        msg = "source: must be named; found '', which has no name; for the current folder give '.'"
        raise ConfigError(msg)
    found: list[Source] = []
    files: dict[str, list[str]] = {}
    for target in targets:
        if target.startswith(KAFKA):
            found.append(_topic(target, config, timeout))
        elif Path(target).is_dir():
            found.append(MDS(target, check=check) if is_mds(target) else _folder(target))
        else:
            files.setdefault(_kind(target), []).append(target)
    if storage and "shards" not in files:
        msg = f"--storage-option: is for shards at addresses such as s3://bucket/a.tar; found {', '.join(targets)}"
        raise ConfigError(msg)
    made: dict[str, Callable[[list[str]], Source]] = {
        "shards": partial(ShardSet, storage_options=storage_options_of(storage)),
        "tfrecord": TFRecords,
        "recordio": RecordIO,
        "parquet": ParquetRows,
        "arrow": ArrowFiles,
        "array": ArrayShards,
        "image": lambda paths: FileList([path for each in paths for path in _images(each)]),
    }
    return found + [make(files[kind]) for kind, make in made.items() if kind in files]


def _kind(target: str) -> str:
    """What a file's name says that it holds: tar shards where it says nothing else."""
    name = target.lower()
    if "://" not in target and name.endswith(IMAGES):
        return "image"
    if _TFRECORD.search(target):
        return "tfrecord"
    return _ENDINGS.get(Path(name).suffix, "shards")


def one_source(targets: Sequence[str], *, config: Sequence[str], timeout: float) -> Source:
    """The one source that is named; a topic as a training run has it, its holes too. ConfigError for several."""
    if len(targets) == 1 and targets[0].startswith(KAFKA):
        topic, servers = named(targets[0])
        return KafkaTopic(topic, servers, config=options_of(config), timeout=timeout)
    found = sources(targets, config=options_of(config), timeout=timeout)
    if len(found) != 1:
        msg = f"source: must be one topic, one folder, or tar shards; found {', '.join(targets)}"
        raise ConfigError(msg)
    return found[0]


def letters_at(target: str, *, config: Sequence[str], timeout: float) -> DeadLetters:
    """The folder or the topic that a target names."""
    if not target.startswith(KAFKA):
        return DeadLetterFolder(target)
    topic, servers = named(target)
    return DeadLetterTopic(topic, servers, config=options_of(config), timeout=timeout)


def options_of(pairs: Sequence[str]) -> dict[str, Any]:
    """What --config was given; of a secret env:NAME and file:PATH say where it is. ConfigError for no KEY=VALUE."""
    split = {pair: pair.partition("=") for pair in pairs}
    wrong = [pair for pair, (name, equals, _) in split.items() if not (name and equals)]
    if wrong:
        msg = f"--config: must be KEY=VALUE; found {wrong[0]!r}"
        raise ConfigError(msg)
    return {name: _told(name, value) for name, _, value in split.values()}


def storage_options_of(pairs: Sequence[str]) -> dict[str, Any] | None:
    """What --storage-option was given, `client_options.timeout=9s` as {"client_options": {...}}; None for none."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        *outer, last = name.split(".")
        if not (equals and last and all(outer)):
            msg = f"--storage-option: must be KEY=VALUE; found {name!r}"
            raise ConfigError(msg)
        inner = found
        for part in outer:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                msg = f"--storage-option: {part!r} must have a value or parts, not both; found {name!r} too"
                raise ConfigError(msg)
        kind, colon, where = value.partition(":")
        kinds: dict[str, Any] = {"env": FromEnv, "file": FromFile} if colon and where else {}
        inner[last] = kinds[kind](where) if kind in kinds else {"true": True, "false": False}.get(value, value)
    return found or None


def _told(name: str, value: str) -> str | FromEnv | FromFile:
    kind, colon, where = value.partition(":")
    if colon and where and is_secret(name):
        if kind == "env":
            return FromEnv(where)
        if kind == "file":
            return FromFile(where)
    return value


def named(target: str) -> tuple[str, str]:
    """The topic and the servers of kafka://host:port/topic. Raises ConfigError where it is none."""
    servers, _, topic = target.removeprefix(KAFKA).partition("/")
    if not servers or not topic or "/" in topic or "@" in servers:
        msg = (
            "target: must be a topic, kafka://host:port/topic or kafka://host:port,host:port/topic; found "
            f"{re.sub('//.*@', '//***@', target)!r}"  # somebody's password
        )
        raise ConfigError(msg)
    return topic, addresses("target: ", servers)


def with_members(source: Source) -> Source:
    """The same, able to give members: a topic without the codec that `sources` reads its headers with."""
    return source.without_codec() if isinstance(source, KafkaTopic) else source


def with_names(source: Source, pairs: Sequence[str]) -> Source:
    """The same, whose members have the names that --rename gives them. ConfigError for no OLD=NEW."""
    source = with_members(source)
    if not pairs:
        return source
    split = [pair.rpartition("=") for pair in pairs]
    if wrong := [pair for pair, (old, _, new) in zip(pairs, split, strict=True) if not (old and new)]:
        msg = f"--rename: must be OLD=NEW, as in jpeg=jpg; found {wrong[0]!r}"
        raise ConfigError(msg)
    return Renamed(source, {old: new for old, _, new in split})


def _topic(target: str, config: dict[str, Any], timeout: float) -> KafkaTopic:
    topic, servers = named(target)
    return KafkaTopic(
        topic, servers, codec=_with_headers, fields=(HEADERS,), config=config, timeout=timeout, holes="replace"
    )


def _with_headers(value: memoryview, _: bytes | None, headers: list[tuple[str, bytes]]) -> dict[str, Any]:
    """Every header: which one holds the label is for the reader of the report to say."""
    return {"image": value, HEADERS: dict(headers)}


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
    found = [target] if Path(target).exists() else sorted(glob.glob(target, recursive=True))  # noqa: PTH207
    if not found:
        msg = f"{target!r} must name files that exist; found none; check the path"
        raise SourceNotFoundError(msg)
    return found
