"""Sets behind addresses: `s3://bucket/imagenet.dfset` and the shards and indexes beside it, by a remote store.

The law: as of a set on a mounted file system: what the manifest names is there, as long as it was, with the index that
it names, or reading it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from dali_feed.errors import ConfigError, SourceNotFoundError
from dali_feed.storage.contract import piece
from dali_feed.storage.manifest import Manifest, parsed
from dali_feed.storage.paths import braces
from dali_feed.storage.set_store import SetStore

__all__ = ["RemoteSets"]


@dataclass(frozen=True)
class RemoteSets(SetStore):
    """Files of remote sets by their manifests; other addresses as `below` has them, which is a `RemoteStore`."""

    def _homes(self, pattern: str) -> list[str]:
        if any(sign in pattern for sign in "*["):
            msg = f"ShardSet: a remote set is named by its address; found the pattern {pattern!r}; write a range, "
            raise ConfigError(msg + "{0..9}, or name each")
        return braces(pattern)

    def _loaded(self, home: str) -> Manifest:
        """Raises SourceNotFoundError, DataLostError as `load_manifest`, and ConfigError for a striped set."""
        try:
            file = self.below.open(home)
            whole = piece(file, file.stamp().size, 0)
        except SourceNotFoundError as error:
            msg = f"{home}: no such set; check the address, or copy the manifest too, last of all"
            raise SourceNotFoundError(msg) from error
        found = parsed(home, whole)
        if found.layout is not None:
            msg = (
                f"{home}: a remote set must be of whole files; found one striped over {len(found.layout.targets)}"
                " targets; pack it again without targets (dali-feed pack SET OUT), and copy that"
            )
            raise ConfigError(msg)
        return found
