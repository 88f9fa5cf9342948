"""ScriptedSource: faults as items in the data."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from kit.blocks import rows, taken
from kit.inside import GARBAGE, Abort, Corrupt, Extents, Gap, SlabPool, Stall, open_reader, unpack_ids

from dali_feed.columns import Number
from dali_feed.errors import ClosedError, ConfigError, SourceError, StateError
from dali_feed.testing import ScriptedSource, ScriptedStream


def test_items_are_dealt_in_contiguous_parts_and_read_back() -> None:
    """Payloads, labels, ids, gaps and known faults stand in the rows of their positions."""
    source = ScriptedSource(
        [b"a", (b"b", 7), Corrupt(), Gap(), Corrupt("torn", b"t"), b"f", b"g"], partitions=2, first=10
    )
    snapshot = source.snapshot()
    assert snapshot.starts.tolist() == [10, 10]
    assert snapshot.stops.tolist() == [13, 14]
    extents, lease = Extents(np.array([1, 0]), np.array([10, 10]), np.array([14, 13])), SlabPool().lease()
    block = open_reader(source, ["value", "label"]).read(extents, lease)
    payloads = [p if p is None else bytes(p) for p in block.values["value"]]
    assert payloads == [None, b"t", b"f", b"g", b"a", b"b", GARBAGE]
    assert block.values["label"].tolist() == [-1, -1, -1, -1, -1, 7, -1]
    assert {row: fault.reason for row, fault in block.faults.items()} == {1: "torn"}
    assert block.absent_rows() == [0]
    assert [c.tolist() for c in unpack_ids(block.ids)] == [[1] * 4 + [0] * 3, [10, 11, 12, 13, 10, 11, 12]]
    assert source.where(1, 12) == "scripted[1]@12"
    assert source.reads == [(1, 10, 14), (0, 10, 13)]
    assert source.bytes_read == sum(len(p) for p in payloads if p)


def test_without_labels_there_is_no_label_column() -> None:
    """A source of bare bytes has no labels, and is refused a reader of them."""
    source = ScriptedSource([b"a", Gap()])
    assert list(source.preset) == ["image"]
    assert rows(source) == [{"image": b"a"}, {}]
    with pytest.raises(ConfigError, match="no member 'label'"):
        source.reader(("value", "label"))
    assert list(ScriptedSource([Stall(threading.Event(), then=(b"a", 1))]).preset) == ["image", "label"]


def test_a_stall_waits_for_its_event() -> None:
    """The read is under way and not done until the event is set; then it gives what follows."""
    event = threading.Event()
    source = ScriptedSource([b"a", Stall(event, then=(b"late", 3)), Stall(event)])
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.extend(rows(source)))
    thread.start()
    while not source.reads:
        pass
    assert not done
    event.set()
    thread.join()
    assert done == [{"image": b"a", "label": -1}, {"image": b"late", "label": 3}, {}]


def test_a_stop_ends_a_stall() -> None:
    """The waiting read raises ClosedError with its coordinates."""
    stop, errors = threading.Event(), list[str]()
    source = ScriptedSource([b"a", Stall(threading.Event())])

    def read() -> None:
        try:
            rows(source, stop=stop)
        except ClosedError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    stop.set()
    thread.join()
    assert len(errors) == 1
    assert "was stopped" in errors[0]


def test_an_abort_raises_what_it_says() -> None:
    """Its own exception, or a SourceError with the coordinates; the rest stays readable."""
    lease = SlabPool().lease()
    source = ScriptedSource([b"a", Abort(), Abort(OSError("torn cable")), b"d"])
    reader = source.reader(["value"])
    with pytest.raises(SourceError, match=r"scripted\[0\]@1"):
        reader.read(Extents.one(0, 0, 2), lease)
    with pytest.raises(OSError, match="torn cable"):
        reader.read(Extents.one(0, 2, 3), lease)
    assert taken(reader.read(Extents.one(0, 3, 4), lease).values["value"][0]) == b"d"
    reader.close()
    with pytest.raises(ClosedError):
        reader.read(Extents.one(0, 3, 4), lease)


def test_the_snapshot_passes_its_options_on_and_knows_its_items() -> None:
    """Extent, access and order are as asked; the fingerprint is of items, labels, faults and partitions."""
    snapshot = ScriptedSource([b"abc"] * 4, extent=3, random_access=False, interleaved=True, name="s").snapshot()
    assert (snapshot.extent, snapshot.random_access, snapshot.interleaved) == (3, False, True)
    assert (snapshot.record_bytes, snapshot.names) == (3, ("s[0]",))
    sources = [
        ScriptedSource([b"a", b"b"]),
        ScriptedSource([b"ab"]),
        ScriptedSource([b"b", b"a"]),
        ScriptedSource([(b"a", 1), b"b"]),
        ScriptedSource([Gap(), b"b"]),
        ScriptedSource([Corrupt(payload=b"a"), b"b"]),
        ScriptedSource([b"a", b"b"], partitions=2),
        ScriptedSource([b"a", b"b"], first=1),
    ]
    assert len({source.snapshot().fingerprint for source in sources}) == len(sources)
    assert sources[0].snapshot().fingerprint == ScriptedSource([b"a", b"b"], name="other").snapshot().fingerprint


def test_wrong_arguments_are_refused() -> None:
    """Items of another type, no partition, a pin, an extent beyond the items."""
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([3], {}),
        ([("a", 1)], {}),
        ([b"a"], {"partitions": 0}),
        ([b"a"], {"extent": 0}),
    ]
    for items, options in cases:
        with pytest.raises(ConfigError, match="ScriptedSource"):
            ScriptedSource(items, **options)
    source = ScriptedSource([b"a"], first=5)
    with pytest.raises(ConfigError, match="pin"):
        source.snapshot({"a": 1})
    for run in ((0, 4, 5), (0, 5, 7), (1, 5, 6)):
        with pytest.raises(ConfigError, match="inside the snapshot"):
            rows(source, extents=Extents.one(*run))


ITEMS = ([(b"a", 1), (b"b", 2)], [(b"c", 3)])


def test_members_are_value_and_label_alone() -> None:
    """A column of anything else is refused by the stream's name."""
    stream = ScriptedStream(*ITEMS, name="s")
    assert [member.name for member in stream.members()] == ["value", "label"]
    assert Number("label").member in stream.preset
    with pytest.raises(ConfigError, match="s: its records have the members 'value' and 'label'; found 'txt'"):
        stream.live(None, ("txt",))


def test_a_mark_is_of_this_stream_and_of_all_its_partitions() -> None:
    """Another stream's, one of too few partitions, and two of one rank are refused."""
    stream = ScriptedStream(*ITEMS, name="s")
    marks = [stream.mark({p: 1}, rank=p, world_size=2) for p in range(2)]
    assert stream.merged(marks)["position"] == {"0": 1, "1": 1}
    with pytest.raises(StateError, match="s: the mark must be of this stream; found 'other'"):
        stream.live(ScriptedStream(*ITEMS, name="other").mark({0: 1, 1: 0}), ("value",))
    with pytest.raises(StateError, match=r"s: the mark must have all partitions of rank 0 of 1; lacks \[1\]"):
        stream.live(marks[0], ("value",))
    with pytest.raises(StateError, match=r"s: marks must be of different ranks; found \[0, 0\]"):
        stream.merged([marks[0], marks[0]])
