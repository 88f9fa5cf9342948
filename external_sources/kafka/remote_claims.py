"""Claims whose payloads lie behind an address: `KafkaTopic(claims="s3://bucket/folder")`.

The law is that of `claims`: nothing is asked for but objects under the one address, and what is given is of the size
and the hash that its record says, or it is that record's fault. A store that refuses or does not answer is nobody's
fault but its own: an error, after the tries that shards have.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

from confluent_kafka import Message

from dali_feed.errors import ConfigError, SourceChangedError, SourceError, SourceNotFoundError
from dali_feed.external_sources.kafka.claims import SCHEME, Told, claim_of, told_in, weight_of
from dali_feed.external_sources.one_file import LARGEST
from dali_feed.records.source import Lease
from dali_feed.storage.paths import shown
from dali_feed.storage.remote import RemoteStore
from dali_feed.storage.sets import store_for

__all__ = ["RemoteClaims"]

# What a client or a server may take for something else than a letter of a name: %2e%2e is two dots to some.
_OTHER = re.compile(r"[%?#\\\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class RemoteClaims:
    """Payloads may lie under this address.

    A URI is a path under it, or that address and such a path. Credentials are those of the environment.
    """

    folder: str
    store: RemoteStore = field(repr=False, compare=False)

    @classmethod
    def under(cls, address: str) -> RemoteClaims:
        """Of an address, whose store is first asked when a record refers to it. ConfigError for one with a password."""
        folder = address.rstrip("/")
        if "?" in folder:
            found = f"found a query in {shown(folder)!r}"
            msg = f"claims: must be an address that paths can be added to; {found}; leave it out"
            raise ConfigError(msg)
        return cls(folder, cast("RemoteStore", store_for([f"{folder}/object"])))

    weigh = staticmethod(lambda message: weight_of(cast("Message", message)))

    def find(self, headers: Iterable[tuple[str, Any]], lease: Lease) -> memoryview | str | None:
        """See `Follows`.

        Raises:
            SourceDeniedError, SourceUnreachableError: the store refuses, or does not answer.
            SourceNotFoundError: nothing at all lies under the address, where the store can list.
        """
        told = told_in(headers)
        if not isinstance(told, Told):
            return told
        path = self._path(told.uri)
        if path is None:
            return f"{claim_of(told)}: the object must lie under {self.folder}, and the URI leads out of it"
        if told.size > LARGEST:
            return f"{claim_of(told)}: an object of {told.size} bytes; at most {LARGEST} are allowed"
        try:
            return self._read(path, told, lease)
        except SourceNotFoundError:
            self._look()
            return f"{claim_of(told)}: the object is not under {self.folder}"
        except SourceChangedError:
            return f"{claim_of(told)}: the object changed while it was read"
        except SourceError as error:
            raise self._told(error) from error

    def _read(self, path: str, told: Told, lease: Lease) -> memoryview | str:
        file = self.store.open(path)
        if file.was.size != told.size:
            return f"{claim_of(told)}: the object must have {told.size} bytes; found {file.was.size}"
        view = lease.room(told.size)
        file.read(view, 0)
        digest = hashlib.sha256(view).hexdigest()
        if digest != told.sha256:
            return f"{claim_of(told)}: the object must have the SHA-256 {told.sha256}; found {digest}: it was changed"
        return view

    def _path(self, uri: str) -> str | None:
        """The address that a URI names; None where that is none under the folder."""
        inside = uri.removeprefix(f"{self.folder}/")
        if inside == uri and SCHEME.match(uri):
            return None
        inside = unquote(inside, errors="surrogateescape")
        if _OTHER.search(inside) or any(part in ("", ".", "..") for part in inside.split("/")):
            return None
        return f"{self.folder}/{inside}"

    def _look(self) -> None:
        """Raise where nothing is there at all; a web server cannot be asked that."""
        if self.store.kind in ("http", "https"):
            return
        try:
            empty = self.store.is_empty(self.folder)
        except SourceError as error:
            raise self._told(error) from error
        if empty:
            msg = f"claims={self.folder!r}: the folder must hold payloads; it is empty: check the address"
            raise SourceNotFoundError(msg)

    def _told(self, error: SourceError) -> SourceError:
        return type(error)(f"claims={self.folder!r}: {error}")
