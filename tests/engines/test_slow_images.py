"""Whatever a decoder is at: a pass ends, a loader closes, the next pass is right, and the process ends cleanly."""

from __future__ import annotations

import logging
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.images import QUICK, labelled, seen
from kit.kinds import slow_jpeg
from kit.limits import LONG
from kit.warm import Warm

from dali_feed.engines.host import decode
from dali_feed.engines.host import images as host
from dali_feed.errors import ClosedError
from dali_feed.feed import Feed
from dali_feed.feed import run as epoch
from dali_feed.options import Decode, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing.scripted import ScriptedSource

pytestmark = pytest.mark.slow


class Kept:
    """A decoder that its images keep until `free` is set; `calls`: of how many each was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self.calls: list[int] = []
        decoded = decode.decoded_jpegs

        def slow(decoder: Any, streams: list[Any]) -> Any:
            self.calls.append(len(streams))
            self.begun.set()
            assert self.free.wait(LONG)
            return decoded(decoder, streams)

        monkeypatch.setattr(host, "decoded_jpegs", slow)
        monkeypatch.setattr(epoch, "PATIENCE", 0.01)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """Every image is slow until it is freed, and close() waits for none."""
    made = Kept(monkeypatch)
    yield made
    made.free.set()


def _ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dali_feed")]


def _all_ended() -> None:
    for thread in _ours():
        thread.join(LONG)
    assert not _ours()


def test_close_leaves_a_busy_decoder_to_its_call_and_to_no_other(kept: Kept) -> None:
    """It returns while the decoder is at work; that finishes the call it is in, begins no other, and all is let go."""
    feed = Feed(ScriptedSource(labelled(64), extent=8), 8, decode=Decode(engine="host"), tuning=QUICK)
    batches = iter(feed)
    assert kept.begun.wait(LONG)
    feed.close()
    assert {thread.name for thread in _ours()} == {"dali_feed-feed", "dali_feed-work-0"}
    with pytest.raises(ClosedError):
        next(batches)
    kept.free.set()
    _all_ended()
    assert kept.calls == [8]
    assert feed._slabs.leased == 0


def test_a_pass_after_one_that_a_decoder_keeps_is_whole(kept: Kept) -> None:
    """Two passes never share an engine: the next waits, says for what, and gives its batches as if none had been."""
    items, order = labelled(32), Shuffle(extent=4, window=2)
    tuning = Tuning(threads=1, readers=1, watchdog=0.01)

    class Frees(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "the pass before is still ending" in record.getMessage():
                told.append(record.getMessage())
                kept.free.set()

    told: list[str] = []
    log, handler = logging.getLogger("dali_feed"), Frees()
    log.addHandler(handler)
    try:
        with Feed(
            ScriptedSource(items, extent=4), 4, shuffle=order, decode=Decode(engine="host"), tuning=tuning
        ) as feed:
            batches = iter(feed)
            assert kept.begun.wait(LONG)
            del batches
            again = [seen(batch) for batch in feed]
    finally:
        log.removeHandler(handler)
    assert "engine: host is at scripted[0]@" in told[0]
    with Feed(ScriptedSource(items, extent=4), 4, shuffle=order, decode=Decode(engine="host"), tuning=QUICK) as feed:
        assert [seen(batch) for batch in feed] == again
    _all_ended()


SCRIPT = """
import sys, threading
sys.path[:0] = [{tests!r}]
from kit.images import labelled
from kit.kinds import slow_jpeg
from dali_feed import DataLoader, Tuning
from dali_feed.engines import choose, workers
from dali_feed.feed import run as epoch
from dali_feed.testing.scripted import ScriptedSource
from torchvision.transforms import v2
choose.ON_CPU, epoch.PATIENCE, workers.LAST = {engine!r}, 0.01, {seconds}
items = [*labelled(8), *[(slow_jpeg({side}, 100), 1)] * 16]
loader = DataLoader(ScriptedSource(items), 8, device="cpu", transform=v2.Resize((8, 8)), tuning=Tuning(threads=1))
batches = iter(loader)
next(batches)
while loader._positions.run.landing is None:
    pass
"""
SIDES = {"host": 1024, "dali": 512}  # of images that keep an engine for a good part of a second, a batch of them
LONG_FORM = pytest.mark.long(form="test_a_process_ends_cleanly_whatever_a_decoder_is_at")


@pytest.mark.parametrize(
    ("engine", "last", "seconds"),
    [
        ("host", "loader.close()", 60),
        ("host", "del batches, loader", 60),
        ("host", "del batches, loader", 0.01),
        ("dali", "loader.close()", 0.01),
        ("dali", "", 60),
        ("dali", "", 0.01),
        pytest.param("host", "loader.close()", 0.01, marks=LONG_FORM),
        pytest.param("dali", "loader.close()", 60, marks=LONG_FORM),
    ],
)
def test_a_process_ends_cleanly_whatever_a_decoder_is_at(
    warm: Warm, tmp_path: Path, engine: str, last: str, seconds: float
) -> None:
    """With its own exit code, and no signal, while images are decoded; also where it does not wait for them.

    Each engine with each end of a loop, and each of both with a process that waits, and with one that gives up.
    """
    tests = str(Path(__file__).parents[1])
    side = 2 * SIDES[engine] if last == "loader.close()" else SIDES[engine]  # else it is over before libraries end
    text = SCRIPT.format(tests=tests, engine=engine, side=side, seconds=seconds)
    (tmp_path / "script.py").write_text(f"{text}{last}\nsys.exit(7)\n")
    done = warm.run(["script.py"], tmp_path, beside=False, to_the_end=True)
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_gives_up_on_a_native_call_that_does_not_return(warm: Warm) -> None:
    """It says so and ends, with its own exit code and all that was printed, by Python and by C."""
    script = """
        import atexit, ctypes, sys, threading
        from dali_feed.engines import workers
        libc = ctypes.CDLL(None)
        atexit.register(print, "other hooks")
        thread = threading.Thread(target=libc.sleep, args=(1_000_000,), name="decoder", daemon=True)
        thread.start()
        workers.linger(thread)
        workers.LAST = 0.01
        libc.printf(b"C\\n")
        sys.exit(7)
        """
    done = warm.run(["-c", textwrap.dedent(script)], to_the_end=True)
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (7, ["", "C", "other hooks"])
    assert done.stderr.endswith("the process ends without waiting any longer for decoder\n")


def test_a_process_gives_up_on_decoders_that_return_while_it_ends(warm: Warm) -> None:
    """Each of four is done every few milliseconds: some are at any moment between its last word and its last step."""
    script = f"""
        import sys, threading
        sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
        from kit.kinds import slow_jpeg
        from dali_feed.engines import workers
        from dali_feed.engines.host.decode import new_decoder
        data, begun = slow_jpeg(64, 2), threading.Barrier(5)
        def decodes():
            decoder = new_decoder()
            decoder.decode([data])
            begun.wait()
            while True:
                decoder.decode([data])
        for _ in range(4):
            thread = threading.Thread(target=decodes, daemon=True)
            thread.start()
            workers.linger(thread)
        workers.LAST = 0.01
        begun.wait()
        sys.exit(7)
        """
    done = warm.run(["-c", textwrap.dedent(script)], to_the_end=True)
    assert (done.returncode, "terminate called" in done.stderr) == (7, False), done.stderr


@pytest.mark.parametrize("begins", [False, True])
def test_ctrl_c_in_verify_ends_cleanly_whatever_a_decoder_is_at(warm: Warm, tmp_path: Path, begins: bool) -> None:
    """One line and 130, not the signal of a decoder whose libraries went away; also while its thread is begun."""
    for n in range(32):
        (tmp_path / f"{n:02d}.jpg").write_bytes(slow_jpeg(2048, 250))  # longer than the libraries take to go away
    script = f"""
        import os, signal, threading
        from dali_feed.cli import main
        from dali_feed.engines.host import decode
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
        begun, decoded, start = threading.Event(), decode.decoded, threading.Thread.start
        def told(*arguments):
            begun.set()
            return decoded(*arguments)
        def started(thread):
            start(thread)
            if {begins} and thread.name.endswith("(work)"):
                begun.wait()
                signal.raise_signal(signal.SIGINT)
        decode.decoded, threading.Thread.start = told, started
        ends = threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT)), daemon=True)
        if not {begins}:
            ends.start()
        main(["verify", "--decode", "--readers", "1", {str(tmp_path)!r}])
        """
    done = warm.run(["-c", textwrap.dedent(script)], to_the_end=True)
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("dali-feed: interrupted\n")


def test_ctrl_c_while_the_exit_waits_ends_the_process_at_once(warm: Warm) -> None:
    """Nobody has to wait for a decoder that never comes back."""
    script = """
        import os, signal, threading
        from dali_feed.engines import workers
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
        workers.TELL = 0.01
        workers.log.warning = lambda *_: os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        workers.linger(thread)
        print("told", flush=True)
        """
    done = warm.run(["-c", textwrap.dedent(script)], to_the_end=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "told\n", "")
