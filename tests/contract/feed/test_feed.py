"""The feed: batches that do not depend on how they were made, in order, within the memory given."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import QUICK, Seen, jpeg, labelled, padded, pixels, png, seen
from kit.inside import (
    Abort,
    Batch,
    Block,
    Corrupt,
    Extents,
    Feed,
    Gap,
    Lease,
    Member,
    Reader,
    Snapshot,
    Source,
    Stall,
    leased,
)
from torchvision.transforms import v2

from dali_feed import BadRecords, Shuffle, Tuning
from dali_feed.errors import ConfigError, DaliFeedError, SourceError
from dali_feed.external_sources import FileList
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.usefixtures("each_engine")

CROP = v2.Compose([v2.RandomResizedCrop(16, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])
MIXED = Shuffle(extent=4, window=3)


def _items() -> list[Any]:
    items: list[Any] = labelled(61, sizes=True)
    for n, item in zip((3, 20, 21, 22, 60), (Gap(), Corrupt(), Corrupt("torn"), Gap(), Gap()), strict=True):
        items[n] = item
    return items


def _source(**options: Any) -> ScriptedSource:
    return ScriptedSource(_items(), partitions=3, extent=4, **options)


def _feed(source: Any, batch_size: int, **options: Any) -> Feed:
    options = {
        "transform": CROP, "shuffle": MIXED, "bad": BadRecords(limit=None), "tuning": QUICK, "seed": 7,
    } | options  # fmt: skip
    return Feed(source, batch_size, **options)


def _all(batches: Iterable[Batch]) -> list[Seen]:
    return [seen(batch) for batch in batches]


@pytest.fixture(scope="module")
def reference(each_engine: str) -> list[Seen]:
    """What everything else must equal."""
    with _feed(_source(), 8) as feed:
        return _all(feed)


@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(threads=4, readers=3, prefetch=4),
        Tuning(threads=1, readers=3, prefetch=1, memory=1 << 20),
        Tuning(threads=4, readers=1, prefetch=1),
    ],
)
def test_tuning_never_changes_a_batch(tuning: Tuning, reference: list[Seen]) -> None:
    """Prefetch, decoder threads, readers and memory leave ids, labels, ok and every pixel as they are."""
    with _feed(_source(), 8, tuning=tuning) as feed:
        assert _all(feed) == reference


def test_readers_that_finish_out_of_order_change_nothing(reference: list[Seen]) -> None:
    """A read that ends after those behind it does not change places with them."""
    held = threading.Event()
    items = _items()
    items[30] = Stall(held, then=items[30])
    source = ScriptedSource(items, partitions=3, extent=4)
    with _feed(source, 8, tuning=Tuning(threads=1, readers=3)) as feed:
        batches = iter(feed)
        helper = threading.Timer(0.2, held.set)
        helper.start()
        assert _all(batches) == reference
        helper.join()


def _lanes(batch: Seen, rank: int, world: int, lanes: int) -> dict[int, Seen]:
    """A rank's batch cut into its lanes' shares."""
    ids, labels, ok, pixels = batch
    mine = range(rank, lanes, world)
    share, image = len(ids) // len(mine), len(pixels) // len(ids)
    return {
        lane: (
            ids[k * share : (k + 1) * share],
            labels[k * share : (k + 1) * share],
            ok[k * share : (k + 1) * share],
            pixels[k * share * image : (k + 1) * share * image],
        )
        for k, lane in enumerate(mine)
    }


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_world_size_changes_no_global_batch(drop_last: bool) -> None:
    """With 4 lanes, worlds of 1, 2 and 4 ranks give the same lanes the same samples, and all ranks count alike."""
    found = []
    for world in (1, 2, 4):
        steps: list[dict[int, Seen]] = []
        states = []
        for rank in range(world):
            options = {"rank": rank, "world_size": world, "lanes": 4, "drop_last": drop_last}
            with _feed(_source(), 8 // world, **options) as feed:
                batches = _all(feed)
                assert len(batches) == len(feed) == (7 if drop_last else 8)
                states.append(feed.state_dict())
            for step, batch in enumerate(batches):
                steps += [{}] if step == len(steps) else []
                steps[step] |= _lanes(batch, rank, world, 4)
        assert all(state == states[0] for state in states)
        found.append(steps)
    assert found[0] == found[1] == found[2]


def test_the_batch_size_changes_neither_order_nor_replacements() -> None:
    """Samples, replacements and pixels laid end to end are the same for every batch size."""
    lines = []
    for batch_size in (1, 5, 8, 61):
        with _feed(_source(), batch_size) as feed:
            batches = _all(feed)
            ids = [n for batch in batches for n in batch[0]]
            ok = [good for batch in batches for good in batch[2]]
            lines.append((ids, ok, b"".join(batch[3] for batch in batches)))
    assert all(line == lines[0] for line in lines)
    assert len(lines[0][0]) == 61


def test_epochs_and_seeds_differ() -> None:
    """Each epoch and each seed has its own order, over the same samples."""
    with _feed(_source(), 61) as one, _feed(_source(), 61, seed=8) as other:
        runs = [_all(one)[0], _all(one)[0], _all(other)[0]]
    ids = [run[0] for run in runs]
    assert ids[0] != ids[1] != ids[2] != ids[0]
    good = set(ids[0])
    assert all(set(line) == good for line in ids)


def test_every_good_sample_comes_once() -> None:
    """Slots that are ok hold each good record exactly once; the others are as many as there are holes."""
    with _feed(_source(), 8) as feed:
        batches = _all(feed)
    ok = [n for batch in batches for n, good in zip(batch[0], batch[2], strict=True) if good]
    assert len(ok) == len(set(ok)) == 61 - 5
    assert sum(len(batch[0]) for batch in batches) == 61


def test_labels_and_pixels_belong_to_their_ids(tmp_path: Path) -> None:
    """From files on disk through shuffle and engine, image and label still belong to the id they came from."""
    paths = []
    for n in range(20):
        (tmp_path / f"c{n % 3}").mkdir(exist_ok=True)
        path = tmp_path / f"c{n % 3}" / f"{n:02}.png"
        path.write_bytes(png(n))
        paths.append(path)
    order = sorted(range(20), key=lambda n: paths[n])
    source = FileList.from_folder(str(tmp_path))
    with Feed(source, 6, shuffle=True, tuning=QUICK) as feed:
        count = 0
        for batch in feed:
            images = np.asarray(batch.images)
            for row, sample in enumerate(batch.ids.tolist()):
                n = order[sample & ((1 << 40) - 1)]
                assert batch.fields["label"][row] == n % 3
                assert np.array_equal(images[row].transpose(1, 2, 0), pixels(n))
                count += 1
    assert count == 20


def test_a_batch_that_was_handed_over_keeps_its_pixels() -> None:
    """Batches that the trainer keeps are not written over by later ones."""
    with _feed(_source(), 4) as feed:
        kept = list(feed)
        now = _all(kept)
        list(feed)
        assert _all(kept) == now


def test_an_epoch_smaller_than_a_batch() -> None:
    """One record gives one batch of one, and none with drop_last; several passes work."""
    source = ScriptedSource(labelled(1))
    with Feed(source, 4, tuning=QUICK) as feed:
        assert [len(b) for _ in range(3) for b in feed] == [1, 1, 1]
    with Feed(source, 4, drop_last=True, tuning=QUICK) as feed:
        assert len(feed) == 0
        assert list(feed) == list(feed) == []


def test_a_source_error_comes_after_all_batches_before_it() -> None:
    """An aborted read surfaces in the place of the first batch that needs it, at any prefetch."""
    items = labelled(32)
    items[17] = Abort()
    for prefetch in (1, 4):
        source = ScriptedSource(items, extent=4)
        shuffle = Shuffle(extent=4, window=1)
        with Feed(source, 4, shuffle=shuffle, tuning=Tuning(threads=1, prefetch=prefetch)) as feed:
            clean = ScriptedSource(labelled(32), extent=4)
            with Feed(clean, 4, shuffle=shuffle, tuning=QUICK) as other:
                wanted = _all(other)
            got: list[Seen] = []
            with pytest.raises(SourceError, match=r"scripted\[0\]@17"):
                got.extend(seen(batch) for batch in feed)  # an error leaves what came before
            before = next(n for n, batch in enumerate(wanted) if 17 in batch[0])
            assert len(got) <= before
            assert got == wanted[: len(got)]
            assert feed.state_dict()["consumed"] == 4 * len(got)
        assert leased(feed) == 0


def test_an_engine_error_ends_the_pass_in_its_place() -> None:
    """When a batch fails for no record's fault, none of the batches behind it is handed over in its place."""

    def picky(images: Any, draws: Any) -> Any:
        from nvidia.dali import fn

        return fn.crop(images, crop=(20, 20), out_of_bounds_policy="error")

    items = [(jpeg(n, 24, 24), n) for n in range(24)]
    for n in (8, 9, 10, 11):
        items[n] = (jpeg(n), n)  # 16x16: the whole batch fails in the user's graph
    for prefetch in (1, 2, 4):
        with Feed(ScriptedSource(items), 4, transform=picky, tuning=Tuning(threads=1, prefetch=prefetch)) as feed:
            got: list[list[int]] = []
            with pytest.raises(DaliFeedError, match="crop|Crop|anchor"):
                got.extend(batch.ids.tolist() for batch in feed)
            assert got == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert feed.state_dict()["consumed"] == 8
        assert leased(feed) == 0


class _Odd(Source):
    """A source of a user's own; `act` is what its read does before it reads."""

    def __init__(self, act: Any) -> None:
        self.whole, self.act = ScriptedSource(labelled(16), extent=4), act

    @property
    def preset(self) -> Mapping[str, Any]:
        return self.whole.preset

    def members(self) -> tuple[Member, ...]:
        return self.whole.members()

    def snapshot(self, pin: Any = None) -> Snapshot:
        return self.whole.snapshot(pin)

    def where(self, partition: int, position: int) -> str:
        return self.whole.where(partition, position)

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        inner, act = self.whole.reader(members, stop), self.act

        class Odd(Reader):
            def read(self, extents: Extents, lease: Lease) -> Block:
                block: Block = act(inner, extents, lease)
                return block

            def close(self) -> None:
                inner.close()

        return Odd()


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt("mine"), SystemExit("mine"), StopIteration()])
def test_whatever_a_users_source_raises_is_a_source_error(error: BaseException) -> None:
    """No exception of a user's read is lost or leaves the trainer waiting; it is wrapped and chained."""

    def act(inner: Reader, extents: Extents, lease: Lease) -> Block:
        raise error

    with Feed(_Odd(act), 4, tuning=QUICK) as feed:
        with pytest.raises(SourceError, match=type(error).__name__) as caught:
            next(iter(feed))
        assert caught.value.__cause__ is error


def test_a_closed_source_is_an_error_and_no_silence() -> None:
    """A reader that was closed under the loader raises its ClosedError in the trainer."""

    def act(inner: Reader, extents: Extents, lease: Lease) -> Block:
        inner.close()
        return inner.read(extents, lease)

    with Feed(_Odd(act), 4, tuning=QUICK) as feed, pytest.raises(DaliFeedError, match="this reader is closed"):
        iter(feed).take(30)


def test_a_block_with_rows_missing_shifts_nothing() -> None:
    """A source that gives fewer rows than it was asked for is refused; no record moves to another's place."""

    def act(inner: Reader, extents: Extents, lease: Lease) -> Block:
        block = inner.read(extents, lease)
        fewer = {name: values[1:] for name, values in block.values.items()}
        return dataclasses.replace(block, ids=block.ids[1:], values=fewer)

    with Feed(_Odd(act), 4, tuning=QUICK) as feed, pytest.raises(SourceError, match="one row per position"):
        next(iter(feed))
    assert leased(feed) == 0


def test_memory_stays_within_the_cap() -> None:
    """With room for three windows, twelve of 2 MiB pass through and never hold a byte more than the cap."""
    payload = padded(jpeg(0), 1 << 17)
    source = ScriptedSource([(payload, n) for n in range(192)], extent=16)
    tuning = Tuning(threads=1, readers=2, memory=8 << 20, next_epoch=False)
    with Feed(source, 8, shuffle=Shuffle(extent=16, window=1), tuning=tuning) as feed:
        assert sum(len(batch) for batch in feed) == 192
        assert feed.stats().slab_peak <= tuning.memory_bytes
        assert leased(feed) == 0
        assert feed.stats().bytes_read == 192 << 17


def test_a_window_larger_than_the_memory_is_refused() -> None:
    """The message has the numbers and what to change."""
    source = ScriptedSource([(padded(jpeg(0), 1 << 19), n) for n in range(16)], extent=16)
    with Feed(source, 4, shuffle=Shuffle(extent=16, window=1), tuning=Tuning(memory=1 << 20)) as feed:
        with pytest.raises(ConfigError, match=rf"memory={1 << 20}\b.* 16 records .*memory={8 << 20}\b"):
            iter(feed)
        assert feed.epoch == 0


def test_a_batch_over_the_border_of_a_window_holds_back_nothing() -> None:
    """While the next window's read waits, the batches that lie before the border are handed over, all of them."""
    held = threading.Event()
    items: list[Any] = [(jpeg(0), 0)] * 1040
    window = Shuffle(520, 1)
    with Feed(ScriptedSource(items, extent=520), 100, shuffle=window, lanes=1, tuning=QUICK) as feed:
        last = int(feed.plan.ids(0, 520, 521)[0])
    items[last] = Stall(held, then=(jpeg(0), 0))
    with Feed(ScriptedSource(items, extent=520), 100, shuffle=window, lanes=1, tuning=QUICK) as feed:
        batches = iter(feed)
        for _ in range(5):
            batches.take(30)
        with pytest.raises(TimeoutError):
            batches.take(0.05)
        held.set()
        assert [len(batch) for batch in batches] == [100] * 5 + [40]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_batch_speaks_dlpack(dtype: torch.dtype) -> None:
    """Torch and NumPy take a batch itself, its own memory and not a copy of it."""
    transform = v2.Compose([v2.Resize((8, 8)), v2.ToDtype(dtype, scale=True)])
    with Feed(ScriptedSource(labelled(8)), 4, transform=transform, tuning=QUICK) as feed:
        for batch in feed:
            assert batch.__dlpack_device__() == (1, 0)
            images = torch.utils.dlpack.from_dlpack(batch)
            assert images.dtype == dtype
            assert images.shape == (4, 3, 8, 8)
            if dtype != torch.bfloat16:  # NumPy has none
                assert np.from_dlpack(batch).ctypes.data == images.data_ptr()
