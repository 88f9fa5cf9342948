"""A run that packs and kills itself at a step: `killed_pack.py FOLDER OUT STEP`.

Steps are samples that are added, and files that are synced or renamed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dali_feed.external_sources import FileList
from dali_feed.packing import PackedSet, pack
from dali_feed.packing.sinks import TarWriter


def packed(folder: Path, out: Path) -> PackedSet:
    """The run: four shards of five files."""
    return pack(FileList(sorted(map(str, folder.iterdir()))), out, shard_bytes=7000, workers=2)


def killed_at(step: int, folder: Path, out: Path) -> bool:
    """Run it in a process of its own; whether it was killed before it came to the end."""
    command = [sys.executable, "-P", __file__, str(folder), str(out), str(step)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


def contents(out: Path) -> dict[str, bytes]:
    """Every file of a set's folder, by its path there."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def _counts(of: Any, name: str, step: Callable[[], None]) -> None:
    inner = getattr(of, name)

    def outer(*args: Any, **more: Any) -> Any:
        step()
        return inner(*args, **more)

    setattr(of, name, outer)


def main(folder: str, out: str, last: str) -> None:
    """Count the steps, and die at the last."""
    left = int(last)

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _counts(TarWriter, "add", step)
    _counts(os, "fsync", step)
    _counts(Path, "replace", step)
    packed(Path(folder), Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
