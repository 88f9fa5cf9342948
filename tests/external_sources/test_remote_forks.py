"""Processes that are forked, and remote reads: batches, or an error that says what to do, never a hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from web import Web

from dali_feed.testing.shards import write_shard

SCRIPT = Path(__file__).parents[1] / "support" / "forked_reads.py"


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
