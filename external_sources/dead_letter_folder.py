"""Dead letters in a folder: the payloads as files, and a line of JSON for each in `letters.jsonl`.

A line stands for a whole letter. Its files are on the disk before it, it is on the disk before
it counts, and a line that a kill cut short stands for nothing: readers pass over it, and the next writer begins a
line of its own after it. A lock per write lets the ranks of a machine, or of a shared folder, write to one file.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_feed.bad_records import Letter
from dali_feed.checks import path_of
from dali_feed.errors import DataLostError, DeadLetterError, SourceDeniedError, SourceNotFoundError
from dali_feed.records.source import Original
from dali_feed.storage.durable import sync_folder, write_whole

LINES = "letters.jsonl"
_SAME = ("where", "source", "partition", "position", "sample", "stage", "reason", "gone")
log = logging.getLogger("dali_feed")


@dataclass(frozen=True, slots=True)
class DeadLetterFolder:
    """Keeps dead letters (bad records) in a folder. Several ranks and runs may share it.

    path  the folder; it is made where it is missing
    """

    path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        path_of("DeadLetterFolder(path=...)", self.path)

    def __str__(self) -> str:
        return os.fspath(self.path)

    def writer(self) -> _Writer:
        """A new writer; it makes the folder when it first writes."""
        return _Writer(Path(self.path))

    def read(self) -> Iterator[Letter]:
        """Every letter once: of those with the same `source` and `where` the last.

        Raises:
            SourceNotFoundError: no letter was ever written here.
            SourceDeniedError: no rights.
            DataLostError: a letter's file is gone.
        """
        lines = Path(self.path, LINES)
        try:
            raw = lines.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            cure = "check the path; a run without a bad record writes none"
            msg = f"{self}: a folder of dead letters must hold {LINES}; found none; {cure}"
            raise SourceNotFoundError(msg) from error
        except OSError as error:
            msg = f"{lines}: must be readable; found: {error.strerror}; check its permissions"
            raise SourceDeniedError(msg) from error
        entries: dict[tuple[str, str], dict[str, Any]] = {}
        for number, line in enumerate(raw.splitlines(), 1):
            entry = _entry(line)
            if entry is None:
                log.warning("%s:%d: this line was cut off when its writer was killed; it is skipped", lines, number)
                continue
            known = entry["source"], entry["where"]
            entries.pop(known, None)
            entries[known] = entry
        for entry in entries.values():
            yield self._letter(entry)

    def _letter(self, entry: dict[str, Any]) -> Letter:
        full = entry["original"]
        original = None
        if full is not None:
            headers = tuple((name, _unpacked(text)) for name, text in full["headers"])
            value = None if full["value"] is None else self._file(full["value"], entry)
            original = Original(_unpacked(full["key"]), value, headers)
        same = {name: entry[name] for name in _SAME}
        return Letter(**same, payload=self._file(entry["payload"], entry), original=original)

    def _file(self, name: str, entry: dict[str, Any]) -> bytes:
        try:
            return Path(self.path, Path(name).name).read_bytes()
        except OSError as error:
            msg = f"{self}: the letter of {entry['where']} must have its file {name}; found: {error.strerror}"
            raise DataLostError(msg) from error


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._ready = False

    def write(self, letters: Sequence[Letter]) -> None:
        """Files first, then one append of all lines, each on the disk before the next step."""
        try:
            if not self._ready:
                self._path.mkdir(parents=True, exist_ok=True)
                sync_folder(self._path.parent)
                self._ready = True
            lines = b"".join(self._keep(letter) for letter in letters)
            sync_folder(self._path)
            self._append(lines)
        except OSError as error:
            msg = (
                f"{self._path}: the dead letter of {letters[0].where} must be written before a state counts its batch; "
                f"found: {error.strerror} ({error.filename or LINES}); check the folder's mode and the space left"
            )
            raise DeadLetterError(msg) from error

    def close(self) -> None:
        """Nothing is held between two writes."""

    def _keep(self, letter: Letter) -> bytes:
        """Write a letter's files; its line."""
        name = _file_name(letter)
        self._file(name, letter.payload)
        full = None
        if letter.original is not None:
            value = letter.original.value
            value_file = None if value is None else name
            if value is not None and value != letter.payload:
                value_file = f"{name}.value"
                self._file(value_file, value)
            headers = [[key, _packed(text)] for key, text in letter.original.headers]
            full = {"key": _packed(letter.original.key), "headers": headers, "value": value_file}
        entry = {
            "where": letter.where,  # first, for people
            "bytes": len(letter.payload),
            "payload": name,
            "original": full,
        }
        entry |= {name: getattr(letter, name) for name in _SAME}
        return json.dumps(entry).encode() + b"\n"

    def _file(self, name: str, data: bytes) -> None:
        """Whole or not at all under its name."""
        write_whole(self._path / name, data)

    def _append(self, lines: bytes) -> None:
        path = self._path / LINES
        fresh = not path.exists()
        with path.open("ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                lines = b"\n" + lines  # behind what a killed writer left
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        if fresh:
            sync_folder(self._path)


def _file_name(letter: Letter) -> str:
    """Letters, digits, '-' and '.' only, and short; the hash keeps sources apart that share a folder."""
    mark = hashlib.blake2b(f"{letter.source}\0{letter.where}".encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{letter.partition:05d}-{letter.position:012d}-{mark}.bin"


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "original" in entry else None


def _packed(text: bytes | None) -> str | None:
    return None if text is None else base64.b64encode(text).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
