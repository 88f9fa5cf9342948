"""What a child of a fork does with its parent's writer of dead letters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kit import left_writers
from kit.broker.handle import Kafka
from kit.limits import LONG


@pytest.mark.parametrize("how", ["ends", "exits", "drops", "closes", "writes"])
def test_a_child_leaves_its_parents_writer_alone(embedded: Kafka, how: str) -> None:
    """It ends, drops or closes it and no call reaches librdkafka, or writes and is refused; the parent writes on."""
    embedded.create(left_writers.TOPIC, 1)
    command = [sys.executable, left_writers.__file__, how, embedded.servers]
    done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
