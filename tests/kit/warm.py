"""Python as a person runs it, without the seconds that importing torch takes each: forked from one process.

A script's own imports, its arguments, its folder and how it ends are as they would be; what it prints is had whole.
Only torch, torchvision and our loader are there already: none starts a thread or asks for a GPU when it is imported.
DALI is, without a GPU, and is not seen before a script imports it: it has a hook of its own for the end of a process,
and ours must be right however late that came.
What was imported is never garbage, so the scripts' collectors leave it alone: to look through a million objects as a
process ends takes more than a second, and each page of them is copied from the parent first.

`Warm.python` is a program that stands in Python's place wherever a path is taken: kit/warm_python.py. For a script
that runs here `sys.executable` is that one, so the processes that it starts are forked too. Killed, interrupted or
ended, it takes what it stands for along. Options of Python that it does not know, it leaves to Python itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kit.limits import LONG

# The loop is left by children alone: one runs its script in its place, as a process does that has nothing else. Triton
# counts at the end what the collector left of its own, and torch does without it on a CPU. DALI is imported with its
# hooks caught, and taken away again: what a script imports is that one, whose hooks come then.
_LOOP = """
import gc, os, sys
gc.disable()  # a third of the time of these imports
sys.modules["triton"] = None
import atexit, contextlib, importlib.machinery, json, runpy, select, signal, socket, struct, threading, types, warnings
import torch, torchvision.transforms.v2
del sys.modules["triton"]
from dali_feed import DataLoader
from dali_feed.external_sources import KafkaTopic, ShardSet

class Late:
    name, hooks = "nvidia.dali", []
    def __init__(self):
        register, atexit.register = atexit.register, lambda *hook: self.hooks.append(hook) or hook[0]
        try:
            __import__(self.name)
        finally:
            atexit.register = register
        self.modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "nvidia"}
        del self.modules["nvidia"]
        self.spec = self.modules[self.name].__spec__
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name == self.name else None
    def create_module(self, spec):
        return self.modules[self.name]
    def exec_module(self, module):
        module.__spec__ = self.spec
        sys.modules.update(self.modules)
        for hook in self.hooks:
            atexit.register(*hook)

with contextlib.suppress(ImportError):
    if not os.path.exists("/dev/nvidiactl"):  # else it may ask for a GPU, which is no child's then
        sys.meta_path.insert(0, Late())
gc.freeze()
gc.enable()
begun = os.environ.get("PYTHONPATH", "")
asking = socket.socket(fileno=int(sys.argv[1]))
running = {}  # by what says that it has ended, a process: its client, its number
while True:
    ready = select.select([asking, 0, *running, *(client for client, _ in running.values())], [], [])[0]
    if 0 in ready:  # whoever began it has ended, and with it all that it had run
        for ended in running:
            signal.pidfd_send_signal(ended, signal.SIGKILL)
        sys.exit()
    for ended, (client, child) in list(running.items()):
        if ended in ready:
            with contextlib.suppress(ConnectionError):  # the client was killed
                client.send(struct.pack("q", os.waitpid(child, 0)[1]))
            client.close()
            os.close(ended)
            del running[ended]
        elif client in ready:
            told = b""
            with contextlib.suppress(ConnectionError):
                told = client.recv(1)
            signal.pidfd_send_signal(ended, (told or b"\\x09")[0])
    if asking not in ready:
        continue
    client = asking.accept()[0]
    head, opened, _, _ = socket.recv_fds(client, 8, 3)
    try:
        with client.makefile("rb") as file:
            asked = json.loads(file.read(struct.unpack("q", head)[0]))
    except (OSError, ValueError, struct.error):  # killed before it had asked
        child = None
    else:
        child = os.fork()
    if child == 0:
        break
    for each in opened:
        os.close(each)
    if child is None:
        client.close()
    else:
        running[os.pidfd_open(child)] = client, child
for ended, (other, _) in running.items():
    os.close(ended)
    other.close()
client.close()
asking.close()
os.chdir(asked["folder"])
for number, descriptor in enumerate(opened):
    os.dup2(descriptor, number)
    os.close(descriptor)
os.environ.clear()
os.environ.update(asked["env"])
sys.executable = asked["python"]
sys.argv = asked["words"]
if "u" in asked["options"] or os.environ.get("PYTHONUNBUFFERED"):
    sys.stdout.reconfigure(write_through=True)
for each in asked["warnings"]:
    warnings._setoption(each)
found = os.environ.get("PYTHONPATH", "")
if "I" not in asked["options"] and found != begun:
    sys.path[:0] = found.split(os.pathsep)
how, what = asked["how"], asked["what"]
if not {"I", "P"} & set(asked["options"]):
    sys.path.insert(0, os.path.dirname(what) if how == "script" else os.getcwd() if how == "m" else "")
status = 0
try:
    if how == "script":
        names = runpy.run_path(what, run_name="__main__")  # kept until the process ends, as a script's are
    elif how == "m":
        names = runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)
except BaseException as error:
    if "WARM_TO_THE_END" in os.environ or isinstance(error, KeyboardInterrupt):
        raise
    status = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(status, int | None):
        status = print(status, file=sys.stderr) or 1
if "WARM_TO_THE_END" not in os.environ:
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((status or 0) & 255)
"""


class Warm:
    """A process that has imported torch, and forks what is to run; `at` a folder, one of others. A context manager."""

    def __init__(self, at: Path | None = None) -> None:
        self.home = at or Path(tempfile.mkdtemp(prefix="warm-"))
        self.python = self.home / "python"  # what stands in Python's place
        self._told = self.home / "imports"
        self._process = None if at else self._begun()

    def _begun(self) -> subprocess.Popen[bytes]:
        self.python.write_text(f"#!{sys.executable} -IS\n" + Path(__file__).with_name("warm_python.py").read_text())
        shutil.copymode(sys.executable, self.python)
        with socket.socket(socket.AF_UNIX) as asking, self._told.open("w") as told:
            asking.bind(str(self.home / "asking"))
            asking.listen(64)
            command = [sys.executable, "-P", "-c", _LOOP, str(asking.fileno())]
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=told, pass_fds=[asking.fileno()], start_new_session=True
            )

    def run(
        self,
        command: Sequence[object],
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        beside: bool = True,
        to_the_end: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """The script `command[0]` with its arguments, in `folder`; it finds modules `beside` it, but for -P.

        Its environment is that of the moment, and `env` besides. It ends behind the hooks for its end. What Python and
        the libraries take apart after those, 0.4 s of CPU for torch, is left out unless it is to run `to_the_end`.
        """
        env = {**os.environ, **(env or {}), **({"WARM_TO_THE_END": "1"} if to_the_end else {})}
        words = [str(self.python), *([] if beside else ["-P"]), *map(str, command)]
        done = subprocess.run(
            words, cwd=folder, env=env, timeout=LONG, capture_output=True, text=True, errors="replace", check=False
        )
        done.stderr = self._told.read_text() + done.stderr
        return done

    def close(self) -> None:
        """End it, if it was begun here, with all that it forked."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate(timeout=LONG)
            shutil.rmtree(self.home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
