"""What a file was when it was looked at, so that another one in its place is seen.

The law: a file that was written again or replaced has another stamp, whoever set its times: the time of
change is the kernel's own. An inode alone proves nothing, since mounts of object stores give one file several.
"""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["Stamp"]


class Stamp(NamedTuple):
    """Inode, bytes, and the times of the last write and of the last change of any kind, in ns."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """What `os.stat` or `os.fstat` says."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def change(self, now: Stamp) -> str:
        """What became of the file since; "" where it is the same."""
        if now.size != self.size:
            return f"it had {self.size} bytes and has {now.size} now"
        if (now.mtime_ns, now.ctime_ns) == (self.mtime_ns, self.ctime_ns):
            return ""
        if now.inode != self.inode:
            return f"another file of the same {self.size} bytes is in its place"
        times = "was written again" if now.mtime_ns != self.mtime_ns else "has another time of change (ctime)"
        return f"it {times} and has the same {self.size} bytes"
