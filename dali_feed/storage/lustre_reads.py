"""How far to read ahead in files on Lustre: as far as keeps each server at work that has stripes of the file.

The law: what Lustre's tool says changes when bytes come, never which; where it says nothing, reads are as of a file on
one server, and that is said once. Files of one folder are taken to be laid out alike: the first that is opened is
asked about.
"""

from __future__ import annotations

import logging
import os
import threading

from dali_feed.errors import DaliFeedError
from dali_feed.storage import lustre

__all__ = ["AHEAD_BYTES", "ahead_of"]

AHEAD_BYTES = 8 << 20  # for each server of a file; of larger stripes, a stripe
_FOLDERS = 4096  # that are remembered

log = logging.getLogger("dali_feed")
_lock = threading.Lock()
_known: dict[str, int] = {}
_told = threading.Event()  # that a layout is not known


def ahead_of(path: str) -> int:
    """Bytes of a file that are asked for at once; 0 where it is not on Lustre."""
    folder = os.path.dirname(os.path.abspath(path))
    found = _known.get(folder)
    if found is None:
        with _lock:
            if (found := _known.get(folder)) is None:
                if len(_known) >= _FOLDERS:
                    _known.clear()
                found = _known[folder] = _asked(path, folder)
    return found


def _asked(path: str, folder: str) -> int:
    try:
        if lustre.magic_of(folder) != lustre.MAGIC:
            return 0
        layout = lustre.layout_of(path)
    except OSError:  # who opens the file says so
        return 0
    except DaliFeedError as error:
        if not _told.is_set():
            _told.set()
            log.warning(
                "%s: on Lustre, read as if it were on one target, because its layout is not known: %s", path, error
            )
        return AHEAD_BYTES
    ahead = max(AHEAD_BYTES, layout.size) * max(1, layout.count)
    log.info(
        "%s: on Lustre, over %d targets in stripes of %d bytes; up to %d MiB are asked for at once by each reader",
        folder,
        layout.count,
        layout.size,
        ahead >> 20,
    )
    return ahead


def _forget() -> None:
    """In a forked child: perhaps another thread held the lock."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
