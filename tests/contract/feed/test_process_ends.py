"""The end of a process with a loader that nobody closed, on either engine, and of a child of a fork."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from kit.warm import Warm

SCRIPT = """
import os, sys, threading, time
from kit.images import QUICK, labelled
from dali_feed import DataLoader, Shuffle
from dali_feed.errors import ConfigError
from dali_feed.testing import ScriptedSource
from kit.inside import Stall, choose
source = ScriptedSource(labelled(64), extent=4)
choose.ON_CPU = {engine!r}
loader = DataLoader(source, 4, shuffle=Shuffle(4, 1), device="cpu", tuning=QUICK)
"""


def _run(warm: Warm, folder: Path, body: str, engine: str) -> None:
    script = SCRIPT.format(engine=engine) + textwrap.dedent(body)
    (folder / "script.py").write_text(script)
    done = warm.run(["script.py"], folder, beside=False, to_the_end=True)
    assert (done.returncode, done.stderr) == (0, "")


EXITS = {
    "mid-epoch": "batches = iter(loader)\nnext(batches)\n",
    "stalled": """
        loader = DataLoader(ScriptedSource([Stall(threading.Event())] * 8), 2, device="cpu", tuning=QUICK)
        batches = iter(loader)
        """,
    "in a cycle": """
        batches = iter(loader)
        next(batches)
        loop = [loader, batches]
        loop.append(loop)
        del loader, batches
        """,
    "in a daemon thread": """
        import atexit
        given = threading.Event()

        def endless():
            while True:
                for _ in loader:
                    given.set()

        thread = threading.Thread(target=endless, daemon=True)
        atexit.register(thread.join)  # behind the hook that closes the loader: it has the time to say what it met
        thread.start()
        given.wait()
        """,
    "forked before": """
        if pid := os.fork():
            assert os.waitpid(pid, 0)[1] == 0
        for use in (lambda: iter(loader), lambda: next(iter(loader))):
            if pid:
                use()
                continue
            try:
                use()
            except ConfigError as error:
                assert "fork" in str(error)
            else:
                raise SystemExit(3)
        """,
    "forked within": """
        batches = iter(loader)
        next(batches)
        if pid := os.fork():
            assert os.waitpid(pid, 0)[1] == 0
            next(batches)
        else:
            for use in (lambda: next(batches), lambda: iter(loader), lambda: loader.load_state_dict({})):
                try:
                    use()
                except ConfigError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(3)
            loader.close()
            del batches, loader
            os._exit(0)  # as multiprocessing ends its children: DALI's threads are not there to be joined
        """,
}


ON_DALI = ("stalled", "in a daemon thread", "forked within")  # and the test below ends in the middle of an epoch


def _each(engine: str, *hows: str) -> list[Any]:
    """A case for each: in the long form alone where the other engine has it in `make test`."""
    long = pytest.mark.long(form="test_a_process_ends_cleanly")
    return [pytest.param(how, engine, marks=[long] * ((how in ON_DALI) != (engine == "dali"))) for how in hows]


@pytest.mark.parametrize(("how", "engine"), _each("host", *EXITS) + _each("dali", *EXITS))
def test_a_process_ends_cleanly(how: str, engine: str, warm: Warm, tmp_path: Path) -> None:
    """With a live loader in whatever state: exit code 0, nothing on stderr, no hang; use after fork is named.

    Each state with one engine, and each engine with half of them; all with both in the long form.
    """
    _run(warm, tmp_path, EXITS[how], engine)


@pytest.mark.parametrize(
    "engine", [pytest.param("host", marks=pytest.mark.long(form="test_nothing_of_ours_runs_when_dali_ends")), "dali"]
)
def test_nothing_of_ours_runs_when_dali_ends(engine: str, warm: Warm, tmp_path: Path) -> None:
    """A loader that is open at the end of the process is closed before DALI's own hook takes its pipelines apart.

    A hook that stands between the two looks for our threads; without it the process would crash in one run of two.
    """
    _run(
        warm,
        tmp_path,
        """
        import atexit
        import nvidia.dali  # its hook is there from here on, and runs behind the one that follows

        @atexit.register
        def look():
            if running := [each.name for each in threading.enumerate() if each.name.startswith("dali_feed")]:
                print(f"before DALI's hook there were still {running}", file=sys.stderr, flush=True)
                os._exit(1)

        batches = iter(loader)
        next(batches)
        """,
        engine,
    )


FORKS = """
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
    (folder / "script.py").write_text(FORKS + textwrap.dedent(body))
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
