"""`Tuning.auto()`: what is kept stands in a feed, what is not is measured or left, and no batch ever changes."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feeds import feed_of
from images import jpeg, labelled, padded, seen
from warm import Warm

from dali_feed import DataLoader
from dali_feed.errors import ConfigError
from dali_feed.feed import Feed, measuring
from dali_feed.feed.measuring import AnyOrder, measured
from dali_feed.feed.tuned import kept_away, key_of
from dali_feed.options import BadRecords, Cache, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing.scripted import Abort, Corrupt, ScriptedSource
from dali_feed.tuner.kept import Kept, keep, path_of
from dali_feed.tuner.ladders import ladders
from dali_feed.tuner.race import Trial
from dali_feed.tuner.search import Outcome


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch each: how fast they are is not what is tested."""
    monkeypatch.setattr(measuring, "_LONGEST", 1e-6)


def _feed(tuning: Tuning = Tuning(), **more: Any) -> Feed:
    return Feed(ScriptedSource(labelled(24)), 4, tuning=tuning, **{"shuffle": True} | more)


def _kept(feed: Feed, **fields: Any) -> None:
    keep(key_of(feed, Tuning.auto()), Kept(fields, 2.0, 1.0))


def test_what_is_kept_stands_from_the_first_pass_on() -> None:
    """And describe() says which, and where from."""
    with _feed() as plain:
        _kept(plain, readers=3, prefetch=4)
    with _feed(Tuning.auto()) as feed:
        assert "tuning: what is kept for this machine, data and program" in feed.describe()
        next(iter(feed))
        assert (feed.tuning.readers, feed.tuning.prefetch, feed.stats().readers) == (3, 4, 3)
        assert "tuning: readers 3, prefetch 4; kept in " in feed.describe()
        assert feed.state_dict()["info"]["tuning"] == "auto"


def test_nothing_kept_is_the_defaults_and_one_line_that_says_how(caplog: pytest.LogCaptureFixture) -> None:
    """The line has the command."""
    caplog.set_level(logging.INFO, "dali_feed")
    with _feed(Tuning.auto()) as feed:
        for _ in range(2):
            assert len(list(feed)) == 6
        assert feed.tuning == Tuning()
    assert caplog.text.count("dali-feed tune SOURCE --batch 4") == 1


def test_what_is_given_wins_over_what_is_kept() -> None:
    """A field that is given is pinned; a cap on CPUs bounds threads; a cache needs memory that is given."""
    with _feed() as plain:
        _kept(plain, threads=64, readers=3, cache=Cache(1000))
    with _feed(Tuning.auto(readers=1)) as feed:
        next(iter(feed))
        assert (feed.tuning.threads, feed.tuning.readers, feed.tuning.cache) == (None, 1, None)
    loader = DataLoader(ScriptedSource(labelled(24)), 4, num_workers=1, device="cpu", tuning=Tuning.auto(cpus=1))
    with loader:
        assert feed_of(loader).tuning.threads == 1


def test_what_is_kept_and_does_not_fit_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """Memory that is too small for as many batches in flight is no reason to fail."""
    items = [padded(jpeg(n), 30_000) for n in range(64)]

    def feed(tuning: Tuning) -> Feed:
        return Feed(ScriptedSource(items), 8, shuffle=Shuffle(extent=1, window=4), tuning=tuning)

    with feed(Tuning()) as plain:
        _kept(plain, prefetch=8)
        enough = next(size for size in range(1 << 20, 1 << 24, 1 << 18) if _fits(plain, Tuning(memory=size)))
    caplog.set_level(logging.INFO, "dali_feed")
    with feed(Tuning.auto(memory=enough)) as tight:
        assert not _fits(tight, Tuning(memory=enough, prefetch=8))
        next(iter(tight))
        assert tight.tuning.prefetch == 2
    assert "does not fit" in caplog.text


def _fits(feed: Feed, tuning: Tuning) -> bool:
    try:
        feed.fits(tuning)
    except ConfigError:
        return False
    return True


def test_a_broken_file_is_a_warning_and_the_defaults(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever wrote it."""
    with _feed() as plain:
        _kept(plain, readers=3)
        path = path_of(key_of(plain, Tuning.auto()))
    path.write_text("{")
    with _feed(Tuning.auto()) as feed:
        next(iter(feed))
        assert feed.tuning == Tuning()
    assert str(path) in caplog.text


@pytest.mark.usefixtures("short_turns")
def test_batches_are_the_same_with_every_tuning_tried() -> None:
    """Bit for bit: ids, pixels, fields, bad records. Every step of every ladder, all that was tried."""
    items = [*labelled(22), Corrupt(), Corrupt()]
    tuning = Tuning.auto(memory="2GiB", cpus=2)
    with Feed(ScriptedSource(items), 4, shuffle=True, bad=BadRecords(None), tuning=tuning) as feed:
        start = Tuning(threads=2)
        steps = ladders(tuning, start, most_threads=2, data=1)
        every = {Tuning(**{"threads": 2, name: value}) for name, values in steps.items() for value in values}
        every |= {trial.tried for trial in measured(feed, tuning, 3.0).trials}
        expected = [seen(batch) for batch in feed]
        assert len(expected) == 6
        assert {tried.cache is not None for tried in every} == {True, False}
        for tried in every:
            with feed.alike(tried) as other:
                for epoch in range(2 if tried.cache else 1):
                    other.set_epoch(0)
                    assert [seen(batch) for batch in other] == expected, (tried, epoch)


@pytest.mark.usefixtures("short_turns")
def test_measuring_reads_no_sampler_and_writes_no_dead_letter() -> None:
    """Both belong to the training loop, which finds them as they were."""

    class Sampler:
        asked = 0

        def __iter__(self) -> Any:
            self.asked += 1
            return iter(range(12))

    class Letters:
        asked = 0

        def writer(self, *_: Any) -> Any:
            self.asked += 1
            raise AssertionError

    sampler, letters = Sampler(), Letters()
    source = ScriptedSource([*labelled(11), Corrupt()])
    bad = BadRecords(None, dead_letter=letters)  # type: ignore[arg-type]  # it is never asked
    with Feed(source, 4, sampler=sampler, bad=bad, tuning=Tuning.auto()) as feed:
        assert measured(feed, Tuning.auto(), 0.001).trials
    assert (sampler.asked, letters.asked) == (0, 0)
    assert sorted(AnyOrder(lambda: 12)) == list(range(12))


@pytest.mark.usefixtures("short_turns")
def test_an_interrupt_keeps_what_was_found() -> None:
    """Of the trials that were over."""

    def interrupt(_: Trial) -> None:
        raise KeyboardInterrupt

    with _feed() as feed:
        outcome = measured(feed, Tuning.auto(), 60, interrupt)
        assert (outcome.broken, len(outcome.trials)) == (True, 1)
        key = key_of(feed, Tuning.auto())
        assert kept_away(key, Outcome(Tuning(), (), broken=True)) is None
        won = Trial(Tuning(), Tuning(readers=4), (100, 120, 100, 120))
        path = kept_away(key, Outcome(Tuning(), (won,), broken=True))
        assert path is not None
        assert json.loads(Path(path).read_text())["tuning"] == {"readers": 4}


@pytest.mark.usefixtures("short_turns")
def test_a_measurement_that_fails_is_a_warning_and_the_defaults(caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong with the source shows in the training loop, as without it."""
    source = ScriptedSource([Abort()] * 24)
    with Feed(source, 4, shuffle=False, tuning=Tuning.auto(seconds=1)) as feed:
        iter(feed)
        assert (feed.tuning, feed.tuned) == (Tuning(), "the defaults: the measurement failed")
    assert "could not be measured" in caplog.text


PROGRAM = """
import os
import sys

from dali_feed.columns import Number
from dali_feed.external_sources import ArrayShards
from dali_feed.feed import Feed
from dali_feed.options import Tuning

for rank in range(2):
    if os.fork():
        continue
    feed = Feed(ArrayShards(sys.argv[1]), 4, columns=[Number("row", "float32")], rank=rank, world_size=2,
                tuning=Tuning.auto(seconds=0.2))
    batches = list(feed)
    os.write(1, f"{len(batches)} {feed.tuned}\\n".encode())
    feed.close()
    os._exit(0)
for _ in range(2):
    os.wait()
"""


def test_of_two_processes_one_measures_and_both_go_on(warm: Warm, tmp_path: Path) -> None:
    """Whoever is first; the other one waits for it, or finds what it kept."""
    np.save(tmp_path / "rows.npy", np.arange(64, dtype=np.float32))
    argv = [str(warm.python), "-c", PROGRAM, str(tmp_path / "rows.npy")]
    told = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout.splitlines()
    assert [line.split(" ")[0] for line in told] == ["8", "8"], told
    assert sum("measured now" in line for line in told) == 1, told
    assert sum("measured by another process" in line or line.startswith("8 kept in") for line in told) == 1, told


@pytest.mark.parametrize(
    "wrong", [{"seconds": -1}, {"seconds": True}, {"memory": 1}, {"memory": "much"}, {"cpus": 0}, {"thread": 2}]
)
def test_wrong_arguments_of_auto_are_errors_with_their_names(wrong: dict[str, Any]) -> None:
    """No option is ignored."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Tuning.auto(**wrong)
