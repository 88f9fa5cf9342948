"""Memory that librdkafka frees and takes again, kept by the process meanwhile.

glibc gives freed memory back to the system where there is more of it than twice the largest piece that it has seen
freed, and librdkafka frees what it has fetched ahead whenever a reader goes on to another place: 10 to 20 MB, which
then come back page by page. That is a tenth of all that reading costs. One large piece, never touched, that is freed
first teaches glibc to keep 64 MB. Where MALLOC_* or GLIBC_TUNABLES set such limits, they stay as they are.
"""

from __future__ import annotations

from functools import cache

import numpy as np

__all__ = ["keep_freed"]

LARGEST = (32 << 20) - (64 << 10)  # bytes; glibc learns from nothing larger than 32 MB


@cache
def keep_freed() -> None:
    """Once in a process, before its first consumer."""
    np.empty(LARGEST, np.uint8)
