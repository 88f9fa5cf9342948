"""The brokers that tests and the demo stand on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kit.broker.handle import Kafka
from kit.limits import LONG

from dali_feed.errors import ClosedError, ConfigError, SourceError, SourceNotFoundError
from dali_feed.testing import Message, broker, publish


def test_records_go_round_robin_and_their_places_are_returned(kafka: Kafka) -> None:
    """Records without a partition take the partitions in turn; the places are those the broker gave."""
    records: list[tuple[bytes | None, int | None] | Message]
    records = [(b"a", 1), Message(b"b", partition=2), (b"c", 2), (None, 3), (b"d", None)]
    assert publish(kafka.servers, kafka.topic, records, partitions=3) == [(0, 0), (2, 0), (1, 0), (2, 1), (0, 1)]


def test_publish_makes_the_topic_where_told_so(kafka: Kafka) -> None:
    """partitions= makes a missing topic; without it that is an error, as is a partition that the topic lacks."""
    with pytest.raises(SourceNotFoundError, match=kafka.topic):
        publish(kafka.servers, kafka.topic, [(b"x", 1)])
    assert publish(kafka.servers, kafka.topic, [(b"x", 1)] * 3, partitions=2) == [(0, 0), (1, 0), (0, 1)]
    with pytest.raises(ConfigError, match=r"0\.\.1; found 2"):
        publish(kafka.servers, kafka.topic, [Message(b"x", partition=2)])


def test_a_label_that_is_text_is_told_with_its_cure(embedded: Kafka) -> None:
    """Labels are numbers here; other headers are a message's."""
    records: list[tuple[bytes | None, int | None] | Message] = [(b"x", "cat")]  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"label must be an int or None; found 'cat'\. .*Message"):
        publish(embedded.servers, embedded.topic, records, partitions=1)


def test_publish_notices_records_that_were_dropped(embedded: Kafka) -> None:
    """The embedded broker keeps 5 MiB per partition: more is an error that says so, and fits in more partitions."""
    records = [(bytes(1_000_000), i) for i in range(8)]
    with pytest.raises(SourceError, match="5 MiB per partition"):
        publish(embedded.servers, embedded.topic, records, partitions=1)
    publish(embedded.servers, embedded.topic + "-wide", records, partitions=2)
    with pytest.raises(SourceError, match="more partitions"):  # the older records fell out for the new ones
        publish(embedded.servers, embedded.topic + "-wide", records[:4])


@pytest.mark.usefixtures("warm_children")
def test_an_embedded_broker_serves_other_processes() -> None:
    """Another process reads what this one published."""
    with broker() as running:
        running.create("t", 2)
        publish(running.servers, "t", [(b"x", 1)] * 5)
        code = (
            "from dali_feed.external_sources import KafkaTopic\n"
            f"print(len(KafkaTopic('t', {running.servers!r}).snapshot()))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG)
        assert done.stdout.strip() == "5"


@pytest.mark.usefixtures("warm_children")
def test_another_process_cannot_make_a_topic_of_an_embedded_broker() -> None:
    """It has no admin's requests: `publish` says at once who can."""
    with broker() as running:
        code = f"from dali_feed.testing import publish\npublish({running.servers!r}, 't', [(b'x', 1)], partitions=3)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=LONG)
        assert "SourceError: t: an admin client needs a controller" in done.stderr
        assert "use `dali_feed.testing.Broker.create`, in the process that runs it" in done.stderr


def test_an_embedded_broker_is_closed_twice_and_then_refuses() -> None:
    """close() is idempotent, and a topic that exists is refused while it runs."""
    running = broker(brokers=2)
    assert running.servers.count(":") == 2
    running.create("t")
    with pytest.raises(SourceError, match="'t'"):
        running.create("t")
    running.close()
    running.close()
    with pytest.raises(ClosedError):
        running.create("u")
    with pytest.raises(ConfigError):
        broker(0)


def test_signals_do_not_end_an_embedded_broker() -> None:
    """A signal that the main thread holds back goes to another thread, and the broker answers all the same."""
    script = """if True:
        import os, signal
        from dali_feed.testing import broker
        taken = []
        signal.signal(signal.SIGUSR1, lambda *_: taken.append(1))
        with broker() as kafka:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
            for n in range(50):
                os.kill(os.getpid(), signal.SIGUSR1)
                kafka.create(f"topic-{n}")
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        assert taken
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stderr
