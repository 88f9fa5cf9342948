"""What librdkafka's errors mean, how long answers are waited for, and secrets that no error shows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kit.broker.handle import Kafka
from kit.limits import LONG

from dali_feed.cli.targets import Access, topic_of
from dali_feed.errors import ClosedError, ConfigError, SourceDeniedError, SourceError, SourceUnreachableError
from dali_feed.external_sources import KafkaTopic, Secret, Topics
from dali_feed.external_sources.kafka.client import TokenGuard
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import GROUP_RIGHT, Meaning, NotYetError, Patience, Trouble, meaning
from dali_feed.external_sources.kafka.group import ConsumerGroup, Membership
from dali_feed.records.live import Progress
from dali_feed.secrets import hidden, is_secret, revealed

TO = Connection("t", "h:1", 30.0)


@pytest.mark.parametrize(
    ("code", "kind", "passes"),
    [
        (KafkaError._PARTITION_EOF, Meaning.END, True),
        (KafkaError._AUTO_OFFSET_RESET, Meaning.RESET, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Meaning.DENIED, False),
        (KafkaError.SASL_AUTHENTICATION_FAILED, Meaning.DENIED, False),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, Meaning.NO_GROUP, True),
        (KafkaError._UNKNOWN_TOPIC, Meaning.GONE, True),
        (KafkaError.MSG_SIZE_TOO_LARGE, Meaning.BROKEN, False),
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, Meaning.REFUSED, False),
        (KafkaError._TRANSPORT, Meaning.PASSES, True),
        (KafkaError.REBALANCE_IN_PROGRESS, Meaning.PASSES, True),
    ],
)
def test_each_error_has_one_meaning(code: int, kind: Meaning, passes: bool) -> None:
    """A reader without a group goes on behind some, and ends with others; a member needs the right on its group."""
    error, trouble = KafkaError(code), Trouble()
    assert meaning(error) is kind
    if passes:
        trouble.judge(error, TO, "t[0]@7")
        assert trouble.last or trouble.gone
    else:
        with pytest.raises(SourceError, match=r"^t\[0\]@7: "):
            trouble.judge(error, TO, "t[0]@7")
    if kind is Meaning.NO_GROUP:
        with pytest.raises(SourceDeniedError, match="joining a group needs"):
            trouble.judge(error, TO, "t", GROUP_RIGHT)


def test_a_client_that_goes_no_further_is_refused_whatever_it_says() -> None:
    """An error that librdkafka calls fatal."""
    assert meaning(KafkaError(KafkaError._TRANSPORT, fatal=True)) is Meaning.REFUSED


def _answers(*answers: Exception | int) -> Callable[[float], int]:
    left = list(answers)

    def ask(seconds: float) -> int:
        assert 0 < seconds <= 1
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


PASSES = KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))


def test_a_question_is_asked_until_it_is_answered() -> None:
    """What passes is asked again; rights, the stop event and the timeout end it, the last with what was said."""
    assert Patience(TO, Trouble()).until(_answers(PASSES, NotYetError("not yet"), 7)) == 7
    lacking = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(SourceDeniedError, match="^here: reading needs the rights"):
        Patience(TO, Trouble()).until(_answers(PASSES, lacking), "here")
    with pytest.raises(KafkaException):
        Patience(TO, Trouble()).until(_answers(PASSES), again=lambda _: False)
    with pytest.raises(SourceUnreachableError, match="^t: .*h:1 did not answer for .*: not yet; "):
        Patience(TO, Trouble(), seconds=0.01).until(_answers(NotYetError("not yet")))
    stop = threading.Event()
    stop.set()
    with pytest.raises(ClosedError, match="^t: reading was stopped"):
        Patience(TO, Trouble(), stop).until(_answers(7))


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
def test_a_question_about_a_topic_ends_with_the_reader(embedded: Kafka) -> None:
    """Nobody answers: the timeout of the source ends it, and so does the stop event, at once."""
    broker: Any = embedded.cluster
    broker.down()
    with pytest.raises(SourceUnreachableError, match="here: "):
        Cluster(options_of(embedded, 0.01)).topic_id("here")
    stop = threading.Event()
    stop.set()
    stopped = Cluster(options_of(embedded), stop)
    with pytest.raises(ClosedError, match="here: reading was stopped"):
        stopped.topic_id("here")
    with pytest.raises(ClosedError, match=f"{embedded.topic}: reading was stopped"):
        stopped.has_controller()


class Committing:
    """A member that was assigned its partition by hand, and its commits."""

    def __init__(self, kafka: Kafka) -> None:
        self.member = Membership(options_of(kafka), ConsumerGroup(kafka.topic), "earliest")
        nothing: Any = lambda *_: None  # noqa: E731  no receiver
        self.member.join(Progress(), Trouble(), take_up=nothing, withdraw=nothing, give_up=nothing, ended=lambda: False)
        self.member._committed = {0: 0}
        fixed = {"bootstrap.servers": kafka.servers, "group.id": kafka.topic, "enable.auto.commit": False}
        heard = self.member.options()[1]["on_commit"]
        self.consumer = Consumer({**fixed, "on_commit": heard}, logger=logging.getLogger("quiet"))
        self.consumer.assign([TopicPartition(kafka.topic, 0, 0)])

    @property
    def landed(self) -> int:
        """How far the group is known to be."""
        return self.member._committed[0]

    def commit(self, offset: int) -> SourceError | None:
        """Have it committed by a loop, while this thread does the receiver's part; why it could not be."""
        wrong: list[SourceError] = []

        def loop() -> None:
            try:
                self.member.commit({0: offset})
            except SourceError as error:
                wrong.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
        while thread.is_alive():
            self.member.serve(self.consumer)
            self.consumer.poll(0.01)
        return wrong[0] if wrong else None

    def stored(self) -> int:
        """The group's offset, as the broker has it."""
        (place,) = self.consumer.committed([TopicPartition(self.member._to.topic, 0)], timeout=LONG)
        return place.offset


@pytest.mark.waits
def test_commits_are_sent_again_or_told(
    embedded: Kafka, answers: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A rebalance delays one, a member that was thrown out gives up with a warning, a missing right is an error."""
    member = Committing(embedded)
    answers(COMMIT, KafkaError.REBALANCE_IN_PROGRESS)
    assert member.commit(5) is None
    assert member.landed == 5
    answers(COMMIT, KafkaError.UNKNOWN_MEMBER_ID)
    assert member.commit(6) is None
    assert "the group has removed the worker, and what was not committed comes again" in caplog.text
    assert member.landed == 5
    answers(COMMIT, KafkaError.GROUP_AUTHORIZATION_FAILED)
    assert isinstance(member.commit(7), SourceDeniedError)
    answers(COMMIT, KafkaError.INVALID_COMMIT_OFFSET_SIZE)
    error = member.commit(8)
    assert "could not be committed" in str(error)
    assert "What was not committed comes again" in str(error)
    assert member.commit(9) is None
    assert (member.landed, member.stored()) == (9, 9)
    member.consumer.close()


@pytest.mark.waits
def test_the_last_commit_of_partitions_that_go_is_looked_for(
    embedded: Kafka, answers: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """No answer is heard in a callback: where the broker does not have it, it is sent again; or a warning says so."""
    member = Committing(embedded)
    answers(COMMIT, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH)
    member.member._publish(member.consumer, [0], {0: 12})
    assert member.stored() == 12
    assert not caplog.records
    member.consumer.close()


@pytest.mark.waits
@pytest.mark.usefixtures("answers")
def test_a_commit_does_not_wait_for_a_hand_over_that_waits_for_the_loop(embedded: Kafka) -> None:
    """It comes back at once, before a callback and amid one, and its level is sent behind that."""
    member = Committing(embedded)
    waits = threading.Thread(target=lambda: member.member.commit({0: 3}))
    waits.start()
    with member.member._callback():
        waits.join(LONG)
        member.member.commit({0: 4})
    assert not waits.is_alive()
    while member.landed < 4:
        member.member.serve(member.consumer)
        member.consumer.poll(0.01)
    assert member.stored() == 4
    member.consumer.close()


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
