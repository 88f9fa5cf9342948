"""The client whose records C takes is the user's as before: options, plugins, statistics, logs, and its own errors."""

from __future__ import annotations

import ctypes
import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka, payloads, rows, value

from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka import reader as reading
from dali_feed.external_sources.kafka.reader import ByColumn, ByMessage, KafkaReader
from dali_feed.native.library import library
from dali_feed.records.extents import Extents

pytestmark = pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")

PLUGIN = """
int calls;
int conf_init(void *conf, void **opaque, char *said, unsigned long size) {
    (void)conf, (void)opaque, (void)said, (void)size;
    calls++;
    return 0;
}
"""


@pytest.fixture
def filled(embedded: Kafka) -> Kafka:
    """A topic of two partitions with some records."""
    embedded.publish(embedded.topic, [(value(n), n) for n in range(60)], partitions=2)
    return embedded


def _reader(kafka: Kafka, **config: Any) -> KafkaReader:
    return KafkaTopic(kafka.topic, kafka.servers, config=config).reader()


def _reads(reader: KafkaReader) -> None:
    want = payloads(reader.read(rows((0, 5, 20), (1, 0, 10))))
    assert want == payloads(reader.read(rows((0, 5, 20), (1, 0, 10))))
    assert None not in want


def _read_on(reader: KafkaReader) -> None:
    while True:
        _reads(reader)


def test_plugins_of_the_users_are_loaded_too(filled: Kafka, tmp_path: Path) -> None:
    """`plugin.library.paths` of a source's config: its plugin is asked once for each client, and ours as well."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, made = tmp_path / "theirs.c", tmp_path / "theirs.so"
    source.write_text(PLUGIN)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    reader = _reader(filled, **{"plugin.library.paths": str(made)})
    _reads(reader)
    assert isinstance(reader._way, ByColumn)
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(made)), "calls").value >= 1
    reader.close()


def test_statistics_and_debug_lines_come_while_records_do(filled: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """`stats_cb` and `debug` are served from the client's own queue, between reads of the partitions'."""
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        reader = _reader(filled, stats_cb=said.append, **{"statistics.interval.ms": 5, "debug": "fetch"})
        while len(said) < 3:
            _reads(reader)
        assert isinstance(reader._way, ByColumn)
    assert any("FETCH" in record.getMessage() for record in caplog.records)
    assert reader.gauges() is not None
    reader.close()


def test_what_a_users_function_raises_ends_the_read_and_not_the_reader(filled: Kafka) -> None:
    """A `stats_cb` that raises: its error comes out of `read`; the next read is whole."""
    calls: list[str] = []

    def once(text: str) -> None:
        calls.append(text)
        if len(calls) == 1:
            msg = "theirs"
            raise LookupError(msg)

    reader = _reader(filled, stats_cb=once, **{"statistics.interval.ms": 5})
    with pytest.raises(LookupError, match="theirs"):
        _read_on(reader)
    _reads(reader)
    reader.close()


def test_a_client_whose_handle_is_not_known_is_read_by_message(filled: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library cannot be named as a plugin (`;` in its path) all is as without it."""
    monkeypatch.setattr(reading, "plugin", lambda _: "/a;b/_native.so")
    reader = _reader(filled)
    _reads(reader)
    assert isinstance(reader._way, ByMessage)
    reader.close()


@pytest.mark.parametrize("option", [{"fetch.min.bytes": -5}, {"no.such.option": 1}, {"ssl.ca.pem": "nonsense"}])
def test_a_client_that_cannot_be_made_is_not_mistaken_for_the_next(filled: Kafka, option: dict[str, Any]) -> None:
    """A wrong option is named; a reader that is made after it in the same thread has the handle of its own client."""
    secured = {"security.protocol": "ssl"} if "ssl.ca.pem" in option else {}
    with pytest.raises(ConfigError, match="must hold options of librdkafka"):
        _reader(filled, **option, **secured).read(Extents.one(0, 0, 1))
    first, second = _reader(filled), _reader(filled)
    for _ in range(2):
        _reads(first)
        _reads(second)
    assert isinstance(first._way, ByColumn)
    assert isinstance(second._way, ByColumn)
    assert first._way._handle != second._way._handle
    first.close()
    _reads(second)
    second.close()


def test_a_partition_that_is_not_there_is_the_same_error(filled: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """By column and by message, word for word; and the reader reads on."""
    said = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr("dali_feed.external_sources.kafka.reader.by_column", lambda _: False)
        reader = KafkaTopic(filled.topic, filled.servers, timeout=3).reader()
        with pytest.raises(Exception) as caught:
            reader.read(Extents.one(7, 0, 5))
        said.append((type(caught.value), str(caught.value)))
        _reads(reader)
        reader.close()
    assert said[0] == said[1]
