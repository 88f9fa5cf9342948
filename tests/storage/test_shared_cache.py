"""A cache of pieces that processes share: one fetches, the others wait, and whoever is killed leaves nothing wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import beneath
import pytest
from beneath import DATA, PIECE, opened, pieces, read, taken

from dali_feed.storage.depot import Depot, PieceClaim


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file."""
    (tmp_path / "data").write_bytes(DATA)
    return str(tmp_path / "data")


def test_one_process_fetches_a_piece_and_the_others_wait(tmp_path: Path) -> None:
    """A piece is claimed once; who waits finds it, and goes on where who claimed it let go."""
    one, two = Depot(tmp_path, 1 << 20), Depot(tmp_path, 1 << 20)
    one.ready()
    two.ready()
    name, stop = ("0" * 32, 7), threading.Event()
    claim = one.claim(name, None)
    assert isinstance(claim, PieceClaim)
    assert two.claim(name, None) is False
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(two.claim(name, stop)))
    waiting.start()
    assert one.put(claim, memoryview(b"bytes"), None)
    waiting.join()
    assert found == [True]
    claim = one.claim(("0" * 32, 8), None)
    assert isinstance(claim, PieceClaim)
    waiting = threading.Thread(target=lambda: found.append(two.claim(("0" * 32, 8), stop)))
    waiting.start()
    claim.drop()
    waiting.join()
    assert isinstance(found[1], PieceClaim)
    found[1].drop()
    claim = one.claim(name := ("0" * 32, 9), None)
    stop.set()
    assert two.claim(name, stop) is None
    assert isinstance(claim, PieceClaim)
    claim.drop()


def test_nobody_waits_for_ever(path: str) -> None:
    """A process that stands still with a piece, or with the folder's lock, costs the others the cache, not the data."""
    _, store, file = opened(path)
    claim = store.depot.claim((file.name, 3), None)
    store.depot.patience = 0.01
    assert read(file) == DATA
    assert len(pieces(path)) == 9
    assert isinstance(claim, PieceClaim)
    claim.drop()
    with Depot(store.depot.folder, 1)._locked():
        assert read(file, 3 * PIECE, 5) == DATA[3 * PIECE : 3 * PIECE + 5]
    assert len(pieces(path)) == 9


_PROCESS = """
import sys, threading
sys.path[:0] = [{helpers!r}]
from beneath import opened, read, DATA, PIECE
path, rounds = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
below, store, file = opened(path, 1 << 30 if rounds == 1 else 4 * PIECE)
for n in range(rounds):
    for k in range(10):
        part = DATA[k * PIECE : (k + 1) * PIECE]
        assert read(file, k * PIECE, len(part)) == part
        if rounds > 1:
            print(n, k, flush=True)
print(len(below.reads), flush=True)
"""


def started(path: str, rounds: int) -> subprocess.Popen[str]:
    """A process that reads all pieces so many times, once it is told to."""
    script = _PROCESS.format(helpers=str(Path(beneath.__file__).parent))
    command = [sys.executable, "-c", script, path, str(rounds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_share_a_folder(path: str) -> None:
    """Two that begin together fetch each piece once between them, and one more finds them all."""
    both = [started(path, 1), started(path, 1)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    fetched = [int(process.communicate()[0]) for process in both]
    assert sum(fetched) == 10
    below, _, file = opened(path)
    assert read(file) == DATA
    assert not below.reads


def test_a_killed_process_leaves_nothing_that_is_wrong(path: str) -> None:
    """Killed while pieces come and go: bytes are right, parts are swept, the count is that of what is there."""
    for lines in (1, 7, 23):
        process = started(path, 1000)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(lines):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        _, store, file = opened(path, 4 * PIECE)
        assert not list((store.depot.folder / "parts").iterdir())
        assert int.from_bytes((store.depot.folder / "lock").read_bytes(), "little") == taken(path) <= 4 * PIECE
        assert read(file) == DATA


def test_a_part_of_a_process_that_is_gone_is_swept(path: str) -> None:
    """And one that is being fetched now is not."""
    _, store, _ = opened(path)
    parts = store.depot.folder / "parts"
    (parts / "left").write_bytes(b"cut off")
    claim = store.depot.claim(("0" * 32, 1), None)
    opened(path)
    assert [each.name for each in parts.iterdir()] == [f"{'0' * 32}-1"]
    assert isinstance(claim, PieceClaim)
    claim.drop()
