"""One file read into a slab: what every source that names single files shares."""

from __future__ import annotations

import errno
import os
import stat

import numpy as np

from dali_feed.errors import ClosedError, SourceError
from dali_feed.records.source import Extents, Lease
from dali_feed.storage.store import Stamp

__all__ = ["check_read", "load_file"]

LARGEST = 1 << 31
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # the process's trouble, not the file's


def check_read(told: str, extents: Extents, count: int, *, closed: bool) -> None:
    """Of a source of one partition with `count` records: ClosedError, ConfigError for an extent that leaves it."""
    if closed:
        msg = f"{told}: this reader is closed; make another one"
        raise ClosedError(msg)
    extents.check_inside(np.array([count], np.int64), told)


def load_file(path: str, lease: Lease) -> memoryview | str:
    """The bytes of a file, or why there are none."""
    try:
        # Without O_NONBLOCK a pipe with an image's name would hold the reader up for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        return _fault(path, "the file cannot be opened", error)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return "a folder, not a file" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        size = status.st_size
        if size > LARGEST:
            return f"a file of {size} bytes; at most {LARGEST} are allowed"
        view = lease.room(size)
        got = more = os.preadv(fd, (view,), 0)
        while more and got < size:
            got += (more := os.preadv(fd, (view[got:],), got))
        if got < size:
            return f"the file ended at byte {got} of {size} while it was read"
        changed = Stamp.of(status).change(Stamp.of(os.fstat(fd)))  # half of one picture and half of another is none
        return f"the file changed while it was read: {changed}" if changed else view
    except OSError as error:
        return _fault(path, "the file cannot be read", error)
    finally:
        os.close(fd)


def _fault(path: str, what: str, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno in _OURS:
        msg = f"{path}: {what}: {error.strerror}; raise the limit (ulimit -n) or use fewer readers"
        raise SourceError(msg) from error
    return f"{what}: {error.strerror if isinstance(error, OSError) else error}"
