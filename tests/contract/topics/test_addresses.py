"""Bootstrap addresses: what a broker can be at is taken as it is; what none can be at is an error at once."""

from __future__ import annotations

from typing import Any

import pytest

from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaStream, KafkaTopic, Producer, Topics


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", "''"),
        (" , ", "' , '"),
        ([], r"\[\]"),
        (None, "None"),
        (9092, "9092"),
        (b"a:1", "b'a:1'"),
        (["a:1", None], r"\['a:1', None\]"),
        ("a:70000", "1 to 65535; found 'a:70000'"),
        ("a:0", "'a:0'"),
        ("a:1,b:port", "'b:port'"),
        ("a:", "'a:'"),
        ("a b:1", "'a b:1'"),
        (":9092", "':9092'"),
        ("a:1/topic", "'a:1/topic'"),
        ("kafka://a:1", r"'kafka://a:1': leave 'kafka://' out"),
        ("http://a:1", r"leave 'http://' out"),
    ],
)
def test_what_is_no_address_is_an_error(given: Any, found: str) -> None:
    """At once and by name, where librdkafka asks another port or nobody until the timeout; in all that take servers."""
    with pytest.raises(ConfigError, match=rf"^servers must be addresses as host:port.*{found}"):
        Topics(given)
    for make in (KafkaTopic, KafkaStream):
        with pytest.raises(ConfigError, match=r"host:port"):
            make("t", given)
    with pytest.raises(ConfigError, match=r"host:port"):
        Producer("t", given)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("broker:9092", "broker:9092"),
        (["a:1", "b.example.org:65535"], "a:1,b.example.org:65535"),
        (("a:1,b:2", "c"), "a:1,b:2,c"),
        (" a:1 , b:2 ,", "a:1,b:2"),
        ("[::1]:9092,[fe80::1%eth0]:9092", "[::1]:9092,[fe80::1%eth0]:9092"),
        ("::1", "::1"),
        ("SASL_SSL://a:1", "SASL_SSL://a:1"),
        ("kafka_0.svc:9092", "kafka_0.svc:9092"),
    ],
)
def test_addresses_are_taken(given: Any, taken: str) -> None:
    """A text or a list, with blanks and a last comma, IPv6, librdkafka's protocols, no port."""
    assert repr(Topics(given)) == f"Topics({taken!r})"
