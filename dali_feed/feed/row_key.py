"""Which rows may stand for which reads, from run to run: a name made of all that decides what a read gives.

The law: two reads that could give other rows have other names. So it is made of the snapshot's fingerprint, of all that
another process would be sent to read the same source, of what is done to payloads, and of our version; and code of the
user's own, which may change under its name, has none.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from importlib.metadata import version
from typing import Any

from dali_feed.columns.source import Columnar
from dali_feed.errors import ConfigError

__all__ = ["key_of"]

_VERSION = 1
_KNOWN = {"dali_feed", "numpy", "pyarrow", "copyreg", *sys.stdlib_module_names} - {"__main__"}


class _OwnCodeError(Exception):
    """Of a function or a class that is not ours."""


class _Digest(io.RawIOBase):
    """A file that is never there."""

    def __init__(self) -> None:
        super().__init__()
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)


class _Teller(pickle.Pickler):
    """Writes what an object is. Nothing is ever read of it."""

    def reducer_override(self, obj: Any) -> Any:
        """Stop at code that may be another in the next run."""
        if isinstance(obj, type) or hasattr(obj, "__code__"):
            module = str(getattr(obj, "__module__", ""))
            if module.partition(".")[0] not in _KNOWN:
                msg = f"{module}.{getattr(obj, '__qualname__', obj)}"
                raise _OwnCodeError(msg)
        return NotImplemented


def key_of(source: Any, fingerprint: str, made: tuple[object, ...]) -> str:
    """The name of the rows that readers of a source give, in 32 hexadecimal digits; `made`: what is done to payloads.

    ConfigError where it cannot be told.
    """
    beneath = source.asked if isinstance(source, Columnar) else (source,)
    digest = _Digest()
    try:
        _Teller(digest, 5).dump((_VERSION, version("dali-feed"), fingerprint, made, beneath))
    except _OwnCodeError as error:
        msg = (
            f"Cache(disk=...): {beneath[0]!r} reads with your own code, {error}, and a folder cannot know when "
            "that has changed. Keep records in memory, or give a codec or a format of dali_feed"
        )
        raise ConfigError(msg) from None
    except Exception as error:  # whatever an object raises
        msg = (
            f"Cache(disk=...): the source must be one that can be sent to another process; found {beneath[0]!r}: "
            f"{error}. Keep records in memory"
        )
        raise ConfigError(msg) from error
    return digest.hash.hexdigest()
