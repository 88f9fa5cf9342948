"""The command line as a test calls it: in this process, with how it ended and what it printed."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dali_feed.cli.app import main


@dataclasses.dataclass
class Done:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process."""

    def run(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return run


def assert_usage(done: Done, *words: str) -> None:
    """It was refused as it was typed, with exit code 2 and a message that says all of `words`."""
    assert done.code == 2
    said = " ".join(done.err.replace("│", " ").split())
    assert all(word in said for word in words), done.err


def assert_one_line(done: Done, *words: str) -> None:
    """It failed, in one line that says all of `words`."""
    assert done.code == 1
    assert re.fullmatch(r"dali-feed: .+\n", done.err), done.err
    assert all(word in done.err for word in words), done.err


@contextmanager
def children_hear_ctrl_c() -> Iterator[None]:
    """Processes that are started in here do, also where whoever started the tests ignores it. In the main thread."""
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)
