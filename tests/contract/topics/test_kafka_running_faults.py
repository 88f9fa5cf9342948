"""Faults of the real broker under a running loader: nothing lost or repeated, or an error that names the offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from kit.broker.proxy import Proxy
from kit.broker.real import RealBroker
from kit.images import Seen, jpeg, padded, seen
from kit.inside import Feed
from torchvision.transforms import v2

from dali_feed import Shuffle, Tuning
from dali_feed.errors import DaliFeedError, DataLostError, SourceChangedError, SourceUnreachableError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import publish

pytestmark = pytest.mark.slow

RECORDS = 480
BYTES = 20_000  # far more in all than the loader may hold, so that the broker is asked all along
BATCH = 16
AFTER = 4  # batches
CLOSE_SECONDS = 10.0  # the contract's deadline with any broker, not a speed

MORE_AND_SEED = [(more, seed) for more in (0, 100) for seed in range(4) if (more, seed) not in {(0, 0), (100, 1)}]


def _topic(broker: RealBroker, name: str, replicas: int = 1, records: int = RECORDS) -> None:
    broker.create(name, 2, replicas=replicas)
    publish(broker.servers, name, [(padded(jpeg(n), BYTES), n) for n in range(records)])


def _feed(servers: str, topic: str, timeout: float = 60, seed: int = 3) -> Feed:
    return Feed(
        KafkaTopic(topic, servers, timeout=timeout),
        BATCH,
        shuffle=Shuffle(extent=16, window=2),
        transform=v2.RandomResizedCrop(16),
        seed=seed,
        tuning=Tuning(threads=1, readers=2, memory=3 << 20),
    )


def _run(feed: Feed, fault: Callable[[], object] = lambda: None) -> tuple[list[Seen], DaliFeedError | None]:
    """What an epoch gives, with the fault after some batches, and the error that it ended with."""
    got: list[Seen] = []
    try:
        for batch in feed:
            got.append(seen(batch))
            if len(got) == AFTER:
                fault()
    except DaliFeedError as error:
        return got, error
    return got, None


@pytest.fixture(scope="module")
def undisturbed(link_broker: RealBroker) -> tuple[str, list[Seen]]:
    """A topic, and what an epoch over it gives when nothing happens."""
    topic = "undisturbed"
    _topic(link_broker, topic)
    with _feed(link_broker.servers, topic) as feed:
        got, error = _run(feed)
    assert error is None
    assert sorted(label for batch in got for label in batch[1]) == list(range(RECORDS))
    return topic, got


@pytest.mark.parametrize("fault", ["reset", "down for 30 s", "stuck", "slow"])
def test_an_epoch_goes_on_as_if_nothing_had_been(
    link_broker: RealBroker, undisturbed: tuple[str, list[Seen]], fault: str
) -> None:
    """Connections reset, a broker away for 30 s, connections that give nothing more, 0.6 MB/s: the same batches."""
    topic, want = undisturbed
    timeout = {"down for 30 s": 60, "slow": 8}.get(
        fault, 3
    )  # at 0.6 MB/s a fetch takes 7, and one batch of the producer's, the least that comes, 2
    with Proxy(*link_broker.link_ports) as link, _feed(link_broker.link_servers, topic, timeout) as feed:
        back = threading.Timer(30, link.up)

        def down() -> None:
            link.down()
            back.start()

        def slow() -> None:
            link.rate = 6e5

        got, error = _run(feed, {"reset": link.cut, "stuck": link.hold, "slow": slow, "down for 30 s": down}[fault])
        if back.is_alive():
            back.join()
    assert error is None
    assert got == want


@pytest.mark.parametrize("fault", ["down", "stuck"])
def test_a_broker_that_stays_away_is_named_and_close_returns(
    link_broker: RealBroker, undisturbed: tuple[str, list[Seen]], fault: str
) -> None:
    """After `timeout` seconds an error with partition, offset and address; before it, close() ends at once."""
    topic, want = undisturbed
    with Proxy(*link_broker.link_ports) as link:
        with _feed(link_broker.link_servers, topic, timeout=6) as feed:
            got, error = _run(feed, link.down)
        assert isinstance(error, SourceUnreachableError)
        assert f"{topic}[" in str(error)
        assert link_broker.link_servers in str(error)
        assert got == want[: len(got)]
        link.up()
        feed = _feed(link_broker.link_servers, topic)
        batches = iter(feed)
        next(batches)
        link.down() if fault == "down" else link.hold()
        begun = time.monotonic()
        feed.close()
        assert time.monotonic() - begun < CLOSE_SECONDS


def test_retention_under_a_running_epoch_names_the_offsets(link_broker: RealBroker) -> None:
    """Records deleted ahead of the loader: what came before is right, then DataLostError says which offsets."""
    topic = "retained"
    _topic(link_broker, topic)
    with _feed(link_broker.servers, topic) as feed:
        want, _ = _run(feed)
    with _feed(link_broker.servers, topic) as feed:
        got, error = _run(feed, lambda: link_broker.delete_records(topic, 1, RECORDS // 2))
    assert isinstance(error, DataLostError)
    assert f"{topic}[1]@" in str(error)
    assert f"the broker holds nothing (next is {RECORDS // 2})" in str(error)
    assert AFTER <= len(got) < len(want)
    assert got == want[: len(got)]


@pytest.mark.parametrize(
    ("more", "seed"),
    [(0, 0), (100, 1), *(pytest.param(*more_and_seed, marks=pytest.mark.long) for more_and_seed in MORE_AND_SEED)],
)
def test_a_topic_made_anew_is_never_mistaken_for_the_old_one(link_broker: RealBroker, more: int, seed: int) -> None:
    """As many records or more under the same name, with full queues of old ones: no record of it is ever given."""
    topic, records = f"anew-{more}-{seed}", 1600  # more of a partition than a consumer fetches ahead
    _topic(link_broker, topic, records=records)

    def again() -> None:
        link_broker.delete(topic)
        link_broker.create(topic, 2)
        publish(link_broker.servers, topic, [(padded(jpeg(n), BYTES), records + n) for n in range(records + more)])

    with _feed(link_broker.servers, topic, seed=seed) as feed:
        got, error = _run(feed, again)
        assert isinstance(error, SourceChangedError), error
        assert "deleted" in str(error)
        assert max(label for batch in got for label in batch[1]) < records
        state = feed.state_dict()
        with pytest.raises(SourceChangedError, match="deleted and made again"):  # also of whoever catches and goes on
            next(iter(feed))
        with pytest.raises(SourceChangedError, match="deleted and made again"):  # or looks at the source again
            feed.source.snapshot()
    with (
        _feed(link_broker.servers, topic, seed=seed) as feed,
        pytest.raises(SourceChangedError, match=f"^{topic}: .*made again"),
    ):
        feed.load_state_dict(state)


def test_a_pin_without_an_id_is_still_one(link_broker: RealBroker) -> None:
    """A state from before the id was known is loaded, and has the fingerprint that it had."""
    topic = "without-id"
    _topic(link_broker, topic, records=40)
    pin = dict(KafkaTopic(topic, link_broker.servers).snapshot().pin or {})
    old = pin | {"id": ""}
    fingerprints = {KafkaTopic(topic, link_broker.servers).snapshot(old).fingerprint for _ in range(2)}
    assert len(fingerprints) == 1
    assert fingerprints != {KafkaTopic(topic, link_broker.servers).snapshot(pin).fingerprint}


@pytest.mark.long(
    form="external_sources/test_kafka_cluster.py"
    "::test_one_of_three_brokers_killed_while_a_topic_is_written_followed_and_another_read"
)
def test_a_leader_that_moves_loses_and_repeats_nothing(own_broker: RealBroker) -> None:
    """Two brokers, both with all records: the one that leads a partition is killed, and the other takes over."""
    with RealBroker(heap="256m", joins=own_broker, brief=True) as second:
        _topic(own_broker, "moved", replicas=2)
        leaders = own_broker.admin.list_topics("moved", timeout=30).topics["moved"].partitions
        assert {partition.leader for partition in leaders.values()} == {1, 2}
        servers = f"{own_broker.servers},{second.servers}"
        with _feed(servers, "moved") as feed:
            want, error = _run(feed)
            assert error is None
        with _feed(servers, "moved") as feed:
            got, error = _run(feed, second.kill)
        assert error is None
        assert got == want
        leaders = own_broker.admin.list_topics("moved", timeout=30).topics["moved"].partitions
        assert {partition.leader for partition in leaders.values()} == {1}
