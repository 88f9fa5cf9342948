"""Claim checks, read: a record whose payload lies elsewhere says where, how large it is and what its SHA-256 is.

The law: nothing is opened but files in the one folder that the reader was told of, wherever a record says to look; and
what is given is of that size and that hash, or it is that record's fault. A folder that is not there, or is empty as
one that nothing is mounted on, is nobody's fault but its own: an error.

Whether a record has a claim is looked at where its value is empty, and nowhere else: the others pay nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from confluent_kafka import Message

from dali_feed.errors import SourceDeniedError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources.one_file import LARGEST, load_file
from dali_feed.records.source import Lease

__all__ = [
    "SCHEME",
    "SHA256",
    "SIZE",
    "UNTOLD",
    "URI",
    "AsTheyAre",
    "Claims",
    "Follows",
    "Told",
    "Untold",
    "claim_of",
    "told_in",
    "value_of",
    "weight_of",
]

URI, SIZE, SHA256 = "claim.uri", "claim.size", "claim.sha256"  # headers, in text
_SHOWN = 200  # letters of a URI
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HASH = re.compile(rb"[0-9a-f]{64}")
_NOTHING = memoryview(b"")
# What one file may be, while the others are well.
_ITS_OWN = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.EINVAL,
}


class Told(NamedTuple):
    """What a record says of its payload."""

    uri: str
    size: int
    sha256: str


class Follows(Protocol):
    """What is done with claims."""

    def find(self, headers: Iterable[tuple[str, Any]], lease: Lease) -> memoryview | str | None:
        """The payload, put into the lease; why there is none; or None where the headers make no claim."""
        ...

    def weigh(self, message: Message) -> int:
        """How many bytes a record takes where it is read."""
        ...


def told_in(headers: Iterable[tuple[str, Any]]) -> Told | str | None:
    """The claim that headers make, why it is none, or None. Of headers with one name the last counts."""
    known = {name: text for name, text in headers if name in (URI, SIZE, SHA256)}
    if URI not in known:
        return None
    for name in (SIZE, SHA256):
        if not isinstance(known.get(name), bytes):
            return f"a claim must have the headers {URI}, {SIZE} and {SHA256}; found no {name}"
    uri, size, digest = known[URI], known[SIZE], known[SHA256]
    try:
        where = uri.decode()
    except (AttributeError, UnicodeDecodeError):
        return f"header {URI}: a text in UTF-8 is needed; found {uri!r:.{_SHOWN}}"
    if not (size.isdigit() and len(size) <= 18):
        return f"header {SIZE}: a decimal number is needed; found {size[:40]!r}"
    if not _HASH.fullmatch(digest):
        return f"header {SHA256}: 64 hexadecimal digits are needed; found {digest[:80]!r}"
    return Told(where, int(size), digest.decode())


def value_of(follows: Follows, message: Message, lease: Lease) -> memoryview | str | None:
    """The payload of a record whose value is empty or None; why there is none; None where it is a tombstone."""
    if message.value() is None:
        return None
    headers: Any = message.headers() or ()
    found = follows.find(headers, lease)
    return _NOTHING if found is None else found


class AsTheyAre:
    """Records with claims are records with an empty value: whoever copies a topic copies them."""

    weigh = staticmethod(len)

    def find(self, headers: Iterable[tuple[str, Any]], lease: Lease) -> memoryview | str | None:
        """See `Follows`."""
        return None


class Untold:
    """Nobody said where payloads may lie."""

    weigh = staticmethod(len)

    def find(self, headers: Iterable[tuple[str, Any]], lease: Lease) -> memoryview | str | None:
        """See `Follows`."""
        told = told_in(headers)
        if not isinstance(told, Told):
            return told
        cure = "give the source claims=, the folder that it may be read from"
        return f"{claim_of(told)}: the payload is stored elsewhere; {cure}"


UNTOLD = Untold()


@dataclass(frozen=True, slots=True)
class Claims:
    """Payloads may lie in this folder.

    A URI is a path in the folder, or `file:` and a whole path that leads into it. Links are followed, not out of it.
    """

    folder: str

    def find(self, headers: Iterable[tuple[str, Any]], lease: Lease) -> memoryview | str | None:
        """See `Follows`.

        Raises:
            SourceNotFoundError: the folder is not there, or holds nothing.
            SourceDeniedError: it cannot be listed.
            SourceUnreachableError: its file system does not answer.
        """
        told = told_in(headers)
        if not isinstance(told, Told):
            return told
        path = self._path(told.uri)
        if path is None:
            return f"{claim_of(told)}: the object must lie in {self.folder}, and the URI leads out of it"
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno not in _ITS_OWN:
                raise self._silent(error) from error
            self._look()
            return f"{claim_of(told)}: the object is not in {self.folder}: {error.strerror}"
        if stat.S_ISREG(status.st_mode) and status.st_size != told.size:
            return f"{claim_of(told)}: the object must have {told.size} bytes; found {status.st_size}"
        found = load_file(path, lease)
        if isinstance(found, str):
            self._look()
            return f"{claim_of(told)}: {found}"
        digest = hashlib.sha256(found).hexdigest()
        if len(found) != told.size or digest != told.sha256:
            return f"{claim_of(told)}: the object must have the SHA-256 {told.sha256}; found {digest}: it was changed"
        return found

    def weigh(self, message: Message) -> int:
        """See `Follows`: with what the claim says of the payload."""
        return weight_of(message)

    def _path(self, uri: str) -> str | None:
        """The file that a URI names, links resolved; None where that is none in the folder."""
        if uri.startswith("file:///"):
            uri = uri.removeprefix("file://")
        elif SCHEME.match(uri):
            return None
        try:
            root = os.path.realpath(self.folder)
            found = os.path.realpath(os.path.join(root, unquote(uri, errors="surrogateescape")))
        except (OSError, ValueError):  # a zero byte
            return None
        return found if found.startswith(os.path.join(root, "")) else None

    def _look(self) -> None:
        """Raise where the folder itself is not as it must be."""
        try:
            with os.scandir(self.folder) as entries:
                if next(entries, None) is not None:
                    return
            msg = f"claims={self.folder!r}: the folder must hold payloads; it is empty: is it mounted?"
            raise SourceNotFoundError(msg)
        except (FileNotFoundError, NotADirectoryError) as error:
            msg = f"claims={self.folder!r}: must be the folder of the payloads; found: {error.strerror}; mount it"
            raise SourceNotFoundError(msg) from error
        except PermissionError as error:
            msg = f"claims={self.folder!r}: the folder must be readable; found: {error.strerror}; check its permissions"
            raise SourceDeniedError(msg) from error
        except OSError as error:
            raise self._silent(error) from error

    def _silent(self, error: OSError) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"claims={self.folder!r}: the folder's file system must answer; found: {error.strerror}"
        )


def weight_of(message: Message) -> int:
    """Bytes of a record, with what its claim says of the payload."""
    size = len(message)
    if message.value() == b"":
        headers: Any = message.headers() or ()
        told = told_in(headers)
        if isinstance(told, Told):
            size += min(told.size, LARGEST)
    return size


def claim_of(told: Told) -> str:
    """A claim in messages."""
    return f"claim {told.uri[:_SHOWN]!r}"
