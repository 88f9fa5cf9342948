"""Answers about a group's offsets, and secrets that no error shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import KafkaError
from kit.broker.handle import Kafka
from kit.groups import Worker, until
from kit.limits import LONG

from dali_feed.cli.targets import Access, topic_of
from dali_feed.errors import ConfigError, SourceDeniedError, SourceError, SourceUnreachableError
from dali_feed.external_sources import ConsumerGroup, KafkaTopic, Secret, Topics
from dali_feed.external_sources.kafka.client import TokenGuard
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import Meaning, meaning
from dali_feed.secrets import hidden, is_secret, revealed


def test_a_client_that_goes_no_further_is_refused_whatever_it_says() -> None:
    """An error that librdkafka calls fatal."""
    assert meaning(KafkaError(KafkaError._TRANSPORT, fatal=True)) is Meaning.REFUSED


COMMIT, OFFSETS = 8, 9  # requests, by their numbers in Kafka's protocol


def options_of(kafka: Kafka, timeout: float = LONG) -> Connection:
    """Of a source of the topic."""
    return Connection(kafka.topic, kafka.servers, timeout)


@pytest.mark.waits
def test_offsets_of_a_group_are_asked_for_until_they_are_told(embedded: Kafka, answers: Callable[..., None]) -> None:
    """A coordinator that loads is waited for, as long as the source waits; the right to see them is needed."""
    group = embedded.topic
    answers(COMMIT, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    with Cluster(options_of(embedded), group=group) as cluster:
        cluster.commit({0: 7})
    answers(OFFSETS, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert Cluster(options_of(embedded), group=group).committed([0]) == {0: 7}
    answers(OFFSETS, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(SourceDeniedError, match="a group's offsets need the right Describe on it"):
        Cluster(options_of(embedded), group=group).committed([0])
    answers(OFFSETS, *[KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 50)
    with pytest.raises(SourceUnreachableError, match=f"^{embedded.topic}: "):
        Cluster(options_of(embedded, 0.05), group=group).committed([0])


@pytest.mark.waits
def test_commits_are_sent_again_or_told(
    embedded: Kafka, answers: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A rebalance delays one, a missing right is an error, a member that was thrown out gives up with a warning."""
    worker = Worker(embedded.topic, embedded.servers, ConsumerGroup(embedded.topic))

    def commits(*codes: int) -> int:
        """Take two more records, and have their commit answered so; how far the group is then."""
        wanted = len(worker.got) + 2
        until(lambda: len(worker.got) >= wanted, partial(worker.turn, 2))
        answers(COMMIT, *codes)
        worker.commit()
        return Cluster(options_of(embedded), group=embedded.topic).committed([0])[0]

    assert commits(KafkaError.REBALANCE_IN_PROGRESS) == 2
    with pytest.raises(SourceDeniedError, match="joining a group needs the right"):
        commits(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(SourceError, match="could not be committed.*What was not committed comes again"):
        commits(KafkaError.INVALID_COMMIT_OFFSET_SIZE)
    assert commits() == 8
    commits(KafkaError.UNKNOWN_MEMBER_ID)
    assert "the group has removed the worker, and what was not committed comes again" in caplog.text
    worker.reader.close()


def test_a_token_function_that_fails() -> None:
    """Where it raises or gives no token, that is said at once, and no secret with it; later the old token stands."""

    def oauth(_: str) -> tuple[str, float]:
        msg = "the issuer refuses client-secret-5544"
        raise RuntimeError(msg)

    base = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    config = {**base, "oauth_cb": oauth, "sasl.oauthbearer.client.secret": "client-secret-5544"}
    for ask in (
        KafkaTopic("t", "127.0.0.1:9", config=config, timeout=5).snapshot,
        lambda: Topics("127.0.0.1:9", config=config, timeout=5).describe("t"),
    ):
        with pytest.raises(SourceDeniedError, match=r"it raised RuntimeError: the issuer refuses \*\*\*"):
            ask()
    for gives, told in ((lambda _: "token", "gave str"), (lambda _: ("token", 1.0), "ended")):
        with pytest.raises(ConfigError, match=told):
            KafkaTopic("t", "127.0.0.1:9", config={**base, "oauth_cb": gives}).snapshot()
    given = iter([("first", time.time() + 3600.0)])
    failed: list[str] = []
    tokens = TokenGuard("t", lambda _: next(given), "", failed.append)
    assert [tokens("")[0], tokens("")[0]] == ["first", "first"]
    assert failed == ["SASL: oauth_cb gave no new token: it raised StopIteration: "]


def test_which_options_are_secret() -> None:
    """Passwords, keys and tokens are; where they lie is none, nor who somebody is."""
    yes = (
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
    )
    no = ("sasl.username", "ssl.ca.location", "ssl.key.location", "sasl.oauthbearer.token.endpoint.url", "ssl.ca.pem")
    assert all(map(is_secret, yes))
    assert not any(map(is_secret, no))
    revealed("t", {"ssl.key.pem": "-----BEGIN-----\nline-of-a-key\n-----END-----"})
    assert hidden("bad line: line-of-a-key") == "bad line: ***"


def test_a_secret_has_one_place() -> None:
    """An environment variable or a file, by name, and not both."""
    with pytest.raises(ConfigError, match="one of env= and file=; found neither"):
        Secret()
    with pytest.raises(ConfigError, match="one of env= and file=; found both"):
        Secret(env="A", file="/run/key")


def test_secrets_on_the_command_line() -> None:
    """`-X sasl.password=env:NAME` and `file:PATH` say where it is; an address with a password in it is not repeated."""
    found = Access.of(
        ["sasl.password=env:KAFKA", "ssl.key.password=file:/run/key", "client.id=env:x", "sasl.username=a"], 1.0
    ).config
    assert found == {
        "sasl.password": Secret(env="KAFKA"),
        "ssl.key.password": Secret(file="/run/key"),
        "client.id": "env:x",
        "sasl.username": "a",
    }
    with pytest.raises(ConfigError) as refused:
        topic_of("kafka://alice:pa55@host:9092/topic")
    assert "pa55" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"--config: must be KEY=VALUE; found '\*\*\*'"):
        Access.of(["sasl.passwordpa55"], 1.0)
