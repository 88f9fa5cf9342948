"""nvImageCodec, imported so that it prints nothing: what happens to a record is reported by us, with its coordinates.

It and the OpenCV in it read from the environment, when they are loaded, how much to print, and print to the
user's terminal. The user's own setting wins, and the environment is left as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["nvimgcodec"]

_SILENT = {"PYNVIMGCODEC_VERBOSITY": "0", "OPENCV_LOG_LEVEL": "SILENT"}


@contextmanager
def _silent() -> Iterator[None]:
    ours = {name: value for name, value in _SILENT.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


with _silent():
    from nvidia import nvimgcodec
