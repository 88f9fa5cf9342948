"""What a child of a fork sees of a pass that it inherited, whichever thread of the parent was at it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from kit.warm import Warm

SCRIPT = """
import os, sys, threading
from kit.images import QUICK, labelled
from dali_feed import DataLoader
from dali_feed.errors import ConfigError
from dali_feed.testing import ScriptedSource
from kit.inside import Stall
stall = threading.Event()
"""


def run(warm: Warm, folder: Path, body: str) -> None:
    """The script, which ends well and says nothing on stderr."""
    (folder / "script.py").write_text(SCRIPT + textwrap.dedent(body))
    done = warm.run(["script.py"], folder, beside=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_that_ends_by_itself_says_nothing(warm: Warm, tmp_path: Path) -> None:
    """One that was forked in the middle of a pass and falls off the script's end; modules are taken apart by then."""
    body = """
        loader = DataLoader(ScriptedSource(labelled(64), extent=4), 4, device="cpu", tuning=QUICK)
        batches = iter(loader)
        next(batches)
        if pid := os.fork():
            assert os.waitpid(pid, 0)[1] == 0
        """
    run(warm, tmp_path, body)


def test_a_child_of_a_loop_in_another_thread(warm: Warm, tmp_path: Path) -> None:
    """It is told at once that the loader is not its own, also where that thread was waiting for a batch."""
    body = """
        loader = DataLoader(ScriptedSource([Stall(stall), *labelled(8)]), 2, device="cpu", tuning=QUICK)
        batches = iter(loader)
        waiting = threading.Thread(target=list, args=(batches,))
        waiting.start()
        while batches._batches is None or not batches._batches._run._noted._under_way:
            pass
        if pid := os.fork():
            assert os.waitpid(pid, 0)[1] == 0
            stall.set()
            waiting.join()
        else:
            try:
                next(batches)
            except ConfigError as error:
                assert "fork" in str(error)
                os._exit(0)
            os._exit(3)
        """
    run(warm, tmp_path, body)
