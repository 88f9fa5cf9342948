"""Insides that contract/topics/test_kafka_security.py needs not: they go with what they test."""

from __future__ import annotations

import time

import pytest

from dali_feed.cli.targets import Access, topic_of
from dali_feed.errors import ConfigError, SourceDeniedError
from dali_feed.external_sources import FromEnv, FromFile, KafkaTopic, Topics
from dali_feed.external_sources.kafka.client import TokenGuard
from dali_feed.secrets import hidden, is_secret, revealed


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


def test_secrets_on_the_command_line() -> None:
    """`-X sasl.password=env:NAME` and `file:PATH` say where it is; an address with a password in it is not repeated."""
    found = Access.of(
        ["sasl.password=env:KAFKA", "ssl.key.password=file:/run/key", "client.id=env:x", "sasl.username=a"], 1.0
    ).config
    assert found == {
        "sasl.password": FromEnv("KAFKA"),
        "ssl.key.password": FromFile("/run/key"),
        "client.id": "env:x",
        "sasl.username": "a",
    }
    with pytest.raises(ConfigError) as refused:
        topic_of("kafka://alice:pa55@host:9092/topic")
    assert "pa55" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"--config: must be KEY=VALUE; found '\*\*\*'"):
        Access.of(["sasl.passwordpa55"], 1.0)
