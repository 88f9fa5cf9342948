"""The keys of a tar file's samples: what an index leaves out, since no training run needs them."""

from __future__ import annotations

import os

from dali_feed.errors import DataLostError
from dali_feed.external_sources.tar_headers import DamageError, members
from dali_feed.external_sources.tar_index import key_length, reads_of
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Store

__all__ = ["tar_keys"]


def tar_keys(path: str, most: int | None = None, store: Store = LOCAL) -> list[str]:
    """The key of each sample, in order; of the first `most` where that is given.

    Bytes that are no UTF-8 are kept as Python keeps those of file names. Raises what `tar_index.build` raises.
    """
    found: list[str] = []
    last = b""
    file = store.open(path)
    try:
        for member, _, _ in members(reads_of(file), file.stamp().size):
            length = key_length(member)
            if length and member[:length] != last:
                if most is not None and len(found) == most:
                    break
                last = member[:length]
                found.append(os.fsdecode(last))
    except DamageError as damage:
        msg = f"{path}: a shard must be whole; found at byte {damage.byte}: {damage.what}; fetch or write it again"
        raise DataLostError(msg) from None
    finally:
        file.close()
    return found
