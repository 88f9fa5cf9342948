"""Insides that contract/sources/test_wrapped.py needs not: they go with what they test."""

from __future__ import annotations

import numpy as np
import pytest
from kit.broker.handle import Kafka, value
from kit.images import jpeg

from dali_feed.columns import Number
from dali_feed.columns.columns import Columnar, with_columns
from dali_feed.errors import ConfigError
from dali_feed.external_sources import ArrayShards, Concat, KafkaTopic, Renamed
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.testing import ScriptedSource
from dali_feed.testing.watched import WatchedSource

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_what_a_topic_can_it_can_under_other_names_and_beside_others(embedded: Kafka) -> None:
    """The record in full for a dead letter, a commit of positions, and how much may be fetched at once."""
    embedded.publish(embedded.topic, [(value(i), i) for i in range(4)], partitions=1)
    topic = KafkaTopic(embedded.topic, embedded.servers, group=embedded.topic)
    renamed = Renamed(topic, {"label": "y"})
    both = Concat([ScriptedSource([(jpeg(0), 1)]), renamed])
    assert (repr(renamed.source), renamed.most_fetch_times) == (repr(topic), topic.most_fetch_times)
    assert both.most_fetch_times == topic.most_fetch_times > 1
    both.snapshot()
    assert both.original(0, 0) is None
    for found in (renamed.original(0, 2), both.original(1, 2)):
        assert found is not None
        assert found.value == value(2)
    renamed.commit(np.array([3], np.int64))
    options = Connection(embedded.topic, embedded.servers, 10.0)
    assert Cluster(options).committed(embedded.topic, [0]) == {0: 3}


class _Plain:
    """A source that has no members to ask for."""

    def __init__(self) -> None:
        self._source = ScriptedSource([(jpeg(0), 1)])
        self.fields, self.snapshot = self._source.fields, self._source.snapshot
        self.reader, self.where = self._source.reader, self._source.where


def test_columns_need_a_source_that_names_its_members() -> None:
    """Alone, beside others and watched: the error says to leave columns out; a transform beside columns is refused."""
    columns = {"n": Number("label")}
    with pytest.raises(ConfigError, match="list the members of its records; _Plain does not; leave columns out"):
        Columnar(_Plain(), columns, as_tuple=False)
    with pytest.raises(ConfigError, match="needs sources that list the members .* does not; leave columns out"):
        Concat([_Plain(), _Plain()]).members()
    with pytest.raises(ConfigError, match="a source must list the members of its records; _Plain does not"):
        WatchedSource(_Plain()).members()
    with pytest.raises(
        ConfigError, match=r"transform: with columns=, each column has its own; write Image\(member, transform\)"
    ):
        with_columns(ArrayShards(ROWS, label=np.arange(6)), columns, transform=[])
