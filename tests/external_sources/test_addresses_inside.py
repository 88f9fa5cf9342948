"""Insides that contract/topics/test_addresses.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest

from dali_feed.external_sources.kafka.connection import addresses


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
    assert addresses("", given) == taken
