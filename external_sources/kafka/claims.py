"""Claim checks: payloads that are stored elsewhere; their records say where, how large they are and their SHA-256.

The laws of reading: nothing is opened but files in the one folder, or objects under the one address, that the reader
was told of, wherever a record says to look; and what is given is of that size and that hash, or it is that record's
fault. A folder that is not there, or is empty as one that nothing is mounted on, and a store that refuses or does not
answer, is nobody's fault but its own: an error. Whether a record has a claim is looked at where its value is empty, and
nowhere else: the others pay nothing.

The law of writing: a payload is on the disk, whole and under its name, before its record is sent. The name is the
SHA-256 of the payload, so that equal ones lie there once, and a run that goes on finds what it wrote before.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from confluent_kafka import Message

from dali_feed.checks import path_of
from dali_feed.errors import (
    ConfigError,
    ProduceError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources.files import LARGEST
from dali_feed.external_sources.kafka.client import headers_of
from dali_feed.records.source import Lease
from dali_feed.storage.durable import sync_folder, write_whole
from dali_feed.storage.paths import shown
from dali_feed.storage.remote import RemoteStore
from dali_feed.storage.sets import store_for
from dali_feed.storage.store import LOCAL, Store

CLAIM = URI, SIZE, SHA256 = "claim.uri", "claim.size", "claim.sha256"  # headers, in text
_SHOWN = 200  # letters of a URI
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HASH = re.compile(rb"[0-9a-f]{64}")
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


class ClaimHeaders(NamedTuple):
    """What a record says of its payload."""

    uri: str
    size: int
    sha256: str


def claim_in(headers: Iterable[tuple[str, Any]]) -> ClaimHeaders | str | None:
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
    return ClaimHeaders(where, int(size), digest.decode())


def claimed(claims: Claims | None, headers: Iterable[tuple[str, Any]], lease: Lease) -> memoryview | str:
    """The payload that the headers of a record with a value of no bytes tell of; why there is none.

    Raises what `Claims.payload` does.
    """
    claim = claim_in(headers)
    if isinstance(claim, str):
        return claim
    if claim is None:
        return memoryview(b"")
    if claims is None:
        cure = "give the source claims=, the folder that it may be read from"
        return f"{claim_of(claim)}: the payload is stored elsewhere; {cure}"
    return claims.payload(claim, lease)


def weight_of(message: Message) -> int:
    """Bytes of a record, with what its claim says of the payload."""
    size = len(message)
    if message.value() == b"":
        claim = claim_in(headers_of(message))
        if isinstance(claim, ClaimHeaders):
            size += min(claim.size, LARGEST)
    return size


def claim_of(claim: ClaimHeaders) -> str:
    """A claim in messages."""
    return f"claim {claim.uri[:_SHOWN]!r}"


# What a client or a server may take for something else than a letter of a name: %2e%2e is two dots to some.
_OTHER = re.compile(r"[%?#\\\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Claims:
    """Where payloads may lie: in a folder, or under an address, by the store that has it.

    A URI is a path in the folder, or `file:` and a whole path that leads into it; links are followed, not out of it.
    Or it is a path under the address, or that address and such a path. Credentials are those of the environment. A web
    server cannot be asked whether nothing at all is there.
    """

    folder: str
    store: Store = field(default=LOCAL, repr=False, compare=False)

    @classmethod
    def of(cls, place: str | os.PathLike[str]) -> Claims:
        """Of a folder, or an address, whose store is first asked when a record refers to it.

        Raises ConfigError for what is no path, and an address with a password or a query.
        """
        address = path_of("claims=", place)
        if "://" not in address:
            return cls(os.path.abspath(address))
        folder = address.rstrip("/")
        if "?" in folder:
            found = f"found a query in {shown(folder)!r}"
            raise ConfigError(f"claims: must be an address that paths can be added to; {found}; leave it out")
        return cls(folder, store_for([f"{folder}/object"]))

    def payload(self, claim: ClaimHeaders, lease: Lease) -> memoryview | str:
        """The payload, put into the lease; or why there is none. A SourceError where it is nobody's own fault."""
        path = self._file(claim.uri) if self._is_local else self._address(claim.uri)
        if path is None:
            payload: memoryview | str = f"the object must lie {self._inside}, and the URI leads out of it"
        else:
            payload = self._read(path, claim, lease)
        if not isinstance(payload, str):
            digest = hashlib.sha256(payload).hexdigest()
            if digest == claim.sha256:
                return payload
            payload = f"the object must have the SHA-256 {claim.sha256}; found {digest}: it was changed"
        return f"{claim_of(claim)}: {payload}"

    @property
    def _is_local(self) -> bool:
        return "://" not in self.folder

    @property
    def _inside(self) -> str:
        return f"{'in' if self._is_local else 'under'} {self.folder}"

    def _read(self, path: str, claim: ClaimHeaders, lease: Lease) -> memoryview | str:
        if claim.size > LARGEST:
            return f"an object of {claim.size} bytes; at most {LARGEST} are allowed"
        try:
            with closing(self.store.open(path)) as file:
                size = file.stamp().size
                if size == claim.size:
                    view = lease.room(size)
                    size = file.read(view, 0)
        except SourceChangedError:
            return "the object changed while it was read"
        except (OSError, SourceError) as error:
            if (why := self._why_not_there(error)) is None:
                raise self._named(error) from error
            self._look()
            return f"the object is not {self._inside}{why}"
        return view if size == claim.size else f"the object must have {claim.size} bytes; found {size}"

    def _why_not_there(self, error: OSError | SourceError) -> str | None:
        """Why this object cannot be read, while others can; None where that is not its own fault."""
        if not self._is_local:
            return "" if isinstance(error, SourceNotFoundError) else None
        cause = error.__cause__ if isinstance(error, SourceError) else error
        if isinstance(cause, OSError):
            return f": {cause.strerror}" if cause.errno in _ITS_OWN else None
        return ": it is not a regular file"

    def _file(self, uri: str) -> str | None:
        """The file that a URI names, links resolved; None where that is none in the folder."""
        if uri.startswith("file:///"):
            uri = uri.removeprefix("file://")
        elif _SCHEME.match(uri):
            return None
        try:
            root = os.path.realpath(self.folder)
            path = os.path.realpath(os.path.join(root, unquote(uri, errors="surrogateescape")))
        except (OSError, ValueError):  # a zero byte
            return None
        return path if path.startswith(os.path.join(root, "")) else None

    def _address(self, uri: str) -> str | None:
        """The address that a URI names; None where that is none under the folder."""
        inside = uri.removeprefix(f"{self.folder}/")
        if inside == uri and _SCHEME.match(uri):
            return None
        inside = unquote(inside, errors="surrogateescape")
        if _OTHER.search(inside) or any(part in ("", ".", "..") for part in inside.split("/")):
            return None
        return f"{self.folder}/{inside}"

    def _look(self) -> None:
        """Raise where the folder itself is not as it must be."""
        try:
            if isinstance(self.store, RemoteStore):
                cure = "check the address"
                empty = self.store.kind not in ("http", "https") and self.store.is_empty(self.folder)
            else:
                with os.scandir(self.folder) as entries:
                    empty, cure = next(entries, None) is None, "is it mounted?"
        except (OSError, SourceError) as error:
            raise self._named(error) from error
        if empty:
            raise SourceNotFoundError(f"claims={self.folder!r}: the folder must hold payloads; it is empty: {cure}")

    def _named(self, error: OSError | SourceError) -> SourceError:
        """What concerns all payloads."""
        subject = f"claims={self.folder!r}:"
        if isinstance(error, SourceError) and not isinstance(error.__cause__, OSError):
            return type(error)(f"{subject} {error}")
        cause = error.__cause__ if isinstance(error, SourceError) else error
        why = f"found: {cause.strerror if isinstance(cause, OSError) else cause}"
        if isinstance(cause, FileNotFoundError | NotADirectoryError):
            return SourceNotFoundError(f"{subject} must be the folder of the payloads; {why}; mount it")
        if isinstance(cause, PermissionError):
            return SourceDeniedError(f"{subject} the folder must be readable; {why}; check its permissions")
        return SourceUnreachableError(f"{subject} the folder's file system must answer; {why}")


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
            raise ConfigError(f"Claim: above must be a number of bytes, 0 or more; found {self.above!r}")

    def check(self, topic: str, most: int | None) -> None:
        """Before a run: raises ConfigError where the folder is not there, or the topic refuses what stays in it."""
        if not os.path.isdir(self.folder):
            raise ConfigError(f"Claim: the folder must exist, and readers must see it too; found none at {self.folder}")
        if most is not None and self.above >= most:
            raise ConfigError(
                f"Claim: above must be less than max.message.bytes of {topic}, {most}; found {self.above}; a "
                "value between the two could not be stored"
            )

    def stored(self, value: bytes | None) -> list[tuple[str, bytes]]:
        """Store a value that is too large for the topic; the headers of its record, none where it stays in the topic.

        Raises ProduceError where it cannot be written, as others could not be.
        """
        if value is None or len(value) <= self.above:
            return []
        digest = hashlib.sha256(value).hexdigest()
        name = f"{digest[:2]}/{digest}"
        self._put(Path(self.folder, name), value)
        return [(URI, name.encode()), (SIZE, b"%d" % len(value)), (SHA256, digest.encode())]

    def to_json(self) -> dict[str, Any]:
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
            raise ProduceError(
                f"{self.folder}: a payload of {len(value)} bytes must be written before its record is sent; "
                f"found: {error.strerror}; check the folder's mode and the space left, and continue with the "
                "same journal"
            ) from error
