"""Three brokers of which one is killed: what was written, read or followed meanwhile is as if nothing had been."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from broker.trio import NODES, Trio
from images import Seen, jpeg, padded, seen
from produced import numbered, shard_of, values_in
from torchvision.transforms import v2

from dali_feed import Shuffle, Tuning
from dali_feed.external_sources import KafkaTopic, Produced, Producer
from dali_feed.feed import Feed
from dali_feed.testing import publish

pytestmark = pytest.mark.slow

RECORDS = 240
BYTES = 20_000  # more in all than the loader may hold, so that the brokers are asked all along
BATCH = 16
AFTER = 4  # batches
PARTITIONS = 3  # each broker leads one


@pytest.fixture(scope="module")
def trio(needs_kafka: None) -> Iterator[Trio]:
    """The three brokers."""
    with Trio() as running:
        yield running


def _readable(trio: Trio, name: str) -> str:
    trio.create(name, PARTITIONS)
    publish(trio.servers, name, [(padded(jpeg(n), BYTES), n) for n in range(RECORDS)])
    return name


def _epoch(trio: Trio, topic: str, fault: Callable[[int], object] = lambda _: None) -> list[Seen]:
    """What an epoch gives; `fault` is told how many batches there were."""
    got: list[Seen] = []
    with Feed(
        KafkaTopic(topic, trio.servers, timeout=60),
        BATCH,
        shuffle=Shuffle(extent=16, window=2),
        transform=v2.RandomResizedCrop(16),
        seed=3,
        tuning=Tuning(threads=1, readers=2, memory=3 << 20),
    ) as feed:
        for batch in feed:
            got.append(seen(batch))
            fault(len(got))
    return got


class _Between:
    """Holds a producer's loop while something happens; what it handed over before goes on being sent."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, so_far: Produced) -> None:
        """Told by the producer."""
        if so_far.position > so_far.begun and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(120)


def test_one_of_three_brokers_killed_while_a_topic_is_written_and_another_read(trio: Trio, tmp_path: Path) -> None:
    """The batches are those of an undisturbed epoch, and the topic has each record once, in order."""
    read, written = _readable(trio, "read"), "written"
    trio.create(written, PARTITIONS)
    values = numbered(6_000)
    want = _epoch(trio, read)
    victim, between = trio.leader(read), _Between()
    with ThreadPoolExecutor() as beside:
        producer = Producer(shard_of(tmp_path, values), written, trio.servers, queue_bytes=64 << 10, timeout=60)
        done = beside.submit(producer.run, between)

        def fault(batches: int) -> None:
            if batches == AFTER:
                assert between.reached.wait(120)
                trio.brokers[victim].kill()
                between.go_on.set()

        got = _epoch(trio, read, fault)
        assert done.result(120).tally.records == len(values)
    assert got == want
    assert values_in(trio.servers, written) == [values[p::PARTITIONS] for p in range(PARTITIONS)]
    assert {trio.leader(topic, p) for topic in (read, written) for p in range(PARTITIONS)} == {*NODES} - {victim}
