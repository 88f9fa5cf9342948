"""A stream's batches: their size and pace, bad records, idle ones; what torch's arguments mean there."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from kit.images import bad_tables, jpeg
from kit.inside import Corrupt, Gap, Item, Pace, Stall
from kit.limits import LONG
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode, Tuning
from dali_feed.columns import Array, Image, Number, Text
from dali_feed.errors import BadRecordLimitError, ClosedError, ConfigError, WaitError
from dali_feed.external_sources import DeadLetterFolder
from dali_feed.testing import ScriptedStream

QUICK = Tuning(threads=1)
FLOATS = v2.Compose([v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True)])


@contextlib.contextmanager
def loading(source: ScriptedStream, batch_size: int = 4, **options: Any) -> Iterator[Any]:
    """A loader on the CPU, closed at the end."""
    options = {"device": "cpu", "tuning": QUICK, "info": True, "timeout": 60, **options}
    with DataLoader(source, batch_size, **options) as loader:
        yield loader


def records(first: int, stop: int) -> list[tuple[bytes, int]]:
    """Pictures with their numbers as labels."""
    return [(jpeg(n), n) for n in range(first, stop)]


def told(batches: Iterator[Any], what: str) -> tuple[list[int], str]:
    """The labels that come until a WaitError has `what` in it, and that."""
    labels: list[int] = []
    ends = time.monotonic() + LONG
    while time.monotonic() < ends:
        try:
            labels += next(batches)[1].tolist()
        except WaitError as error:
            if what in str(error):
                return labels, str(error)
    raise AssertionError(what)


def test_full_batches_come_at_once_and_the_rest_when_it_is_full() -> None:
    """Without a timeout a batch is `batch_size` records; what is left waits for those that make it full."""
    source = ScriptedStream(records(0, 10))
    with loading(source) as loader:
        batches = iter(loader)
        assert [next(batches)[1].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        source.append(0, *records(10, 12))
        images, labels, info = next(batches)
        assert (images.shape, labels.tolist(), info.where[3]) == ((4, 3, 16, 16), [8, 9, 10, 11], "scripted[0]@11")
        assert loader.stats().samples == 12


def test_a_batch_waits_for_the_timeout_and_no_longer() -> None:
    """With fewer records than fill it, a batch is handed over after the timeout."""
    with loading(ScriptedStream(records(0, 3), pace=Pace(timeout=0.05))) as loader:
        assert next(iter(loader))[1].tolist() == [0, 1, 2]


def test_bytes_fill_a_batch() -> None:
    """Payloads of at most so many bytes; a record that is larger by itself comes alone."""
    one = len(jpeg(0))
    sizes = [(jpeg(0), 0), (jpeg(0), 1), (jpeg(0), 2), (jpeg(0, 96, 96), 3), (jpeg(0), 4)]
    with loading(ScriptedStream(sizes, pace=Pace(timeout=0.05, size=2 * one)), transform=FLOATS) as loader:
        batches = iter(loader)
        assert [next(batches)[1].tolist() for _ in range(4)] == [[0, 1], [2], [3], [4]]


def test_an_idle_stream_gives_empty_batches() -> None:
    """No rows, with the dtypes and shapes of the others, before any record and after; they are not counted."""
    source = ScriptedStream([(jpeg(0), 0)], [], pace=Pace(timeout=0.01, idle=0.02))
    with loading(source, rank=1, world_size=2, transform=FLOATS) as loader:
        batches = iter(loader)
        images, labels, info = next(batches)
        assert (images.shape, images.dtype, labels.shape, labels.dtype) == (
            (0, 3, 8, 8),
            torch.float32,
            (0,),
            torch.int64,
        )
        assert (len(info.ids), info.where) == (0, ())
        source.append(1, (jpeg(1), 1))
        while not len(labels):
            images, labels, _ = next(batches)
        assert (images.shape, labels.tolist()) == ((1, 3, 8, 8), [1])
        assert next(batches)[0].shape == (0, 3, 8, 8)
        assert (loader.stats().batches, loader.stats().samples) == (1, 1)


def test_columns_mixing_and_functions_of_an_empty_batch() -> None:
    """Whatever is asked of a batch, an empty one has it with no rows."""
    source = ScriptedStream([(jpeg(0), 0)], [], pace=Pace(timeout=0.01, idle=0.01))
    columns = {"image": Image("value", FLOATS), "label": Number("label"), "raw": Array("value", "uint8", (9,))}
    with loading(source, columns=columns, rank=1, world_size=2, info=False) as loader:
        empty = next(iter(loader))
        assert {k: (v.shape, v.dtype) for k, v in empty.items()} == {
            "image": ((0, 3, 8, 8), torch.float32),
            "label": ((0,), torch.int64),
            "raw": ((0, 9), torch.uint8),
        }
    mixing: Any = v2.MixUp(num_classes=5)
    with loading(source, collate_fn=mixing, transform=FLOATS, rank=1, world_size=2, info=False) as loader:
        assert [each.shape for each in next(iter(loader))] == [(0, 3, 8, 8), (0, 5)]
    doubled = v2.Compose([FLOATS, v2.Lambda(lambda image: image * 2)])
    with loading(source, transform=doubled, rank=1, world_size=2, info=False) as loader:
        assert next(iter(loader))[0].shape == (0, 3, 8, 8)
    with loading(source, collate_fn=len, rank=1, world_size=2, info=False) as loader:
        assert next(iter(loader)) == 0


def test_columns_of_a_stream() -> None:
    """A dict per batch; a member that cannot be read makes a bad record; a shape is told by the first record."""
    source = ScriptedStream([(b"one", 1), (b"two", 2), (b"\xff\xff\xff", 3), (b"for", 4)], pace=Pace(timeout=0.05))
    columns = {"text": Text("value"), "label": Number("label"), "raw": Array("value", "uint8")}
    with loading(source, columns=columns) as loader:
        batch, info = next(iter(loader))
        assert (batch["text"], batch["label"].tolist()) == (["one", "two", "for", "for"], [1, 2, 4, 4])
        assert (batch["raw"].shape, info.ok.tolist()) == ((4, 3), [True, True, False, True])


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_a_bad_record_costs_its_slot(engine: str, tmp_path: Any) -> None:
    """Its slot goes to the next good record of its batch, from the first again; it is counted and kept."""
    letters = DeadLetterFolder(tmp_path)
    bad: list[Item] = [Corrupt(), (jpeg(1), 1), Gap(), (bad_tables(), 2), Corrupt("torn"), (jpeg(4), 4), (jpeg(5), 5)]
    source = ScriptedStream([*bad, *records(6, 8)])
    with loading(
        source, decode=Decode(engine=engine), transform=FLOATS, bad=BadRecords(limit=None, dead_letter=letters)
    ) as loader:
        batches = iter(loader)
        _, labels, info = next(batches)
        assert (labels.tolist(), info.ok.tolist()) == ([1, 1, 1, 1], [False, True, False, False])
        assert next(batches)[1].tolist() == [4, 5, 6, 7]
        loader.state_dict()
        assert sorted(letter.position for letter in letters.read()) == [0, 3, 4]
        assert loader.stats().bad == 3


def test_a_batch_without_a_good_record_is_passed_over() -> None:
    """Its records are counted, found in the header or by the decoder; the next batch's position is behind them."""
    source = ScriptedStream([Corrupt(), Corrupt(), (bad_tables(), 2), (bad_tables(), 3), *records(4, 6)])
    with loading(source, 2, transform=FLOATS, bad=BadRecords(limit=None)) as loader:
        assert next(iter(loader))[1].tolist() == [4, 5]
        assert loader.stats().bad == 4
        assert loader.state_dict()["stream"]["position"] == {"0": 6}


def test_a_wait_says_that_all_that_came_was_bad(caplog: pytest.LogCaptureFixture) -> None:
    """A stream that gives bad records alone says so, in the log and in a WaitError: how many, and the last reason."""
    source = ScriptedStream([*records(0, 1), Corrupt("torn"), Corrupt("cut"), Corrupt("late")])
    some = BadRecords(limit=10)
    with loading(source, 1, bad=some, timeout=0.05, tuning=Tuning(threads=1, watchdog=0.01)) as loader:
        batches = iter(loader)
        labels, said = told(batches, "all 3")
        assert labels == [0]
        assert "all 3 records that were read since the last batch are bad" in said
        assert "scripted[0]@3: late" in said
        assert [
            r for r in caplog.records if r.levelname == "WARNING" and r.getMessage().endswith("scripted[0]@3: late")
        ]
        source.append(0, *records(4, 5), Corrupt("again"))
        labels, said = told(batches, "again")
        assert labels == [4]
        assert "all 1 records that were read since the last batch are bad" in said


def test_a_wait_says_how_much_of_a_batch_is_there() -> None:
    """A batch without a timeout that is not full says how many of its records have come."""
    with loading(ScriptedStream(records(0, 3)), timeout=0.05) as loader:
        assert "3 of the 4 records of a batch are there" in told(iter(loader), "3 of")[1]


def test_the_limit_is_of_a_sliding_number_of_records() -> None:
    """More bad ones than the limit allows in any `window` records end the run, behind the batches before."""
    source = ScriptedStream([*records(0, 2), Corrupt(), (jpeg(3), 3), (jpeg(4), 4), Corrupt(), *records(6, 8)])
    with loading(source, 2, bad=BadRecords(limit=Fraction(1, 4), window=4, floor=1)) as loader:
        batches = iter(loader)
        assert [next(batches)[1].tolist() for _ in range(2)] == [[0, 1], [3, 3]]
        with pytest.raises(BadRecordLimitError, match="any 4 successive"):
            next(batches)


def test_a_new_iterator_goes_on_and_ends_the_one_before() -> None:
    """A loop that is left loses nothing that had been read ahead."""
    with loading(ScriptedStream(records(0, 12))) as loader:
        first = iter(loader)
        assert next(first)[1].tolist() == [0, 1, 2, 3]
        second = iter(loader)
        assert next(second)[1].tolist() == [4, 5, 6, 7]
        with pytest.raises(ClosedError, match="newer iterator"):
            next(first)


def test_close_ends_a_stalled_stream_and_a_slow_loop() -> None:
    """In whatever state it is: waiting for a record, for room, or never begun."""
    stalled = ScriptedStream([Stall(threading.Event(), then=(jpeg(0), 0))])
    loader = DataLoader(stalled, 2, device="cpu", tuning=QUICK, timeout=0.2)
    with pytest.raises(TimeoutError, match="the last record came"):
        next(iter(loader))
    loader.close()
    loader.close()
    with loading(ScriptedStream(records(0, 200)), 2) as loader:
        next(iter(loader))
    with loading(stalled):
        pass
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dali_feed-live")]


def test_what_a_stream_does_not_have() -> None:
    """No length, no order to choose; what has no effect warns once."""
    source = ScriptedStream(records(0, 4))
    wrong: list[dict[str, Any]] = [{"shuffle": True}, {"sampler": [0]}, {"batch_size": None}]
    for option in wrong:
        with pytest.raises(ConfigError):
            DataLoader(source, **option)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with loading(source, drop_last=True, lanes=2) as loader:
            loader.set_epoch(1)
            for count in (len, lambda loader: loader.batches_left):
                with pytest.raises(TypeError, match="does not end"):
                    count(loader)
            assert loader.epoch == 0
            assert "up to 4 per rank" in loader.describe()
    said = " ".join(str(each.message) for each in warned)
    assert all(name in said for name in ("drop_last", "lanes", "set_epoch"))
