"""However a reader by column is left, the process goes on or ends as if it had been closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kit import left_readers
from kit.broker.handle import Kafka
from kit.inside import library
from kit.limits import LONG

from dali_feed.testing import Message

pytestmark = pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")

WAYS = ["dropped", "open_at_the_end", "reading_at_the_end", "forked", "many_threads", "interrupted"]


@pytest.mark.parametrize("how", WAYS)
def test_a_reader_that_is_left_open_harms_nobody(embedded: Kafka, how: str) -> None:
    """Dropped, open as the interpreter ends, or reading then, forked, in threads, interrupted: no hang, no crash."""
    records = [
        Message(b"%06d" % n * 99, None, (("label", b"%d" % (n // 2)),), n % 2) for n in range(2 * left_readers.COUNT)
    ]
    embedded.publish("t", records, partitions=2)
    command = [sys.executable, left_readers.__file__, how, embedded.servers]
    done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
