"""Scripts as a person runs them, without the seconds that importing torch takes each: forked from one process.

A script's own imports, its arguments, its folder and how it ends are as they would be; what it prints is had whole.
Only torch, torchvision and our loader are there already: none starts a thread or asks for a GPU when it is imported.
DALI is not: it has a hook of its own for the end of a process, and ours must be right however late that came.
What was imported is never garbage, so the scripts' collectors leave it alone: to look through a million objects as a
process ends takes more than a second, and each page of them is copied from the parent first.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from limits import LONG

# The loop is left by children alone: one ends as a process does that ran nothing but its script. Triton counts at the
# end what the collector left of its own, and torch does without it on a CPU.
_LOOP = """
import gc, json, os, runpy, sys
gc.disable()  # a third of the time of these imports
sys.modules["triton"] = None
import torch, torchvision.transforms.v2
del sys.modules["triton"]
from dali_feed import DataLoader
from dali_feed.external_sources import KafkaTopic, ShardSet
gc.freeze()
gc.enable()
begun = os.environ.get("PYTHONPATH", "")
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.chdir(asked["folder"])
for number, name in enumerate((os.devnull, asked["out"], asked["err"])):
    opened = os.open(name, os.O_RDWR | os.O_CREAT)
    os.dup2(opened, number)
    os.close(opened)
os.environ.clear()
os.environ.update(asked["env"])
if asked["env"].get("PYTHONPATH", begun) != begun:
    sys.path[:0] = asked["env"]["PYTHONPATH"].split(os.pathsep)
if asked["beside"]:
    sys.path.insert(0, os.path.dirname(asked["command"][0]))
sys.argv = asked["command"]
names = runpy.run_path(sys.argv[0], run_name="__main__")  # kept until the process ends, as a script's are
"""


class Warm:
    """A process that has imported torch, and runs one script after the other. A context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._home = Path(self._folder.name)
        self._process = self._begun()

    def _begun(self) -> subprocess.Popen[str]:
        with (self._home / "imports").open("w") as told:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", _LOOP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=told,
                text=True,
                start_new_session=True,
            )

    def run(
        self,
        command: Sequence[object],
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        beside: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """The script `command[0]` with its arguments, in `folder`; it finds modules `beside` it, but for -P.

        Its environment is that of the moment, and `env` besides.
        """
        if self._process.poll() is not None:  # a script hung, and they were ended: that is one test's failure
            self._process.communicate()
            self._process = self._begun()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = [str(word) for word in command]
        out, err = self._home / "out", self._home / "err"
        for path in (out, err):
            path.write_text("")
        asked: dict[str, Any] = {
            "command": words,
            "folder": str(folder or Path.cwd()),
            "out": str(out),
            "err": str(err),
        }
        asked |= {"beside": beside, "env": {**os.environ, **(env or {})}}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        hangs = threading.Timer(LONG, self._end)
        hangs.start()
        code = self._process.stdout.readline()
        hangs.cancel()
        if not code:
            self._process.wait(LONG)
        told = (self._home / "imports").read_text() + err.read_text(errors="replace")
        assert code, f"it hung, or the process that it comes from has ended: {told}"
        return subprocess.CompletedProcess(words, int(code), out.read_text(errors="replace"), told)

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the script, if one runs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._process.communicate(timeout=LONG)
        self._folder.cleanup()
