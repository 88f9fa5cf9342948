"""What a feed tells a source of its plan, and shards behind a cache of pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from beneath import Counting
from kit.images import QUICK, Seen, jpeg, labelled, padded, seen
from kit.member_shards import shards

from dali_feed.columns import Image, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import Concat, DiskCache, Mix, ShardSet
from dali_feed.feed import Feed
from dali_feed.feed.foresight import lanes_here
from dali_feed.plan.batching import Shares
from dali_feed.plan.order import Shuffle
from dali_feed.records.source import Coming
from dali_feed.storage.disk_cache import CachedStore
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.testing.shards import write_shard


class Told(ScriptedSource):
    """A source that keeps what it is told."""

    def foresee(self, coming: Coming) -> None:
        """Kept."""
        extents, this = coming()
        self.told = extents.ids().tolist(), this


def taken(source: Told, since: int = 0) -> list[int]:
    """Ids in the order in which they were read."""
    return [(p << 40) | k for p, start, stop in source.reads[since:] for k in range(start, stop)]


@pytest.mark.parametrize("shuffle", [True, False, Shuffle(extent=3, window=2)])
def test_a_source_is_told_what_will_be_read(shuffle: Any) -> None:
    """All of this epoch in the order of its reads, and then all of the next one."""
    source = Told(labelled(31), partitions=2, extent=3, random_access=shuffle is True)
    foretold: list[int] = []
    with Feed(source, 4, shuffle=shuffle, lanes=1, tuning=QUICK) as feed:
        for _ in range(2):
            before = len(source.reads)
            list(feed)
            told, this = source.told
            assert taken(source, before) == told[:this]
            assert foretold in ([], told[:this])
            foretold = told[this:]


def test_a_pass_that_goes_on_is_told_what_is_left() -> None:
    """After a state is loaded nothing is told that has been read before the window it stands in."""
    source = Told(labelled(24))
    with Feed(source, 4, shuffle=Shuffle(extent=1, window=8), tuning=QUICK) as feed:
        batches = iter(feed)
        for _ in range(3):
            next(batches)
        state = feed.state_dict()
        feed.load_state_dict(state)
        before = len(source.reads)
        list(feed)
    told, this = source.told
    assert this == 16
    assert told[4:16] == taken(source, before)[-12:]


def test_a_sampler_is_not_asked_before_its_time() -> None:
    """Of an order that a sampler gives this epoch alone is told."""
    source = Told(labelled(8))
    asked = []

    class Sampler:
        def __iter__(self) -> Any:
            asked.append(1)
            return iter([3, 1, 2])

    with Feed(source, 3, sampler=Sampler(), tuning=QUICK) as feed:
        list(feed)
    assert (source.told, asked) == (([3, 1, 2], 3), [1])


def test_ranks_of_a_machine_are_told_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share its disk: the lanes of all its ranks, and of no other's."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [lanes_here(Shares.of(2, rank, 4, 8)) for rank in range(4)] == [[0, 1, 4, 5]] * 2 + [[2, 3, 6, 7]] * 2
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert lanes_here(Shares.of(2, 1, 2, 4)) == [1, 3]


def counted(source: ShardSet) -> tuple[ShardSet, Counting]:
    """The source with reads counted beneath its cache."""
    store, counting = source._store, Counting()
    assert isinstance(store, CachedStore)
    store._below = counting
    return source, counting


def epochs(source: Any, **options: Any) -> list[Seen]:
    """Two epochs."""
    with Feed(source, 4, shuffle=True, tuning=QUICK, **options) as feed:
        return [seen(batch) for _ in range(2) for batch in feed]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Two shards of 20 records, 30 KB each."""
    for n in range(2):
        write_shard(tmp_path / f"{n}.tar", [(padded(jpeg(20 * n + k), 30_000), k) for k in range(20)])
    return str(tmp_path / "*.tar")


def test_shards_behind_a_cache_give_the_same(path: str, tmp_path: Path) -> None:
    """With room for a third, and for all, when a second run reads nothing beneath; and its hits are in the stats."""
    wanted = epochs(ShardSet(path))
    assert epochs(ShardSet(path, cache=DiskCache(tmp_path / "small", 500_000, 1 << 16))) == wanted
    whole = DiskCache(tmp_path / "large", "10MB", 1 << 16)
    source, below = counted(ShardSet(path, cache=whole))
    assert epochs(source) == wanted
    assert 0 < len(below.reads) <= 22  # pieces
    source, below = counted(ShardSet(path, cache=whole))
    with Feed(source, 4, shuffle=True, tuning=QUICK) as feed:
        assert [seen(batch) for batch in feed] == wanted[: len(wanted) // 2]
        (stats,) = feed.stats().storage
    assert not below.reads
    assert (stats.misses, stats.hit_rate) == (0, 1.0)
    assert stats.store == f"cache {tmp_path / 'large'}"


def test_reads_of_plain_files_are_in_the_stats(path: str) -> None:
    """Without a cache too: as many bytes as the records have at least, and each read in the histogram."""
    source = ShardSet(path)
    found = source.snapshot()
    with Feed(source, 4, shuffle=True, tuning=QUICK) as feed:
        list(feed)
        (stats,) = feed.stats().storage
    assert stats.store == "local"
    assert stats.bytes >= len(found) * (found.record_bytes - 1)
    assert sum(stats.latency) == stats.reads > 0


def test_the_plan_saves_reads(path: str, tmp_path: Path) -> None:
    """With room for half, less is read beneath than where nothing is told."""
    fetched = []
    for told in (True, False):
        source, below = counted(ShardSet(path, cache=DiskCache(tmp_path / f"{told}", 750_000, 1 << 16)))
        if not told:
            source.foresee = lambda coming: None  # type: ignore[method-assign]
        with Feed(source, 4, shuffle=Shuffle(extent=2, window=2), tuning=QUICK) as feed:
            for _ in range(3):
                list(feed)
        fetched.append(sum(size for _, size in below.reads))
    assert fetched[0] < 0.9 * fetched[1]


def test_shards_behind_a_cache_resume_anywhere(path: str, tmp_path: Path) -> None:
    """The law of resume holds for them as for others."""
    assert_resumes_anywhere(ShardSet(path, cache=DiskCache(tmp_path / "cache", 500_000, 1 << 16)), positions=2)


def test_members_come_through_a_cache(tmp_path: Path) -> None:
    """Of columns what their members take is told, and the batches are the same."""
    columns = {"image": Image("jpg"), "text": Text("txt")}

    def run(cache: DiskCache | None) -> list[Any]:
        plain = shards(tmp_path)
        source = ShardSet(str(tmp_path / "*.tar"), index_dir=tmp_path, cache=cache) if cache else plain
        with Feed(source, 4, shuffle=True, tuning=QUICK, columns=columns) as feed:
            return [(seen(batch), batch.fields["text"]) for batch in feed]

    assert run(DiskCache(tmp_path / "cache", "1MB", 1 << 16)) == run(None)


def test_a_cache_of_another_kind_is_refused(path: str) -> None:
    """A folder's name is no cache: its limit must be said."""
    with pytest.raises(ConfigError, match="must be a DiskCache"):
        ShardSet(path, cache="folder")  # type: ignore[arg-type]


@pytest.mark.parametrize("shuffle", [True, Shuffle(extent=3, window=2)])
@pytest.mark.parametrize("kind", ["concat", "mix"])
def test_parts_are_told_what_will_be_read_of_them(kind: str, shuffle: Any) -> None:
    """Each source of several hears of its own partitions and of nothing else, in its order, then of the next epoch."""
    options: dict[str, Any] = {"partitions": 2, "extent": 3, "random_access": shuffle is True}
    one, two = (Told(labelled(n), **options) for n in (24, 36))
    plain = ScriptedSource(labelled(12), **options)  # one that does not ask
    source = Concat([one, plain, two]) if kind == "concat" else Mix([one, plain, two], [2, 1, 3])
    foretold: list[Any] = []
    with Feed(source, 6, shuffle=shuffle, lanes=1, tuning=QUICK) as feed:
        for _ in range(2):
            before = len(one.reads), len(two.reads)
            list(feed)
            told = [each.told for each in (one, two)]
            now = [ids[:this] for ids, this in told]
            assert [taken(one, before[0]), taken(two, before[1])] == now
            assert foretold in ([], now)
            foretold = [ids[this:] for ids, this in told]


def test_a_mixture_that_goes_on_tells_what_is_left() -> None:
    """Of each source: what its lane has not taken; and of one that stands there twice, both places together."""
    one, two = Told(labelled(24)), Told(labelled(36))
    with Feed(Mix([one, two, one], [1, 3, 1]), 5, shuffle=Shuffle(extent=1, window=4), tuning=QUICK) as feed:
        batches = iter(feed)
        for _ in range(6):
            next(batches)
        state = feed.state_dict()
        feed.load_state_dict(state)
        before = len(one.reads), len(two.reads)
        list(feed)
    for source, since in zip((one, two), before, strict=True):
        told, this = source.told
        read = taken(source, since)
        assert set(read) <= set(told[:this])
        assert this < len(read) + 8  # no more than the windows that it stands in


@pytest.mark.parametrize("kind", ["concat", "mix"])
def test_the_plan_of_several_saves_reads(path: str, tmp_path: Path, kind: str) -> None:
    """A cache below a Concat or Mix with room for half evicts what is needed last, and so reads less beneath."""
    fetched = []
    for told in (True, False):
        first, below = counted(ShardSet(path, cache=DiskCache(tmp_path / f"{told}", 750_000, 1 << 16)))
        second = ScriptedSource(labelled(40))
        if not told:
            first.foresee = lambda coming: None  # type: ignore[method-assign]
        source = Concat([first, second]) if kind == "concat" else Mix([first, second])
        with Feed(source, 4, shuffle=Shuffle(extent=2, window=2), tuning=QUICK) as feed:
            for _ in range(3):
                list(feed)
        fetched.append(sum(size for _, size in below.reads))
    assert fetched[0] < 0.9 * fetched[1]
