"""What librdkafka's errors mean, and how long an answer is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from dali_feed.errors import ClosedError, SourceDeniedError, SourceError, SourceUnreachableError
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import GROUP_RIGHT, Meaning, NotYetError, Patience, Trouble, meaning

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
