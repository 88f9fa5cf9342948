"""Dead letters: what is kept of a record that cannot be used, and the contract of where it is kept.

A dead letter is identified by its `source` and its `where`. Writing it again replaces it, so that a run which was
killed may write again what it had written; none is ever lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from dali_feed.errors import DataLostError, SourceChangedError
from dali_feed.records.source import Source

__all__ = ["DeadLetters", "HasOriginals", "Letter", "LetterWriter", "Original", "Stage", "with_original"]

Stage = Literal["source", "screen", "decode"]


@dataclass(frozen=True, slots=True)
class Original:
    """A record as its log holds it, before a codec made a payload of it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter: a bad record, with the reason.

    where                the record's coordinates as people write them
    source               one line that names the source
    partition, position  what `sample` packs
    stage                what refused it: the source (a label, a codec, a cut file), the header check, the decoder
    reason               why
    payload              the image's bytes as they were read
    original             the whole record, if its source keeps more than the payload
    gone                 True if the source keeps whole records, but had lost this one when the letter was written
    """

    where: str
    source: str
    partition: int
    position: int
    sample: int
    stage: Stage
    reason: str
    payload: bytes
    original: Original | None = None
    gone: bool = False


class LetterWriter(Protocol):
    """Writes dead letters for one thread."""

    def write(self, letters: Sequence[Letter]) -> None:
        """Write them; when it returns they are durable. Raises DeadLetterError within a time of its own."""
        ...

    def close(self) -> None:
        """Release files and connections. Safe to call twice."""
        ...


class DeadLetters(Protocol):
    """Where dead letters are kept. Nothing is opened before the first write or read."""

    def writer(self) -> LetterWriter:
        """A new writer."""
        ...

    def read(self) -> Iterator[Letter]:
        """Every dead letter once; the last one, if several have the same `source` and `where`."""
        ...


@runtime_checkable
class HasOriginals(Protocol):
    """What a source may have beside the contract of `dali_feed.records.source.Source`."""

    def original(self, partition: int, position: int) -> Original | None:
        """The record in full, read again; None where it is gone. Raises a SourceError where there is no answer."""
        ...


def with_original(letter: Letter, source: Source) -> Letter:
    """The letter with the record in full, or with `gone` set where the record is gone; as it is for other sources."""
    if not isinstance(source, HasOriginals):
        return letter
    try:
        found = source.original(letter.partition, letter.position)
    except (DataLostError, SourceChangedError):
        found = None
    return dataclasses.replace(letter, original=found, gone=found is None)
