"""What the commands say of values, sizes, classes and draws; and how it comes to a terminal."""

from __future__ import annotations

import base64
import io
import re
import sys
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg
from kit.written import npy
from torchvision.transforms import v2

from dali_feed.cli import view
from dali_feed.cli.bench import listening
from dali_feed.cli.inspect import _small, bars, borders, class_lines, sizes_text
from dali_feed.cli.members import guess
from dali_feed.cli.options import seconds_of, size_of
from dali_feed.cli.show import draws_in_words
from dali_feed.cli.targets import topic_of
from dali_feed.cli.view import Report, live, progress, show, table
from dali_feed.feed import Feed
from dali_feed.records.tally import Tally
from dali_feed.testing import ScriptedSource


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


def test_sizes_and_classes_are_told_by_a_few() -> None:
    """Many sizes by their middle and ends; labels that are no classes not at all, and none is named twice."""
    assert sizes_text([(4, 3), (4, 3), (8, 6)]) == "4x3 (2), 8x6 (1)"
    many = [(k, 100 - k) for k in range(1, 50)]
    assert sizes_text(many) == "median 25x75, from 1x99 to 49x51; 49 different"
    assert class_lines([4, 4, 4], "x") == class_lines([1, 2, 3, None], "x") == []
    assert class_lines([1, 2, 1, 2], "x")[-1] == "all equally frequent"
    assert class_lines([1, 1, 2], "x")[0] == "2 in x, 1.5 records each; most frequent 1 (2), 2 (1)"


@given(st.lists(st.integers(0, 2**40), min_size=1))
def test_every_value_has_its_bar(values: list[int]) -> None:
    """Borders ascend and hold the least and the most; there are never more than eight bars."""
    edges = borders(min(values), max(values))
    assert edges[0] <= min(values)
    assert max(values) < edges[-1]
    assert edges == sorted(set(edges))
    assert len(edges) <= 9
    assert (bars("n", values) is None) == (len(set(values)) == 1)


def test_what_pillow_cannot_show_has_a_sentence() -> None:
    """In the place of the small image."""
    assert _small(memoryview(b"no image")) == "an image that Pillow cannot read"
    assert str(_small(memoryview(jpeg(0)[:-200]))).startswith("Pillow: ")


def test_draws_are_told_in_words() -> None:
    """A crop, a flip, an angle, what was erased, what was added, and the branch that was chosen."""
    transform = v2.Compose(
        [
            v2.RandomCrop(24, padding=4, pad_if_needed=True),
            v2.RandomRotation(30),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomChoice([v2.RandomSolarize(100, p=1.0), v2.ColorJitter(0.4)]),
            v2.RandomErasing(0.5),
        ]
    )
    sizes = np.array([[20, 30]] * 40)
    with Feed(ScriptedSource([(jpeg(0), 1)]), 1, transform=transform) as feed:
        told = draws_in_words(feed.program, sizes, np.arange(40), 3, 0)
    lines = [line for each in told for line in each]
    for word in ("degrees", "x 24 at ", "Flip: yes", "Flip: no", "ColorJitter: ", "Solarize"):
        assert any(word in line for line in lines), (word, told[:3])
    assert any("Erasing: no" in line for line in lines)
    assert any("Erasing: " in line and " x " in line for line in lines)


@pytest.mark.parametrize(
    ("read", "text", "amount"),
    [
        *((seconds_of, "90s", 90), (seconds_of, "1.5h", 5400), (seconds_of, "2 min", 120), (seconds_of, "7d", 604_800)),
        *((seconds_of, "forever", None), (size_of, "1500", 1500), (size_of, "8MiB", 8 << 20)),
        *(
            (size_of, "512MB", 512_000_000),
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


class Screen(io.StringIO):
    """A terminal that keeps what is written on it."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_what_goes_on_is_a_bar_or_a_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records or bytes that are done and how fast; turns of a bench, and who failed; each look over the one before."""
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    screen = Screen()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, screen)
    with progress() as tell:
        tell(50, 200, "0.0 MB/s")
        tell(150, 200, "1.5 MB/s")
    with progress(3_000_000, "bytes") as tell:
        tell(1_500_000)
    with listening() as listener:
        listener.begins("tar", "host", 0, 2)
        listener.took("tar", "host", 250.0)
        listener.begins("torch", "", 1, 2)
        listener.failed("torch", "", "no [files]")
    with live() as look:
        look(Report("first look"))
        look(Report("second look"))
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    for text in ("150/200", "1.5 MB/s", "1.5/3.0 MB", "tar (host): 250/s", "torch: FAILED: no [files]", "second look"):
        assert text in seen
    assert "\x1b[2K" in screen.getvalue()  # the line is emptied first


def test_a_run_is_a_line_now_and_then_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how much is done, how fast, and how long the rest takes at that pace; a failed turn its place."""
    monkeypatch.setattr(view, "LINE_SECONDS", -1.0)
    clock = iter((0.0, 1.0, 5.0))
    monkeypatch.setattr("dali_feed.cli.view.time.monotonic", lambda: next(clock))
    with progress() as tell:
        tell(200, 1200, "0.0 MB/s")
        tell(700, 1200, "1.0 MB/s")
    with listening() as listener:
        listener.begins("torch", "pil", 1, 4)
        listener.failed("torch", "pil", "no files")
    assert capsys.readouterr().err.splitlines() == [
        "200 of 1,200 records, 0.0 MB/s, nothing yet",
        "700 of 1,200 records, 1.0 MB/s, 5 s left",
        "2/4 torch (pil): FAILED: no files",
    ]


def test_a_report_is_printed_in_its_order_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Title, facts, tables without empty columns and with the number of rows that are left out, notes; or its data."""
    tally = Tally()
    for n in range(5):
        tally.fail(f"number {n} is odd", f"s#{n}")
    rows = table(range(5), {"n": str, "empty": lambda _: "", "name": lambda n: f"row {n}"}, left=["name"], most=2)
    report = Report("title", [("fact", "one"), ("", "two")], [rows], data={"n": 5})
    assert report.fail(tally) == 5
    report.warn(["hot"])
    show(report)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        *("title", "fact one", "two", "n name", "0 row 0", "1 row 1", "... and 3 more"),
        *("5 records: number N is odd", "s#0: number 0 is odd", "s#1: number 1 is odd", "s#2: number 2 is odd"),
        *("... and 2 more", "warning hot"),
    ]
    show(report, as_json=True)
    assert capsys.readouterr().out == '{"n": 5}\n'
