"""A set as packing sees it: its shards with their checksums, and what it was made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dali_feed.errors import DataLostError, SourceNotFoundError
from dali_feed.external_sources.durable import sync_folder, write_whole

__all__ = ["SetShard", "SetTold", "load_set", "save_set", "shards_of"]


@dataclass(frozen=True, slots=True)
class SetShard:
    """A shard of a set: its file's name, bytes, samples and SHA-256, and those of its index."""

    name: str
    size: int
    samples: int
    sha256: str
    index_size: int
    index_sha256: str


@dataclass(frozen=True, slots=True)
class SetTold:
    """What a manifest says.

    made    of what and how it was packed (`job.Job.told`), and what became of the records
    replay  `topic_shards.Replay.told()`, of a set that holds a topic's records
    """

    shards: tuple[SetShard, ...]
    made: Mapping[str, Any]
    replay: Mapping[str, Any] | None = None


def save_set(path: Path, told: SetTold) -> None:
    """Write the manifest: whole or not at all."""
    body = {"shards": [asdict(shard) for shard in told.shards], "made": dict(told.made), "replay": told.replay}
    text = json.dumps(body, sort_keys=True)
    whole = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": body}
    write_whole(path, json.dumps(whole, sort_keys=True).encode())
    sync_folder(path.parent)


def load_set(path: Path) -> SetTold:
    """Read a manifest. Raises SourceNotFoundError, DataLostError."""
    try:
        whole = json.loads(path.read_bytes())
        text = json.dumps(whole["body"], sort_keys=True)
        body = whole["body"]
        if hashlib.sha256(text.encode()).hexdigest() != whole["sha256"]:
            msg = f"{path}: damaged"
            raise DataLostError(msg)
        return SetTold(tuple(SetShard(**each) for each in body["shards"]), body["made"], body["replay"])
    except FileNotFoundError as error:
        msg = f"{path}: no such set"
        raise SourceNotFoundError(msg) from error
    except (KeyError, TypeError, ValueError) as error:
        msg = f"{path}: damaged: {error}"
        raise DataLostError(msg) from error


def shards_of(receipts: Sequence[Any], names: Sequence[str]) -> tuple[SetShard, ...]:
    """The shards that receipts are of."""
    return tuple(
        SetShard(name, each.size, each.samples, each.sha256, each.index_size, each.index_sha256)
        for name, each in zip(names, receipts, strict=True)
    )
