"""Claim checks, written: large payloads go into a folder that all share, and their records say where they lie.

The law: a payload is on the disk, whole and under its name, before its record is sent. The name is the SHA-256 of the
payload, so that equal ones lie there once, and a run that goes on finds what it wrote before.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_feed.checks import path_of
from dali_feed.errors import ConfigError, ProduceError
from dali_feed.external_sources.kafka.claims import SHA256, SIZE, URI
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.storage.durable import sync_folder, write_whole

__all__ = ["ABOVE", "Claim"]

ABOVE = 8_000_000


@dataclass(frozen=True, slots=True)
class Claim:
    """Values of more than `above` bytes are stored in a folder, from which `KafkaTopic(claims=folder)` reads them.

    folder  which must exist, so that nothing is written where a share is not mounted. An object is `folder/ab/abcd...`,
            its SHA-256
    above   bytes of the largest value that is in the topic itself

    The record keeps its key and its headers, its value is empty, and more headers are `claim.uri` (the object's path
    in the folder), `claim.size` (bytes, decimal) and `claim.sha256`.
    """

    folder: str | os.PathLike[str]
    above: int = ABOVE

    def __post_init__(self) -> None:
        path_of("Claim(folder=...)", self.folder)
        if isinstance(self.above, bool) or not isinstance(self.above, int) or self.above < 0:
            msg = f"Claim: above must be a number of bytes, 0 or more; found {self.above!r}"
            raise ConfigError(msg)

    def check(self, topic: str, most: int | None) -> None:
        """Before a run: raises ConfigError where the folder is not there, or the topic refuses what stays in it."""
        if not os.path.isdir(self.folder):
            msg = f"Claim: the folder must exist, and readers must see it too; found none at {self.folder}"
            raise ConfigError(msg)
        if most is not None and self.above >= most:
            msg = (
                f"Claim: above must be less than max.message.bytes of {topic}, {most}; found {self.above}; a "
                "value between the two could not be stored"
            )
            raise ConfigError(msg)

    def checked(self, made: Written) -> Written:
        """The record as it is sent. Raises ProduceError where its value cannot be written, as others could not be."""
        if made.value is None or len(made.value) <= self.above:
            return made
        digest = hashlib.sha256(made.value).hexdigest()
        name = f"{digest[:2]}/{digest}"
        self._put(Path(self.folder, name), made.value)
        told = [(URI, name.encode()), (SIZE, b"%d" % len(made.value)), (SHA256, digest.encode())]
        return Written(b"", made.key, [*made.headers, *told], len(made.value))

    def told(self) -> dict[str, Any]:
        """What a run must go on with."""
        return {"folder": os.fspath(self.folder), "above": self.above}

    def _put(self, path: Path, value: bytes) -> None:
        try:
            if not (path.is_file() and path.stat().st_size == len(value)):
                if not path.parent.is_dir():
                    path.parent.mkdir(exist_ok=True)
                    sync_folder(path.parent.parent)
                write_whole(path, value)
            sync_folder(path.parent)  # whoever wrote it may have been killed before he did
        except OSError as error:
            msg = (
                f"{self.folder}: a payload of {len(value)} bytes must be written before its record is sent; "
                f"found: {error.strerror}; check the folder's mode and the space left, and continue with the "
                "same journal"
            )
            raise ProduceError(msg) from error
