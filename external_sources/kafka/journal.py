"""The journal of a run of producing: a file that says how far it is.

The laws: it is whole or it is the one before, whatever dies when; and one process at a time has it. In a transactional
run the broker knows how far, and the journal knows under which name it does.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dali_feed.errors import ConfigError, SourceChangedError, StateError
from dali_feed.locks import locked
from dali_feed.records.tally import Tally
from dali_feed.storage.durable import sync_folder, write_whole

__all__ = ["Journal", "journal_lock", "load", "save"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Journal:
    """A run.

    source      how the source is called, and the fingerprint of its snapshot
    pin         of the snapshot, where it has one
    topic       name, id ("" where brokers have none) and partitions of where the records go
    options     what decides what is written there
    position    the first record that is not known to be there
    tally       what became of those before it
    run         the run's own name
    codec       how its records are compressed; "" where that is not decided yet
    opened      whether the broker has been asked to keep the position (transactional)
    done        whether all of it is there
    """

    source: str
    fingerprint: str
    pin: Mapping[str, Any] | None
    topic: str
    topic_id: str
    partitions: int
    options: Mapping[str, Any]
    position: int = 0
    tally: Mapping[str, Any] = field(default_factory=lambda: Tally().told())
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    codec: str = ""
    opened: bool = False
    done: bool = False

    def resumed(self, wanted: Journal, path: str) -> Journal:
        """This one, where `wanted` would be the same run.

        Raises:
            SourceChangedError: the source has other records, or the topic was made anew.
            StateError: another topic, or other options; every difference is told.
        """
        cure = "give the same, or another journal= to start from the beginning"
        if self.fingerprint != wanted.fingerprint:
            msg = (
                f"{path}: a run must continue with the source that it began with; the journal is of "
                f"{self.source}, fingerprint {self.fingerprint}; found {wanted.source}, {wanted.fingerprint}; "
                f"{cure}"
            )
            raise SourceChangedError(msg)
        known = self.topic == wanted.topic and "" not in (self.topic_id, wanted.topic_id)
        if known and self.topic_id != wanted.topic_id:
            msg = (
                f"{path}: a run must continue in the topic that it began with; {self.topic} had the id "
                f"{self.topic_id}, found {wanted.topic_id}: it was deleted and made again; remove the journal to "
                "start from the beginning"
            )
            raise SourceChangedError(msg)
        mine, its = {"topic": self.topic, **self.options}, {"topic": wanted.topic, **wanted.options}
        odd = [f"{name}: {mine.get(name)!r}, found {its.get(name)!r}" for name in its if mine.get(name) != its[name]]
        if odd:
            msg = f"{path}: a run must continue with the options that it began with; {'; '.join(odd)}; {cure}"
            raise StateError(msg)
        return self


def load(path: Path) -> Journal | None:
    """The journal in a file; None where there is none. Raises StateError where it is none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{path}: a journal must be a file that can be read and written; found: {error.strerror}"
        raise ConfigError(msg) from error
    try:
        fields = json.loads(text)
        version = fields.pop("version")
        found = Journal(**fields)
        Tally.of(found.tally)
        fits = version == VERSION and isinstance(found.position, int) and found.position >= 0
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = f"{path}: a journal must be what a run wrote; {type(error).__name__}: {error}; give another journal="
        raise StateError(msg) from error
    if not fits:
        msg = f"{path}: a journal of version {VERSION} is needed; found version {version!r}; give another journal="
        raise StateError(msg)
    return found


def save(path: Path, journal: Journal) -> None:
    """Write it; when this returns it outlasts a power cut."""
    try:
        write_whole(path, json.dumps({"version": VERSION, **asdict(journal)}).encode())
        sync_folder(path.parent)
    except OSError as error:
        msg = f"{path}: the journal must be written, or a killed run could not continue; found: {error.strerror}"
        raise ConfigError(msg) from error


@contextlib.contextmanager
def journal_lock(path: Path) -> Iterator[None]:
    """Have the journal to ourselves; the lock is a file beside it, and goes with the process, however that ends.

    Raises:
        ConfigError: another process has it, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path.with_name(f"{path.name}.lock"), 0.0))
        except TimeoutError as error:
            msg = (
                f"{path}: one process at a time may use a journal; another process uses this one; wait for it, or "
                "stop it"
            )
            raise ConfigError(msg) from error
        except OSError as error:
            msg = f"{path}: a journal must lie in a folder that can be written; found: {error.strerror}"
            raise ConfigError(msg) from error
        yield
