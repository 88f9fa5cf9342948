"""What a `Concat` passes on of its sources' readers: errors, and what librdkafka complained of."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kit.blocks import taken
from kit.broker.handle import Kafka, value
from kit.images import jpeg
from kit.inside import Extents, SlabPool

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources import Concat, KafkaTopic
from dali_feed.testing import ScriptedSource


def test_a_reader_of_several_sources_is_for_its_own_snapshot() -> None:
    """Extents that no source has, and a read after it was closed, are refused by its own name."""
    reader = Concat([ScriptedSource([(jpeg(0), 1)]), ScriptedSource([(jpeg(1), 2)], name="b")]).reader(["value"])
    lease = SlabPool().lease()
    (value,) = reader.read(Extents.one(1, 0, 1), lease).values["value"]
    assert taken(value) == jpeg(1)
    with pytest.raises(ConfigError, match=r"Concat\(.*\): extents must lie inside the snapshot"):
        reader.read(Extents.one(-1, 0, 1), lease)
    reader.close()
    with pytest.raises(ClosedError, match=r"Concat\(.*\): this reader is closed"):
        reader.read(Extents.one(0, 0, 1), lease)


def test_trouble_of_any_reader_is_that_of_all(embedded: Kafka) -> None:
    """What librdkafka last complained of is told by whoever reads the topic beside others, and nothing before that."""
    embedded.publish(embedded.topic, [(value(i), i) for i in range(4)], partitions=1)
    both = Concat([ScriptedSource([(jpeg(0), 1)]), KafkaTopic(embedded.topic, embedded.servers)])
    both.snapshot()
    reader, lease = both.reader(["value"], threading.Event()), SlabPool().lease()
    reader.read(Extents.one(1, 0, 4), lease)
    assert reader.trouble == ""
    reader.rest()  # as its thread does while there is nothing to read
    found = reader.gauges()
    assert found is None or found.topic == embedded.topic
    assert len(reader.read(Extents.one(1, 0, 4), lease).values["value"]) == 4
    cluster: Any = embedded.cluster
    cluster.down()
    while not reader.trouble:
        reader.rest()
    assert "Broker" in reader.trouble or "broker" in reader.trouble or "Connect" in reader.trouble
    reader.close()
