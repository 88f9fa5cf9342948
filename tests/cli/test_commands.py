"""Commands in parts: how a sample is spread, what values are taken for, the version, Ctrl-C, the demo, tuning."""

from __future__ import annotations

import base64
import importlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from kit.command import Cli, children_hear_ctrl_c, cli
from kit.images import jpeg
from kit.limits import LONG
from kit.written import npy

from dali_feed.bench import runner
from dali_feed.cli import targets
from dali_feed.cli.demo import Trace, difference
from dali_feed.cli.inspect import look
from dali_feed.cli.judging import judging, spread
from dali_feed.cli.members import guess
from dali_feed.cli.options import seconds_of, size_of
from dali_feed.cli.targets import topic_of
from dali_feed.errors import EngineError
from dali_feed.native.library import used
from dali_feed.packing.sinks import write_shard
from dali_feed.records.source import Snapshot
from dali_feed.testing import ScriptedSource
from dali_feed.testing.scripted import Gap, Stall

__all__ = ["cli"]  # a fixture

tune = importlib.import_module("dali_feed.cli.tune")  # not the command of that name


def test_absent_positions_are_counted() -> None:
    """A hole in the positions is absent, neither good nor bad."""
    source = ScriptedSource([(jpeg(0), 1), Gap(), (jpeg(1), 2)])
    columns = judging(source)
    assert columns is not None
    found = look(source, columns, source.snapshot(), 256)
    assert (found.rows, found.absent, found.bad) == (3, 1, [])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=6).filter(
        lambda parts: any(n for _, n in parts)
    ),
    st.integers(1, 120),
    st.booleans(),
)
def test_a_sample_is_spread(parts: list[tuple[int, int]], count: int, random_access: bool) -> None:
    """A sample has as many distinct positions as asked for, all of them in the snapshot, none far from the next."""
    starts, counts = (np.array(column, np.int64) for column in zip(*parts, strict=True))
    names = tuple(map(str, range(len(parts))))
    snapshot = Snapshot("s", names, starts, starts + counts, 8, 1, random_access, False, "")
    extents = spread(snapshot, count)
    ids = extents.ids()
    assert len(set(ids.tolist())) == len(ids) == min(count, len(snapshot))
    assert (extents.lengths > 0).all()
    assert (extents.start >= starts[extents.partition]).all()
    assert (extents.stop <= (starts + counts)[extents.partition]).all()
    run = 1 if random_access else 16
    line = extents.start - starts[extents.partition] + (np.cumsum(counts) - counts)[extents.partition]
    assert np.diff(line).max(initial=0) <= run * -(-len(snapshot) // len(ids))


def test_the_line_to_paste_is_a_tuning(cli: Cli, tmp_path: Path) -> None:
    """`dali-feed tune`, in turns over one's own data: with its rate beside the usual one; each option had turns."""
    write_shard(tmp_path / "x.tar", [(jpeg(0, 48, 64), n) for n in range(32)])
    done = cli("tune", tmp_path / "x.tar", "--batch", 4, "--device", "cpu", "--seconds", 4)
    assert done.code == 0, done.err
    assert re.fullmatch(r"Tuning\([^)]*\)  # [\d,]+ samples/s; Tuning\(\) gives [\d,]+\n", done.out)
    assert "Tuning(" in done.err


def test_tune_ends_on_a_source_that_gives_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that hangs costs its turn; what had no batch and what had no turn is named."""
    stalled = ScriptedSource([Stall(threading.Event(), then=jpeg(n)) for n in range(8)])
    monkeypatch.setattr(targets, "source_of", lambda *_: stalled)
    done = cli("tune", "x.tar", "--batch", 4, "--device", "cpu", "--seconds", 1, "--transform", "none")
    assert done.code == 1
    assert "Tuning(): NOT MEASURED: failed: EngineError: tune: a first batch must come within 0.2 s" in done.err
    assert "left out, as the time was over: " in done.err
    assert "nothing was measured; give more --seconds" in done.err


@pytest.mark.parametrize(
    ("rates", "first", "line"),
    [
        ({"": 100.0, "readers=8": 170.0}, "threads=", "Tuning(readers=8)  # 170 samples/s; Tuning() gives 100"),
        ({"": 1.0, "readers=8": 1.7}, "readers=8", "Tuning(readers=8)  # 2 samples/s; Tuning() gives 1"),
        ({"readers=8": 1.7}, "readers=8", "Tuning(readers=8)  # 2 samples/s; Tuning() gives no batch in its time"),
        ({"": 100.0}, "threads=", "Tuning()  # 100 samples/s; Tuning() gives 100"),
    ],
)
def test_tune_tries_readers_first_where_reading_takes_long(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], first: str, line: str
) -> None:
    """What wins stays for the next setting; of others there is no batch, or no gain."""
    tried: list[str] = []

    def turn(make: Any, _: float, limit: float, *, slow: bool) -> Any:
        setting = tune._line(make.keywords["tuning"])[7:-1]
        tried.append(setting)
        rate = max((rate for name, rate in rates.items() if name in setting), default=0.0)
        if not rate:
            raise EngineError(f"none in {limit}")
        assert slow == (rate < 10 and bool(tried[1:]))
        return rate, 1.0, {"first": 60.0 / rate, "verdict": "source-bound" if rate < 10 else ""}

    monkeypatch.setattr(targets, "source_of", lambda *_: ScriptedSource([jpeg(0)]))
    monkeypatch.setattr(tune, "_turn", turn)
    monkeypatch.setattr(runner, "_reset_peak", lambda: None)
    done = cli("tune", "x.tar", "--device", "cpu", "--seconds", 600)
    assert done.code == 0, done.err
    assert done.out == f"{line}\n"
    assert next(each for each in tried if each).startswith(first)


@pytest.mark.parametrize("name", ["dali_feed", "dali_feed.kafka"])
def test_no_name_reaches_a_terminal_through_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """What a terminal would obey is left out of messages; lines of theirs stay."""
    logging.getLogger(name).warning("%s: of %d", "a\x1b[31mred\x07.tar\nnext", 7)
    assert caplog.messages == ["a [31mred .tar\nnext: of 7"]


def test_the_version(cli: Cli) -> None:
    """--version says it, and whether the loops in C are used."""
    done = cli("--version")
    assert done.code == 0
    assert re.fullmatch(rf"dali-feed \d+\.\d+\.\d+\S*\nloops in C: {used()}\n", done.out)


def test_ctrl_c_is_one_line() -> None:
    """An interrupt while a broker keeps silent ends with one line and 130."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LONG)
        target = f"kafka://127.0.0.1:{server.getsockname()[1]}/topic"
        command = [sys.executable, "-I", "-m", "dali_feed.cli", "inspect", target, "--timeout", "60"]
        with children_hear_ctrl_c():
            started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with started as process:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)  # it asks, so it waits for the answer
                os.kill(process.pid, signal.SIGINT)
                out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out, err) == (130, "", "dali-feed: interrupted\n")


def test_the_comparison_sees_a_difference() -> None:
    """Other pixels, other ids, or batches too few or too many in the resumed run are named by their batch."""
    whole = Trace([[1, 2], [3, 4], [5, 6]], ["a", "b", "c"], "w")
    same = Trace([[3, 4], [5, 6]], ["b", "c"], "w")
    assert difference(whole, same, 1).startswith("identical (2 batches, ids and pixels of 4 samples")
    for ids, pixels, batch in (
        ([[3, 4], [5, 6]], ["b", "x"], 2),
        ([[4, 3], [5, 6]], ["b", "c"], 1),
        ([[3, 4]], ["b"], 2),
        ([[3, 4], [5, 6], [7, 8]], ["b", "c", "d"], 3),
    ):
        assert difference(whole, Trace(ids, pixels, "w"), 1) == f"DIFFERENT at batch {batch}"


@pytest.mark.parametrize(
    ("name", "value", "text", "kind"),
    [
        ("x", npy(np.zeros((2, 3), np.float32)), "npy float32 (2, 3)", "Array"),
        ("x", npy(np.zeros(3))[:20], "npy, cut off", "Bytes"),
        ("x", b"\xff\xfe\xfd", "bytes", "Bytes"),
        ("x", b"\xff\x00", "bytes", "Bytes"),
        ("x", "é".encode() * 10000, "text", "Text"),
        ("x", b"a" + "é".encode() * 10000, "text", "Text"),
        ("x", b"", "nothing", "Bytes"),
        ("x", b'{"a": 1}', "json", "JsonValue"),
        ("x", b"{not json", "text", "Text"),
        ("x", b"12", "int, as text", "Number"),
        ("x", b"-1.5e3", "float, as text", "Number"),
        ("f16", b"1234", "float16 (2,)", "Array"),
        ("f16", b"123", "int, as text", "Number"),
        ("x", base64.b64encode(jpeg(0)).decode(), "jpeg image, in base64", "Image"),
        ("x", base64.b64encode(b"a text that is long enough to be an image").decode(), "text", "Text"),
        ("x", [["a"], ["b"]], "list", "JsonValue"),
        ("x", [[1], [1, 2]], "list", "JsonValue"),
        ("x", [[0, 0, 1, 1]], "rows of 4", "Boxes"),
        ("x", [0.5, 1.0], "float32 (2,)", "Array"),
        ("x", np.zeros((2, 3), np.int16), "int16 (2, 3)", "Array"),
        ("x", True, "bool", "Number"),
        ("x", 1.5, "float", "Number"),
        ("x", {"a": 1}, "dict", "JsonValue"),
        ("x", {1}, "set", ""),
        ("x", None, "NoneType", ""),
    ],
)
def test_a_value_is_guessed_by_what_it_holds(name: str, value: Any, text: str, kind: str) -> None:
    """By the first bytes, the type, and last by the name: in words, and the column that reads it."""
    found = guess(name, value)
    assert (found.text, found.kind) == (text, kind)


@pytest.mark.parametrize(
    ("read", "text", "amount"),
    [
        *((seconds_of, "90s", 90), (seconds_of, "1.5h", 5400), (seconds_of, "2 min", 120), (seconds_of, "7d", 604_800)),
        *((seconds_of, "forever", None), (size_of, "1500", 1500), (size_of, "8MiB", 8 << 20)),
        *(
            (size_of, "512MB", 512_000_000),
            (size_of, "40KB", 40_000),
            (size_of, "1.5 GB", 1_500_000_000),
            (topic_of, "kafka://h:1,/t", ("t", "h:1")),
        ),
        *((read, text, typer.BadParameter) for read in (seconds_of, size_of) for text in ("", "0", "0h", "-1", "MB")),
        *(
            (read, text, typer.BadParameter)
            for read in (seconds_of, size_of)
            for text in ("5 parsecs", "1e9", "8mb", "5H")
        ),
    ],
)
def test_amounts_are_as_people_write_them(read: Any, text: str, amount: Any) -> None:
    """MB of 10^6, MiB of 2^20, times; what is none is an error of usage that shows what was typed."""
    if amount is typer.BadParameter:
        with pytest.raises(typer.BadParameter, match="^must be a .* found "):
            read(text)
    else:
        assert read(text) == amount
