"""A run of the tests: what one that is killed leaves behind, and what is left out."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kit.limits import LONG

TESTS = Path(__file__).resolve().parents[1]
BROKERS = {
    "own": """
import sys
from kit.broker.real import RealBroker
class Begun(RealBroker):
    @property
    def admin(self):  # needed once Java runs, seconds before it answers
        print(self.pid, self.home, flush=True)
        sys.stdin.read()
Begun(brief=True).start()
""",
    "shared": """
import json, os, sys
from pathlib import Path
from kit.broker.real import SharedBroker
folder = Path(sys.argv[1])
broker = SharedBroker(folder, os.getpid())
assert SharedBroker(folder, os.getpid()).servers == broker.servers
print(json.loads((folder / "broker.json").read_text())["pid"], broker.home, flush=True)
sys.stdin.read()
""",
}

SCRIPT = """
import subprocess
from kit.warm import Warm
warm = Warm()
subprocess.run([str(warm.python), "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"])
"""


def test_a_script_that_was_forked_ends_with_a_run_that_is_killed() -> None:
    """The run goes by SIGKILL, which nobody can handle, and so does what it had forked from the warm process."""
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", SCRIPT], env=environment, text=True, stdout=subprocess.PIPE
    ) as began:
        assert began.stdout is not None
        script = os.pidfd_open(int(began.stdout.readline()))
        try:
            began.kill()
            assert select.select([script], [], [], LONG)[0] == [script]
        finally:
            os.close(script)


@pytest.mark.waits
@pytest.mark.usefixtures("needs_kafka")
@pytest.mark.parametrize("whose", BROKERS)
def test_a_broker_ends_with_a_process_that_is_killed(whose: str, tmp_path: Path) -> None:
    """Java goes when whoever began it has gone by SIGKILL, which nobody can handle; so do the records."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        [sys.executable, "-c", BROKERS[whose], tmp_path], env=environment, text=True, **pipes
    ) as began:
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


def test_what_is_left_out_has_a_form_that_is_run(collected: list[pytest.Item]) -> None:
    """`make test` leaves out what is `long` and nothing else; none is `long` alone, but for benchmarks that only start.

    `long(form="test_name")` says which test of its file is the short form, or with "folder/file.py::" before it of
    another.
    """
    run: set[tuple[Path, str]] = set()
    forms: dict[tuple[Path, str], tuple[Path, str]] = {}
    for item in collected:
        name = item.nodeid.partition("[")[0].rpartition("::")[2]
        if (mark := item.get_closest_marker("long")) is None:
            run.add((item.path, name))
        elif item.path.parent.name != "bench":
            file, _, form = mark.kwargs.get("form", name).rpartition("::")
            forms[item.path, name] = (TESTS / file if file else item.path), form
    files = {item.path for item in collected}  # of a part of the tests perhaps
    missing = [form for form in forms.values() if form not in run and (form[0] in files or not form[0].is_file())]
    assert missing == []
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    recipes = dict(re.findall(r"^(test|test-long):.*\n\t.*pytest (.*)$", makefile, re.MULTILINE))
    options = {name: re.findall(r"-[mk] .*|--ignore.*|--deselect.*", recipe) for name, recipe in recipes.items()}
    assert options == {"test": ['-m "not long"'], "test-long": []}
