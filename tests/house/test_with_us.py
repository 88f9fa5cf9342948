"""What a test run that is killed leaves behind: none of the servers that it began."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kit.limits import LONG

SUPPORT = Path(__file__).parents[1]
BROKER = """
import sys
from kit.broker.real import RealBroker
with RealBroker(brief=True) as broker:
    print(broker.pid, broker.home, flush=True)
    sys.stdin.read()
"""


@pytest.mark.waits
@pytest.mark.usefixtures("needs_kafka")
def test_a_broker_ends_with_a_process_that_is_killed() -> None:
    """Java goes when whoever began it has gone by SIGKILL, which nobody can handle; so do the records."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    with subprocess.Popen([sys.executable, "-c", BROKER], env=environment, text=True, **pipes) as began:
        assert began.stdout is not None
        pid, home = began.stdout.readline().split()
        java = os.pidfd_open(int(pid))
        try:
            began.send_signal(signal.SIGKILL)
            assert select.select([java], [], [], LONG)[0] == [java]
        finally:
            os.close(java)
    ends = time.monotonic() + LONG
    while Path(home).exists():
        assert time.monotonic() < ends
