"""read_c.c, compiled against the librdkafka in confluent_kafka's wheel: the ceiling of reading a topic."""

from __future__ import annotations

import atexit
import resource
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from dali_feed.external_sources.kafka.reader import librdkafka

__all__ = ["compiled", "missing_c", "read_c"]

SOURCE = Path(__file__).with_name("read_c.c")


def missing_c() -> str | None:
    """Why nothing in C can be built here, or None."""
    if shutil.which("gcc") is None:
        return "no `gcc` on the PATH"
    return None if librdkafka() else "confluent_kafka's wheel has no librdkafka beside it"


@cache
def compiled(source: Path) -> str:
    """The program of a file in C."""
    library, out = librdkafka(), Path(mkdtemp(prefix="dali_feed-bench-"), source.stem)
    atexit.register(shutil.rmtree, out.parent, ignore_errors=True)
    command = ["gcc", "-O2", "-Wall", "-Werror", str(source), str(library), "-o", str(out), "-pthread"]
    command += [f"-Wl,-rpath,{Path(str(library)).parent}", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{source.name} does not compile:\n{done.stderr}"
        raise RuntimeError(msg)
    return str(out)


def read_c(
    servers: str, topic: str, runs: Iterable[tuple[int, int, int]], readers: int, options: Mapping[str, Any]
) -> tuple[int, float, float]:
    """Payload bytes, seconds and CPU seconds of these runs (partition, start, stop), read by so many consumers.

    `readers` 0: one consumer that all runs are assigned to at once, each of another partition.
    """
    lines = "".join(f"{p} {a} {b}\n" for p, a, b in runs)
    told = [f"{name}={str(value).lower()}" for name, value in options.items()]
    command = [compiled(SOURCE), servers, topic, str(readers), *told]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    size, _, seconds = done.stdout.split()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return int(size), float(seconds), cpu
