"""The iterators with DALI's names: what they give, how long they are, and where they go on."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.broker.handle import Kafka
from kit.dali_pipelines import CPU, augmented, plain
from kit.images import broken_png, jpeg, labelled, truncated_jpeg
from kit.inside import arguments as torch_arguments
from nvidia.dali import fn, pipeline_def, types

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.dali import DALIClassificationIterator, DALIGenericIterator, LastBatchPolicy
from dali_feed.errors import ClosedError, ConfigError, StateError
from dali_feed.external_sources import DeadLetterFolder, FileList, KafkaTopic
from dali_feed.testing import Message, ScriptedSource

ANY = BadRecords(limit=None)
FILL, DROP, PARTIAL = LastBatchPolicy.FILL, LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL
Seen = tuple[list[int], str]


def source(count: int = 22, bad: tuple[int, ...] = ()) -> ScriptedSource:
    """JPEGs of several sizes with their number as the label; those in `bad` cannot be decoded."""
    items: list[Any] = labelled(count, sizes=True)
    for n in bad:
        items[n] = (truncated_jpeg() if n % 2 else broken_png(), n)
    return ScriptedSource(items)


def seen(data: list[dict[str, torch.Tensor]]) -> Seen:
    """Labels and a hash of the pixels of an item."""
    (batch,) = data
    return batch["label"].flatten().tolist(), hashlib.sha256(batch["data"].numpy().tobytes()).hexdigest()


def loop(pipeline: Any = plain, count: int = 22, *, bad: tuple[int, ...] = (), **options: Any) -> Any:
    """An iterator over `source`."""
    options = {"last_batch_policy": PARTIAL, "bad": ANY} | options
    return DALIClassificationIterator(pipeline, source(count, bad), **options)


def resized(images: Any, draws: Any) -> Any:
    """The graph of `plain` for a DataLoader."""
    return fn.resize(images, size=[16, 16])


@pytest.mark.parametrize("shuffle", [False, True])
def test_it_gives_what_a_dataloader_gives(shuffle: bool) -> None:
    """Equal images and labels in equal order, beside the DataLoader whose graph function does the same."""
    wanted = DataLoader(source(), 4, shuffle=shuffle, transform=resized, device="cpu", seed=3)
    with loop(shuffle=shuffle, seed=3) as found, wanted:
        for _ in range(2):
            for data, (images, labels) in zip(found, wanted, strict=True):
                assert list(data[0]) == ["data", "label"]
                assert torch.equal(data[0]["data"], images)
                assert torch.equal(data[0]["label"].flatten().long(), labels)


def test_labels_come_as_from_a_file_reader() -> None:
    """int32 in shape (1,) where the graph says nothing; the declared type and rank where it does."""
    with loop() as found:
        assert (found.next()[0]["label"].dtype, found.next()[0]["label"].shape) == (torch.int32, (4, 1))

    @pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
    def declared() -> Any:
        image = fn.decoders.image(fn.external_source(name="image", dtype=types.UINT8, ndim=1))
        return fn.resize(image, size=[8, 8]), fn.external_source(name="label", dtype=types.INT64, ndim=0)

    with loop(declared) as found:
        label = next(found)[0]["label"]
        assert (label.dtype, label.tolist()) == (torch.int64, [0, 1, 2, 3])


def test_outputs_that_are_kept_are_not_written_over() -> None:
    """Items of an epoch stay what they were while later ones come."""
    with loop() as found:
        kept = list(found)
        before = [seen(data) for data in kept]
        assert [seen(data) for data in found] == before  # not shuffled: the same again
        assert [seen(data) for data in kept] == before


def test_outputs_are_named_by_the_map() -> None:
    """As many outputs as the graph has, with or without the labels, under the names given."""

    @pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
    def three() -> Any:
        payloads = fn.external_source(name="image")
        images = fn.resize(fn.decoders.image(payloads), size=[8, 8])
        return images, fn.reductions.mean(images, axes=[0, 1]), fn.peek_image_shape(payloads)

    with DALIGenericIterator([three], ["a", "b", "c"], source(), last_batch_policy=PARTIAL) as found:
        (data,) = next(found)
    assert {name: tuple(rows.shape) for name, rows in data.items()} == {"a": (4, 8, 8, 3), "b": (4, 3), "c": (4, 3)}
    assert data["c"][:, :2].tolist() == [[16 + n % 4 * 8, 16 + n % 5 * 8] for n in range(4)]


@pytest.mark.parametrize("given", [plain, [plain], plain(batch_size=2), lambda: plain(num_threads=1)])
def test_pipelines_are_given_in_every_way(given: Any) -> None:
    """A function, a list of one, a Pipeline that is not built, any function that gives one: its own settings hold."""
    with loop(given) as found:
        batches = [seen(data)[0] for data in found]
    step = found.batch_size
    assert step in (2, 4)
    assert batches == [list(range(22))[at : at + step] for at in range(0, 22, step)]


def lengths() -> Iterator[Any]:
    """Each pair of a policy, a number of records and a way to begin again; all of the three are long."""
    resets = enumerate([False, True, "yes", "no", None])
    kinds = itertools.product(enumerate([FILL, DROP, PARTIAL]), enumerate([8, 10, 3]), resets)
    for (a, policy), (b, count), (c, auto_reset) in kinds:
        yield pytest.param(policy, count, auto_reset, marks=[pytest.mark.long] if (a + b + c) % 3 else [])


@pytest.mark.parametrize(("policy", "count", "auto_reset"), [*lengths()])
def test_lengths_and_last_batches(policy: LastBatchPolicy, count: int, auto_reset: Any) -> None:
    """len() is what comes, in each of two epochs and in their middle; the last batch is filled, left out or smaller."""
    full, rest = divmod(count, 4)
    line = list(range(count))
    wanted = [line[at : at + 4] for at in range(0, count, 4)]
    if rest and policy is FILL:
        wanted[-1] += [line[-1]] * (4 - rest)
    elif rest and policy is DROP:
        wanted.pop()
    with loop(count=count, last_batch_policy=policy, auto_reset=auto_reset) as found:
        assert len(found) == len(wanted) == full + (rest > 0 and policy is not DROP)
        assert found.size == sum(map(len, wanted))
        if not wanted:
            with pytest.raises(ConfigError, match="last_batch_policy: DROP leaves out a batch that is not full"):
                next(found)
        for _ in range(2 if wanted else 0):
            got = []
            for data in found:
                got.append(seen(data)[0])
                assert data[0]["data"].shape == (len(got[-1]), 16, 16, 3)
                assert len(found) == len(wanted)
            assert got == wanted
            found.reset()


def test_a_filled_batch_repeats_its_last_sample() -> None:
    """Pixels and label."""
    with loop(count=6, last_batch_policy=FILL) as found:
        *_, last = found
    images = last[0]["data"]
    assert torch.equal(images[1], images[2])
    assert torch.equal(images[1], images[3])
    assert not torch.equal(images[0], images[1])


def test_dalis_own_policies_are_taken() -> None:
    """A script may go on importing LastBatchPolicy from DALI, and use its older argument."""
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy as Dalis

    assert [policy.name for policy in Dalis] == [policy.name for policy in LastBatchPolicy]
    for options in ({"last_batch_policy": Dalis.DROP}, {"last_batch_policy": DROP}):
        with loop(**options) as found:
            assert len(found) == 5
    with loop(fill_last_batch=True) as filled, loop(fill_last_batch=False) as partial:
        assert (filled.size, partial.size) == (24, 22)


def test_an_epoch_that_is_over_waits_for_a_reset() -> None:
    """Without auto_reset next() goes on to say so; with it the next epoch follows."""
    with loop(count=8) as found:
        assert len(list(found)) == 2
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(found)
        assert found.epoch == 1
        found.reset()
        found.reset()
        next(found)
        assert found.epoch == 1
    with loop(count=8, auto_reset=True) as found:
        ends = 0
        for _ in range(6):
            try:
                next(found)
            except StopIteration:
                ends += 1
        assert (ends, found.epoch) == (2, 2)


def test_a_reset_in_the_middle_begins_the_next_epoch() -> None:
    """reset(), or another `for`, leaves an epoch; the state stands at the next one's beginning at once."""
    with loop(shuffle=True) as found, loop(shuffle=True) as whole:
        epochs = [[seen(data) for data in whole] for _ in range(3)]
        next(found)
        found.reset()
        assert (found.state_dict()["epoch"], found.state_dict()["consumed"]) == (1, 0)
        assert [seen(next(found)), seen(next(found))] == epochs[1][:2]
        assert [seen(data) for data in found] == epochs[2]
        found.set_epoch(1)
        assert [seen(data) for data in found] == epochs[1]


@pytest.mark.parametrize("policy", [FILL, DROP])
def test_it_resumes_anywhere_bit_for_bit(policy: LastBatchPolicy) -> None:
    """After each batch of two epochs a new iterator goes on with the same bits: order, DALI's draws, replacements."""
    options: dict[str, Any] = {"shuffle": True, "seed": 7, "bad": ANY, "last_batch_policy": policy}
    with DALIClassificationIterator(augmented, source(22, (4, 9, 10)), **options) as whole:
        states, batches = [whole.state_dict()], []
        for _ in range(2):
            for data in whole:
                batches.append(seen(data))
                states.append(whole.state_dict())
    assert len(batches) == 2 * len(whole)
    assert len({pixels for _, pixels in batches}) == len(batches)
    for at in range(0, len(batches), 3):
        with DALIClassificationIterator(augmented, source(22, (4, 9, 10)), **options) as again:
            again.load_state_dict(states[at])
            rest = [seen(data) for data in again]
            rest += [seen(data) for data in again] if at <= len(whole) else []  # a pass that was at its end is empty
        assert rest == batches[at:], at


def test_augmentation_follows_seed_and_epoch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another seed or epoch draws otherwise; threads and depth do not matter, nor does the seed of the pipeline."""

    def first(pipeline: Any = augmented, **options: Any) -> list[Seen]:
        with loop(pipeline, **options) as found:
            return [seen(data) for data in found]

    monkeypatch.setattr(torch_arguments, "_warned", set())
    base = first(seed=1)
    assert first(seed=1, tuning=Tuning(threads=1, prefetch=4)) == base
    assert first(augmented(num_threads=3, prefetch_queue_depth=1), seed=1) == base
    with pytest.warns(UserWarning, match="the pipeline's seed has no effect"):
        assert first(augmented(seed=5), seed=1) == base
    assert all(a[1] != b[1] for a, b in zip(first(seed=2), base, strict=True))
    with loop(augmented, seed=1) as found:
        list(found)
        assert all(seen(a)[1] != b[1] for a, b in zip(found, base, strict=True))


def test_a_bad_record_costs_one_slot() -> None:
    """Screened or refused by the decoder, it is replaced with image and label of the next; all others stay."""
    with loop(bad=()) as clean, loop(bad=(5, 8)) as found:
        wanted = [(label, image) for data in clean for label, image in zip(*rows(data), strict=True)]
        got = [(label, image) for data in found for label, image in zip(*rows(data), strict=True)]
        assert found.stats().bad == 2
    expected = [n + 1 if n in (5, 8) else n for n in range(22)]
    assert [label for label, _ in got] == expected
    assert all(np.array_equal(image, wanted[n][1]) for (_, image), n in zip(got, expected, strict=True))


def rows(data: Any) -> tuple[list[int], list[Any]]:
    """Labels and images of an item."""
    return data[0]["label"].flatten().tolist(), list(data[0]["data"].numpy())


def test_bad_records_become_dead_letters(tmp_path: Path) -> None:
    """Before the state says that their batch was handed over."""
    bad = BadRecords(limit=None, dead_letter=DeadLetterFolder(tmp_path))
    with DALIClassificationIterator(plain, source(22, (5,)), bad=bad, last_batch_policy=PARTIAL) as found:
        for _ in range(2):
            next(found)
        found.state_dict()
        assert any(path.is_file() for path in tmp_path.rglob("*"))


def test_ranks_share_each_batch_and_have_equally_many() -> None:
    """Two ranks hold all samples between them, and another world size goes on where they stood."""
    parts = [loop(count=21, rank=rank, world_size=2, lanes=2, shuffle=True) for rank in range(2)]
    firsts = [[seen(next(part))[0] for _ in range(2)] for part in parts]
    assert len(parts[0]) == len(parts[1]) == 3
    state = parts[0].state_dict()
    with loop(plain(batch_size=8), count=21, lanes=2, shuffle=True) as one:
        one.load_state_dict(state)
        rest = [n for data in one for n in seen(data)[0]]
    for part in parts:
        part.close()
    assert set(rest) | {n for first in firsts for batch in first for n in batch} == set(range(21))


@pytest.mark.parametrize("shuffle", [True, Shuffle(4, 2)], ids=["single", "runs"])
@pytest.mark.parametrize(("count", "lanes"), [(64, None), (62, 6), (7, 3)])
def test_ranks_have_each_sample_once_where_batches_may_be_smaller(shuffle: Any, count: int, lanes: int | None) -> None:
    """As DALI's shards, with as many batches on each rank; FILL repeats some."""
    options: dict[str, Any] = {"count": count, "shuffle": shuffle, "lanes": lanes, "world_size": 3}
    given, lengths = list[int](), set[int]()
    for rank in range(3):
        with loop(rank=rank, **options) as found:
            batches = [data[0]["label"].flatten().tolist() for data in found]
            assert found.size == sum(map(len, batches))
            lengths |= {len(batches), len(found)}
        given += [label for batch in batches for label in batch]
    assert len(lengths) == 1
    assert sorted(given) == list(range(count))


def test_dalis_checkpoints_are_refused_by_name() -> None:
    """A pipeline that is to go on from one, and what would give one; where they are only made possible one warning."""
    with pytest.raises(ConfigError, match=r"checkpoint= is of DALI's own iterator; state_dict\(\)"):
        loop(plain(checkpoint=b"x"))
    with pytest.warns(UserWarning, match="enable_checkpointing has no effect here: state_dict"):
        found = loop(plain(enable_checkpointing=True))
    with found, pytest.raises(ConfigError, match=r"checkpoints\(\): state_dict\(\)"):
        found.checkpoints()


def test_a_state_of_another_run_is_refused() -> None:
    """As in the DataLoader, and the pass under way goes on."""
    with loop(seed=1) as found, loop(seed=2) as other:
        next(found)
        with pytest.raises(StateError, match="seed"):
            found.load_state_dict(other.state_dict())
        assert seen(next(found))[0] == [4, 5, 6, 7]


def test_a_dataloaders_state_is_taken() -> None:
    """Both count the same: who changes from one to the other goes on in the middle of an epoch."""
    with DataLoader(source(), 4, shuffle=True, transform=resized, device="cpu") as loader:
        images = [batch[0] for _, batch in zip(range(2), loader, strict=False)]
        state = loader.state_dict()
        rest = [batch[0] for batch in _rest(loader, state)]
    with loop(shuffle=True) as found:
        found.load_state_dict(state)
        assert len(images) == 2
        assert all(torch.equal(a, b[0]["data"]) for a, b in zip(rest, found, strict=True))


def _rest(loader: DataLoader, state: Any) -> Any:
    loader.load_state_dict(state)
    return iter(loader)


def test_closed_is_closed() -> None:
    """After close() an item is a ClosedError, not a hang."""
    found = loop()
    next(found)
    found.close()
    found.close()
    with pytest.raises(ClosedError):
        next(found)


def test_fields_of_any_kind_reach_the_graph(tmp_path: Path) -> None:
    """FileList's paths, labels and a folder per class: what the source has is what the graph may name."""
    for n in range(6):
        (tmp_path / f"class{n % 2}").mkdir(exist_ok=True)
        (tmp_path / f"class{n % 2}" / f"{n}.jpg").write_bytes(jpeg(n))
    with DALIClassificationIterator(plain, FileList.from_folder(tmp_path), last_batch_policy=PARTIAL) as found:
        assert [label for data in found for label in seen(data)[0]] == [0, 0, 0, 1, 1, 1]


def test_a_topic_feeds_a_pipeline_and_resumes(embedded: Kafka) -> None:
    """From Kafka, stopped in the middle and gone on with: the same bits."""
    topic = embedded.create(embedded.topic, 2)
    embedded.publish(topic, [Message(jpeg(n), headers=(("label", b"%d" % n),), partition=n % 2) for n in range(20)])
    options: dict[str, Any] = {"shuffle": True, "last_batch_policy": PARTIAL}
    with DALIClassificationIterator(augmented, KafkaTopic(topic, embedded.servers), **options) as whole:
        wanted = [seen(next(whole)) for _ in range(2)]
        state = whole.state_dict()
        wanted += [seen(next(whole)) for _ in range(3)]
    with DALIClassificationIterator(augmented, KafkaTopic(topic, embedded.servers), **options) as again:
        again.load_state_dict(state)
        assert [seen(data) for data in again] == wanted[2:]
    assert sorted(n for labels, _ in wanted for n in labels) == list(range(20))
