"""Processes that fork or end, and remote reads: batches, or an error that says what to do, never a hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.web import Web

from dali_feed.external_sources import ShardSet
from dali_feed.testing.shards import write_shard

SCRIPT = Path(__file__).parents[1] / "kit" / "forked_reads.py"


@pytest.mark.slow
def test_workers_of_torch_have_batches_or_say_what_to_do(tmp_path: Path) -> None:
    """Forked before the first read and spawned they read; forked after it they fail in ten seconds, by name."""
    write_shard(tmp_path / "0.tar", [(os.urandom(900), k) for k in range(12)])
    with Web({"0.tar": (tmp_path / "0.tar").read_bytes()}) as web:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), f"{web.url}/0.tar"],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    ways = {name: (labels, said, seconds) for name, labels, said, seconds in map(json.loads, done.stdout.splitlines())}
    every = list(range(12))
    for name in ("before", "other data", "spawned", "parent"):
        assert ways[name][:2] == (every, ""), name
    for name in ("after", "ours, after"):
        labels, said, seconds = ways[name]
        assert labels == []
        assert "ClosedError" in said
        assert "forked from one that had read from a remote store" in said
        assert "start it by spawn" in said
        assert seconds < 10


_READS_AND_ENDS = """
import contextlib, sys, threading
from dali_feed.errors import ClosedError
from dali_feed.external_sources import ShardSet
from dali_feed.records.extents import Extents

def read():
    with contextlib.suppress(ClosedError):
        source.reader().read(Extents.one(0, 0, 12))

source = ShardSet(sys.argv[1])
source.snapshot()
threading.Thread(target=read, daemon=True).start()
sys.stdin.readline()
"""


def test_a_process_ends_while_a_server_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with its own exit status: an answer that came meanwhile would abort it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_shard(tmp_path / "0.tar", [(os.urandom(900), k) for k in range(12)])
    with Web({"0.tar": (tmp_path / "0.tar").read_bytes()}) as web:
        ShardSet(f"{web.url}/0.tar").snapshot()  # whose index the process finds
        web.faults["0.tar"].append("hang")
        command = [sys.executable, "-c", _READS_AND_ENDS, f"{web.url}/0.tar"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert web.hanging.wait(60)
        begun = time.monotonic()
        _, said = process.communicate("\n", timeout=60)
    assert (process.returncode, said) == (0, "")
    assert time.monotonic() - begun < 10
