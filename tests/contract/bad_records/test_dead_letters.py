"""Dead letters: each bad record is kept once, before a state that counts it can be taken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kit import killed_feed, left_writers
from kit.broker.handle import Kafka
from kit.denied import denied
from kit.images import QUICK, broken_png, jpeg, labelled, seen
from kit.inside import Corrupt, DeadLetters, Feed, Gap, Letter, leased
from kit.limits import LONG
from kit.shelves import Held, letter, opened
from kit.warm import Warm

from dali_feed import BadRecords, Decode, Shuffle
from dali_feed.errors import (
    BadRecordError,
    BadRecordLimitError,
    ConfigError,
    DataLostError,
    DeadLetterError,
    SourceNotFoundError,
)
from dali_feed.external_sources import DeadLetterFolder, Producer
from dali_feed.testing import ScriptedSource

FAULTS: dict[int, Any] = {
    3: Corrupt(),
    4: Gap(),
    9: (broken_png(), 9),
    20: Corrupt("label: 'x' is no number", jpeg(20)),
}


def _items(count: int = 32) -> list[Any]:
    items = labelled(count)
    for n, item in FAULTS.items():
        items[n] = item
    return items


def _feed(to: DeadLetters | None, items: list[Any] | None = None, batch_size: int = 4, **options: Any) -> Feed:
    policy = {"limit": None} | options.pop("policy", {})
    chosen: dict[str, Any] = {"tuning": QUICK, "shuffle": Shuffle(8, 1), "decode": Decode(engine="host")} | options
    source = ScriptedSource(_items() if items is None else items, extent=8)
    return Feed(source, batch_size, bad=BadRecords(dead_letter=to, **policy), **chosen)


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_each_bad_record_is_kept_with_its_bytes_and_who_refused_it(tmp_path: Path, engine: str) -> None:
    """Stage, reason, coordinates and payload of a fault of the source, the screen and the decoder; no absent one."""
    folder = DeadLetterFolder(tmp_path / "dead")
    with _feed(folder, decode=Decode(engine=engine)) as feed:
        batches = [seen(batch) for batch in feed]
        told = dict(feed.stats().recent_bad)
        letters = {found.where: found for found in folder.read()}  # the end of the epoch has waited for them
    assert len(batches) == 8
    assert {(k, v.stage, v.payload) for k, v in letters.items()} == {
        ("scripted[0]@3", "screen", FAULTS[3].payload),
        ("scripted[0]@9", "decode", FAULTS[9][0]),
        ("scripted[0]@20", "source", jpeg(20)),
    }
    assert {k: v.reason for k, v in letters.items()} == told
    assert {(v.source, v.partition, v.position == v.sample) for v in letters.values()} == {("scripted", 0, True)}


def test_a_record_is_kept_once_an_epoch_in_any_order_of_reads(tmp_path: Path) -> None:
    """However often it would stand in, at any batch size and prefetch; the next epoch keeps it again."""
    for batch_size in (1, 4, 32):
        held = opened()
        with _feed(held, batch_size=batch_size) as feed:
            for _ in feed:
                pass
            assert sorted(found.position for found in held.letters) == [3, 9, 20]
            for _ in feed:
                pass
            assert sorted(found.position for found in held.letters) == [3, 3, 9, 9, 20, 20]
    folder = DeadLetterFolder(tmp_path)
    for shuffle in (True, False):
        with _feed(folder, shuffle=shuffle) as feed:
            assert len(list(feed)) == 8
    assert sorted(found.position for found in folder.read()) == [3, 9, 20]  # one each, by where
    assert len((tmp_path / "letters.jsonl").read_bytes().splitlines()) == 6


def test_batches_are_the_same_with_letters_and_without(tmp_path: Path) -> None:
    """Keeping letters changes no sample, no order and no state."""
    with _feed(None) as plain, _feed(DeadLetterFolder(tmp_path)) as feed:
        assert [seen(batch) for batch in plain] == [seen(batch) for batch in feed]
        assert plain.state_dict() == feed.state_dict()


def test_the_feed_does_not_wait_for_letters_and_a_state_does(tmp_path: Path) -> None:
    """Batches come while a letter is being written; state_dict() comes back only when it is."""
    held = Held()
    with _feed(held, shuffle=False) as feed:
        batches = iter(feed)
        next(batches)  # holds position 3
        assert held.begun.wait(60)
        assert [len(next(batches)) for _ in range(7)] == [4] * 7  # all of them, and nothing is written
        state: list[dict[str, Any]] = []
        taking = threading.Thread(target=lambda: state.append(feed.state_dict()))
        taking.start()
        taking.join(0.3)
        assert not state
        assert not held.letters
        held.open.set()
        taking.join(60)
        assert state[0]["consumed"] == 32
        assert {3, 9, 20} == {found.position for found in held.letters}
        assert next(batches, None) is None


def test_a_resumed_run_keeps_what_the_killed_one_had_not(tmp_path: Path) -> None:
    """After any batch: the letters of the state's batches are there, and the rest come with the resumed run."""
    for stop in range(9):
        folder = DeadLetterFolder(tmp_path / str(stop))
        with _feed(folder, shuffle=False) as feed:
            batches = iter(feed)
            for _ in range(stop):
                next(batches)
            state = feed.state_dict()
            counted = {n for n in (3, 9, 20) if n < 4 * stop}
            kept = {found.position for found in folder.read()} if counted else set()
            assert counted <= kept
        with _feed(folder, shuffle=False) as feed:
            feed.load_state_dict(state)
            for _ in feed:
                pass
        assert sorted(found.position for found in folder.read()) == [3, 9, 20]


@pytest.mark.parametrize("batches", [1, 7])
def test_a_killed_run_and_the_one_after_it_keep_every_record(warm: Warm, tmp_path: Path, batches: int) -> None:
    """SIGKILL after some batches: what the last state counts is kept, and the run that goes on keeps the rest."""
    state, dead = tmp_path / "state.json", tmp_path / "dead"
    command = [str(warm.python), str(Path(killed_feed.__file__)), str(dead), str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for _ in range(batches):
            assert run.stdout.readline()
        os.kill(run.pid, signal.SIGKILL)
        run.stdout.read()
    kept = {found.position for found in DeadLetterFolder(dead).read()}
    stood = json.loads(state.read_text())
    assert stood["consumed"] >= 6 * batches
    assert kept >= {n for n in range(stood["consumed"]) if n % killed_feed.EVERY == 1}
    with killed_feed.feed_into(dead) as feed:
        feed.load_state_dict(stood)
        for _ in feed:
            pass
    assert sorted(found.position for found in DeadLetterFolder(dead).read()) == list(range(1, 300, killed_feed.EVERY))


def test_close_waits_for_letters(tmp_path: Path) -> None:
    """A run that ends early leaves no letter of a batch it gave behind."""
    folder = DeadLetterFolder(tmp_path)
    with _feed(folder, shuffle=False) as feed:
        next(iter(feed))
    assert 3 in {found.position for found in folder.read()}


@pytest.mark.parametrize("policy", [{"action": "raise"}, {"limit": 0}])
def test_the_record_that_ends_a_run_is_kept_too(tmp_path: Path, policy: dict[str, Any]) -> None:
    """Whatever the policy makes of it, the record can be looked at afterwards."""
    folder = DeadLetterFolder(tmp_path)
    with (
        _feed(folder, policy=policy, shuffle=False) as feed,
        pytest.raises((BadRecordError, BadRecordLimitError)),
    ):
        list(feed)
    assert [found.position for found in folder.read()] == [3]


def test_a_failure_ends_the_pass_and_forbids_a_state() -> None:
    """The pass ends with the error, no state can be taken, and a new pass tries again and goes on."""
    held = opened(fails=1)
    with _feed(held, shuffle=False) as feed:
        with pytest.raises(DeadLetterError, match="the shelf is full"):
            list(feed)
        with pytest.raises(DeadLetterError, match="the shelf is full"):
            feed.state_dict()
        assert len(list(feed)) == 8
        assert feed.state_dict()["epoch"] == 2
    assert {3, 9, 20} == {found.position for found in held.letters}


def test_a_failure_ends_the_pass_at_the_next_batch() -> None:
    """Not at the epoch's end: no more batches come than were made before it."""
    held = Held(fails=1)
    with _feed(held, [Corrupt(), *labelled(399)], shuffle=False) as feed:
        batches = iter(feed)
        next(batches)
        held.open.set()
        with pytest.raises(DeadLetterError):
            feed.state_dict()
        got: list[int] = []
        with pytest.raises(DeadLetterError, match="the shelf is full"):
            got.extend(len(batch) for batch in batches)
        assert len(got) < 20  # of 99


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_the_pass_behind_a_failure_has_its_own_batches(engine: str) -> None:
    """What the engine had in work when the pass ended is in none of the next one's."""
    items = [Corrupt(), *labelled(63)]
    with _feed(opened(), items, shuffle=False, decode=Decode(engine=engine)) as feed:
        want = [seen(batch) for batch in feed]
    held = Held(fails=1)
    with _feed(held, items, shuffle=False, decode=Decode(engine=engine)) as feed:
        batches = iter(feed)
        next(batches)
        held.open.set()
        with pytest.raises(DeadLetterError):
            feed.state_dict()
        with pytest.raises(DeadLetterError):
            list(batches)
        assert [seen(batch) for batch in feed] == want


def test_a_folder_that_fails_ends_the_pass(tmp_path: Path) -> None:
    """Where the folder cannot be made the pass ends with its path, no state can be taken, and close() is quiet."""
    (tmp_path / "file").write_text("")
    with _feed(DeadLetterFolder(tmp_path / "file" / "dead")) as feed:
        with pytest.raises(DeadLetterError, match="file/dead: the dead letter of .* Not a directory"):
            list(feed)
        with pytest.raises(DeadLetterError, match="file/dead"):
            feed.state_dict()


def test_close_tells_what_nobody_was_told() -> None:
    """A failure after the last batch that was taken is raised by close(), which still lets go of everything."""
    held = Held(fails=1)
    feed = _feed(held, shuffle=False)
    next(iter(feed))
    held.open.set()
    with pytest.raises(DeadLetterError, match="the shelf is full"):
        feed.close()
    feed.close()
    assert leased(feed) == 0


def test_a_place_that_raises_anything_is_an_error() -> None:
    """An error of another kind is told with the letter's coordinates and the error's name."""

    class Odd(Held):
        def write(self, letters: Sequence[Letter]) -> None:
            # Not how many: a slow machine hands over both letters at once.
            raise LookupError(letters[0].where)

    with (
        _feed(Odd(), shuffle=False) as feed,
        pytest.raises(DeadLetterError, match=r"\[0\]@3: .*LookupError: .*@3"),
    ):
        list(feed)


def test_each_rank_keeps_its_own(tmp_path: Path) -> None:
    """Two ranks write into one folder at once, and every bad record is there."""
    folder = DeadLetterFolder(tmp_path)

    def run(rank: int) -> None:
        with _feed(folder, batch_size=2, lanes=2, rank=rank, world_size=2) as feed:
            for _ in feed:
                pass

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sorted(found.position for found in folder.read()) == [3, 9, 20]


def test_options_that_cannot_be() -> None:
    """A place is one of ours; what makes a letter durable cannot be turned off."""
    wrong: Any = "dead"
    with pytest.raises(ConfigError, match="dead_letter=.*'dead'"):
        BadRecords(dead_letter=wrong)
    with pytest.raises(ConfigError, match="acks"):
        Producer("t", "h:1", config={"acks": 0})
    with pytest.raises(ConfigError, match="timeout"):
        Producer("t", "h:1", timeout=0)
    with pytest.raises(DeadLetterError, match="options of librdkafka"):
        Producer("t", "h:1", config={"no.such": 1}).writer().write([letter()])
    assert "secret" not in repr(Producer("t", "h:1", config={"sasl.password": "secret"}))


def test_a_child_leaves_its_parents_writer_alone(embedded: Kafka) -> None:
    """It ends, drops or closes it and no call reaches librdkafka, or writes and is refused; the parent writes on."""
    for how in left_writers.HOWS:
        embedded.create(how, 1)
    command = [sys.executable, left_writers.__file__, embedded.servers]
    done = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_KILLED = """
import os, sys, threading
from dali_feed.external_sources import DeadLetterFolder
from kit.inside import Letter

writer = DeadLetterFolder(sys.argv[1]).writer()
for n in range(1_000_000):
    writer.write([Letter(f"s[0]@{n}", "s", 0, n, n, "screen", "r" * 5000, b"payload %d" % n)])
    print(n, flush=True)
"""


@pytest.mark.usefixtures("warm_children")
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


@pytest.mark.usefixtures("warm_children")
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
