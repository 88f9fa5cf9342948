"""Dead letters in a folder: whole through kills, whatever is in them, and failures that say why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.denied import denied
from kit.shelves import letter

from dali_feed.errors import DataLostError, DeadLetterError, SourceNotFoundError
from dali_feed.external_sources import DeadLetterFolder

_KILLED = """
import os, sys, threading
from dali_feed.external_sources import DeadLetterFolder
from kit.inside import Letter

writer = DeadLetterFolder(sys.argv[1]).writer()
for n in range(1_000_000):
    writer.write([Letter(f"s[0]@{n}", "s", 0, n, n, "screen", "r" * 5000, b"payload %d" % n)])
    print(n, flush=True)
"""


def test_a_kill_in_the_middle_of_writing_loses_no_letter_that_counted(tmp_path: Path) -> None:
    """SIGKILL at any moment: all that was written before can be read, and the next writer goes on."""
    folder = DeadLetterFolder(tmp_path)
    with subprocess.Popen([sys.executable, "-c", _KILLED, tmp_path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        counted = [int(writer.stdout.readline()) for _ in range(20)]
        os.kill(writer.pid, signal.SIGKILL)
        counted += [int(line) for line in writer.stdout]
    assert {found.position for found in folder.read()} >= set(counted)
    folder.writer().write([letter(10**6)])
    assert {found.position for found in folder.read()} >= {*counted, 10**6}


_CUT = """
import os, sys
from dali_feed.external_sources import DeadLetterFolder
from kit.inside import Letter

write = os.fsync
def at_the_line(file, *, seen=[]):
    seen.append(file)
    if os.readlink(f"/proc/self/fd/{file}").endswith("letters.jsonl") and len(seen) > 12:
        os.truncate(file, os.fstat(file).st_size - int(sys.argv[2]))  # what a disk has of a write that is under way
        os._exit(9)
    write(file)
os.fsync = at_the_line
writer = DeadLetterFolder(sys.argv[1]).writer()
for n in range(100):
    writer.write([Letter(f"s[0]@{n}", "s", 0, n, n, "screen", "why", b"payload %d" % n)])
    print(n, flush=True)
"""


@pytest.mark.parametrize("cut", [1, 2, 60])
def test_a_line_cut_short_is_passed_over(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    """A process that ends within a line: the line stands for nothing, and the next letter has a line of its own."""
    done = subprocess.run([sys.executable, "-c", _CUT, tmp_path, str(cut)], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    counted = [int(line) for line in done.stdout.split()]
    assert counted
    folder = DeadLetterFolder(tmp_path)
    assert [found.position for found in folder.read()][: len(counted)] == counted
    again = letter(counted[-1] + 1)
    folder.writer().write([again])
    assert list(folder.read())[-1] == again
    assert [found.position for found in folder.read()] == [*counted, again.position]
    assert ("cut off" in caplog.text) == (cut > 1)  # without its end of line alone, a line is whole


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the folder's place is an error with the path and the reason; so is a full device."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DeadLetterError, match="file/dead: the dead letter of .* Not a directory"):
        DeadLetterFolder(tmp_path / "file" / "dead").writer().write([letter()])
    (tmp_path / "letters.jsonl").symlink_to("/dev/full")
    with pytest.raises(DeadLetterError, match="No space left"):
        DeadLetterFolder(tmp_path).writer().write([letter()])


def test_a_read_only_folder(tmp_path: Path) -> None:
    """No right to write is an error that says so."""
    DeadLetterFolder(tmp_path / "before").writer().write([letter()])  # what it imports is not to be denied
    with pytest.raises(DeadLetterError, match="Permission denied"), denied(tmp_path):
        DeadLetterFolder(tmp_path / "dead").writer().write([letter()])


def test_a_folder_without_letters_or_with_a_lost_file(tmp_path: Path) -> None:
    """Reading says which: no letters at all, or the letter whose payload is gone."""
    folder = DeadLetterFolder(tmp_path)
    with pytest.raises(SourceNotFoundError, match=r"letters\.jsonl"):
        list(folder.read())
    folder.writer().write([letter(7)])
    next(tmp_path.glob("*.bin")).unlink()
    with pytest.raises(DataLostError, match=r"s\[0\]@7"):
        list(folder.read())
