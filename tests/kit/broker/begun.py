"""What brokers begin with, made once on a machine: formatted storage, and Java's archive of the classes they load.

A broker starts with half of the CPU seconds then, and without a process of Java that formats its storage. Java itself
goes on without an archive that does not fit its version, its class path or the jars' times.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_CLASSES, _STORAGE = "classes.jsa", "data"
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # that it does not fit costs seconds, not a line in each log


@functools.cache
def _java_version() -> str:
    return subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr


def kept_folder(cache: Path, jars: Path, words: str, make: Callable[[Path], None]) -> Path:
    """The folder in `cache` for these jars, this Java and `words`; who comes first lets `make` fill it, others wait."""
    key = [str(jars.resolve()), str(jars.stat().st_mtime_ns), _java_version(), words]
    folder = cache / f"{jars.name}-begun-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{jars.name}-begun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # left when its holder ends, however it does
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                made = Path(work, "made")
                made.mkdir()
                make(made)
                made.rename(folder)  # whole or not at all
    return folder


def archiving(folder: Path) -> list[str]:
    """Options of a Java that leaves the archive when it is stopped."""
    return [f"-XX:ArchiveClassesAtExit={folder / _CLASSES}", *_QUIET]


def archived(folder: Path) -> list[str]:
    """Options of a Java that begins with it, where it could be made."""
    classes = folder / _CLASSES
    return [f"-XX:SharedArchiveFile={classes}", *_QUIET] if classes.is_file() else []


def keep_storage(formatted: Path, folder: Path) -> None:
    """Keep a broker's storage, just formatted."""
    shutil.copytree(formatted, folder / _STORAGE)


def copy_storage(folder: Path, to: Path, node: int, cluster: str, directory: str) -> None:
    """The kept storage as that of another broker: its node, its cluster's id, and an id of the folder's own."""
    shutil.copytree(folder / _STORAGE, to)
    meta = to / "meta.properties"
    text = meta.read_text()
    for name, value in {"node.id": node, "cluster.id": cluster, "directory.id": directory}.items():
        text, found = re.subn(rf"(?m)^{re.escape(name)}=.*$", f"{name}={value}", text)
        assert found == 1, (name, text)
    meta.write_text(text)
