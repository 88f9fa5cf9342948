"""Which store a path is of, by how it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.storage.contract import Store
from dali_feed.storage.local import LOCAL
from dali_feed.storage.set_store import SetStore, is_set_path

__all__ = ["store_for"]

_HOST = re.compile(r"(\w+://)([^/@]*@)?([^/]*)")
_BY_HOST = ("hdfs", "webhdfs", "ftp", "sftp", "smb")  # what stands there is the server, not a bucket


def store_for(patterns: Sequence[str], options: Mapping[str, Any] | None = None) -> Store:
    """The store of all these patterns; `options` are of a file system of fsspec, and never shown.

    Raises:
        ConfigError: they are of several stores, an address holds a password, or mounted files are given options.
    """
    remote = [pattern for pattern in patterns if "://" in pattern and not pattern.startswith("pipe:")]
    if not remote:
        if options:
            msg = (
                "ShardSet: storage_options are for addresses such as s3://bucket/train.tar; found files; leave them out"
            )
            raise ConfigError(msg)
        return SetStore() if any(map(is_set_path, patterns)) else LOCAL
    kinds = {_kind(pattern) for pattern in patterns}
    if len(kinds) > 1:
        msg = f"ShardSet: all shards must be of one store; found {', '.join(sorted(kinds))}; make a ShardSet of each"
        raise ConfigError(msg)
    from dali_feed.storage.remote import RemoteStore

    store = RemoteStore(remote[0], dict(options or {}))
    if not any(map(is_set_path, patterns)):
        return store
    from dali_feed.storage.remote_sets import RemoteSets

    return RemoteSets(store)


def _kind(pattern: str) -> str:
    found = _HOST.match(pattern)
    if found is None:
        return "files" if "://" not in pattern else pattern.partition("://")[0]
    if found[2]:
        msg = f"ShardSet: an address must hold no user or password; found {found[1]}***@{found[3]}; "
        raise ConfigError(msg + "give them by storage_options=")
    return found[1] + found[3] if found[1].removesuffix("://") in _BY_HOST else found[1]
