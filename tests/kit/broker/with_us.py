"""Processes that end with the one that began them, however that ends: a test run that is killed leaves no server.

A shell beside each waits for its end of a pipe to close, which the system does for a process that is gone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

_SHELL = 'read -r _; kill -9 -- "-$1"; rm -rf -- "$2"'


class Beside:
    """Of a process that leads a group of its own: when we have ended, that is killed and `folder` removed."""

    def __init__(self, process: subprocess.Popen[Any], folder: Path) -> None:
        words = ["sh", "-c", _SHELL, "sh", str(process.pid), str(folder)]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._shell = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, **quiet)

    def let_go(self) -> None:
        """Of a process that has ended."""
        self._shell.kill()
        self._shell.communicate()
