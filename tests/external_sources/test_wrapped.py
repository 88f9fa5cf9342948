"""What a source that stands before others passes on of them: records in full, commits, limits, errors."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from broker.handle import Kafka, value
from images import jpeg

from dali_feed.columns import Number
from dali_feed.columns.source import Columnar, with_columns
from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources import ArrayShards, Concat, KafkaTopic, Renamed
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.records.extents import Extents
from dali_feed.testing import ScriptedSource
from dali_feed.testing.watched import Watched

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


def test_two_fields_of_one_name_are_refused() -> None:
    """A field cannot take the name of another that stays."""
    source = ArrayShards(ROWS, label=np.arange(6))
    renamed = Renamed(source, {"row": "label"})
    with pytest.raises(ConfigError, match="must"):
        renamed.giving(None, ("label", "row"))


def test_a_reader_of_several_sources_is_for_its_own_snapshot() -> None:
    """Extents that no source has, and a read after it was closed, are refused by its own name."""
    reader = Concat([ScriptedSource([(jpeg(0), 1)]), ScriptedSource([(jpeg(1), 2)], name="b")]).reader()
    (payload,) = reader.read(Extents.one(1, 0, 1)).payloads
    assert payload is not None
    assert bytes(payload) == jpeg(1)
    with pytest.raises(ConfigError, match=r"Concat\(.*\): extents must lie inside the snapshot"):
        reader.read(Extents.one(-1, 0, 1))
    reader.close()
    with pytest.raises(ClosedError, match=r"Concat\(.*\): this reader is closed"):
        reader.read(Extents.one(0, 0, 1))


def test_trouble_of_any_reader_is_that_of_all(embedded: Kafka) -> None:
    """What librdkafka last complained of is told by whoever reads the topic beside others, and nothing before that."""
    embedded.publish(embedded.topic, [(value(i), i) for i in range(4)], partitions=1)
    both = Concat([ScriptedSource([(jpeg(0), 1)]), KafkaTopic(embedded.topic, embedded.servers)])
    both.snapshot()
    reader: Any = both.reader(stop=threading.Event())
    reader.read(Extents.one(1, 0, 4))
    assert reader.trouble == ""
    reader.rest()  # as its thread does while there is nothing to read
    found = reader.gauges()
    assert found is None or found.topic == embedded.topic
    assert len(reader.read(Extents.one(1, 0, 4)).payloads) == 4
    cluster: Any = embedded.cluster
    cluster.down()
    while not reader.trouble:
        reader.rest()
    assert "Broker" in reader.trouble or "broker" in reader.trouble or "Connect" in reader.trouble
    reader.close()


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
        Watched(_Plain()).members()
    with pytest.raises(
        ConfigError, match=r"transform: with columns=, each column has its own; write Image\(member, transform\)"
    ):
        with_columns(ArrayShards(ROWS, label=np.arange(6)), columns, transform=[])
