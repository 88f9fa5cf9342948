"""Whole loaders on GPUs that do not forgive: any order of streams, another device, memory that ends, close anywhere."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kernel_cases import KERNELS
from kernels_host import compile_for_host
from kit.augmented import fused_here
from kit.both_loaders import tensors
from kit.images import broken_png, jpeg, png
from kit.kept import Kept
from kit.recipes import MAKERS
from kit.twin import Machine
from kit.twins import twin_of
from nvidia.dali import fn, pipeline_def, types
from torchvision.transforms import v2

from dali_feed import BadRecords, Cache, DataLoader, Decode, Mixing, Tuning
from dali_feed.dali import DALIClassificationIterator
from dali_feed.errors import DaliFeedError
from dali_feed.feed import Feed
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.slow

COUNT, SIZE = 15, 3  # half of these are no whole batches: a cache that keeps them has a part of one
FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
USUAL = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5)])
STILL = v2.Compose([v2.Resize((16, 16)), v2.RandomHorizontalFlip(), *FLOATS])
OPERATIONS = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.RandAugment(), *FLOATS])
CHAINS = v2.Compose([v2.RandomResizedCrop(16), v2.AugMix(), v2.ColorJitter(0.4), *FLOATS])
COLOURS = v2.Compose([v2.RandomResizedCrop(16), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *FLOATS])
KEEPS = Tuning(cache=Cache(device="1MB"))
BOTH = Mixing(0.4, 1.0, classes=COUNT)


def source(bad: int | None = None) -> ScriptedSource:
    """Pictures with labels; one may be broken."""
    items: list[Any] = [(jpeg(n, 24, 30), n) for n in range(COUNT)]
    if bad is not None:
        items[bad] = (broken_png(), bad)
    return ScriptedSource(items)


def own_graph(images: Any, draws: Any) -> Any:
    """A user's."""
    coin = fn.cast(draws.coin(), dtype=types.INT32)
    return fn.crop_mirror_normalize(fn.resize(images, size=[12, 12]), mirror=coin, std=[128.0] * 3)


def collated(samples: list[Any]) -> Any:
    """Labels are left in memory that is not page-locked."""
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def loader(device: str = "cuda", bad: int | None = None, **options: Any) -> Any:
    """Of the pictures, shuffled."""
    chosen: dict[str, Any] = {"shuffle": True, "seed": 1, "transform": USUAL, "bad": BadRecords(limit=None)} | options
    return DataLoader(source(bad), SIZE, device=device, **chosen)


def of_dali(device: str = "cuda", bad: int | None = None) -> Any:
    """DALI's iterator around a pipeline of the user's own."""

    @pipeline_def(batch_size=SIZE, num_threads=2, device_id=int(device.partition(":")[2] or 0))  # type: ignore[untyped-decorator, unused-ignore]
    def pipeline() -> Any:
        payloads, labels = fn.external_source(name="image"), fn.external_source(name="label")
        images = fn.resize(fn.decoders.image(payloads, device="mixed"), size=[12, 12])
        return fn.crop_mirror_normalize(images, std=[128.0] * 3), labels.gpu()

    return DALIClassificationIterator(pipeline, source(bad), seed=1, bad=BadRecords(limit=None))


def way(**options: Any) -> Callable[..., Any]:
    """A loader with these options."""
    return lambda device="cuda", bad=None: loader(device, bad, **options)


WAYS: dict[str, Callable[..., Any]] = {
    "dali": way(decode=Decode(engine="dali")),
    "host": way(decode=Decode(engine="host")),
    "dali, mixed": way(decode=Decode(engine="dali"), collate_fn=BOTH),
    "host, mixed": way(decode=Decode(engine="host"), collate_fn=BOTH),
    "views": way(transform=[USUAL, v2.Compose([v2.RandomResizedCrop(8), *FLOATS])]),
    "colours": way(transform=COLOURS, decode=Decode(engine="dali")),
    "operations": way(transform=[OPERATIONS, CHAINS]),
    "collated": way(collate_fn=collated),
    "kept, dali": way(transform=STILL, decode=Decode(engine="dali"), tuning=KEEPS),
    "kept, host": way(transform=STILL, decode=Decode(engine="host"), tuning=KEEPS),
    "own graph": way(transform=own_graph),
    "own graph, mixed": way(transform=own_graph, collate_fn=BOTH),
    "own pipeline": of_dali,
}
every_way = pytest.mark.parametrize("name", WAYS)


def _compiled(kept: Kept) -> Callable[[str], Any]:
    return lambda name: compile_for_host(kept, name, KERNELS[name].variants)


@pytest.fixture
def play(kept: Kept) -> Callable[..., contextlib.AbstractContextManager[Machine]]:
    """Makes the twin's GPUs."""
    return functools.partial(twin_of, _compiled(kept))


@pytest.fixture(scope="module")
def twice(kept: Kept) -> Callable[[str], list[torch.Tensor]]:
    """What two epochs of a way give, on the host: on GPUs that are always late."""

    @functools.cache
    def of(name: str) -> list[torch.Tensor]:
        with twin_of(_compiled(kept)) as machine:
            wanted = epochs(WAYS[name]())
            nothing_taken(machine)
        return wanted

    return of


@pytest.fixture(scope="module")
def once(twice: Callable[[str], list[torch.Tensor]]) -> Callable[[str], list[torch.Tensor]]:
    """The first of these epochs."""
    return lambda name: twice(name)[: len(twice(name)) // 2]


@pytest.fixture(scope="module")
def calls(kept: Kept) -> Callable[[str], Counter[str]]:
    """How often each call is made for an epoch of a way."""

    @functools.cache
    def of(name: str) -> Counter[str]:
        with twin_of(_compiled(kept)) as machine:
            epochs(WAYS[name](), 1)
            return machine.calls.copy()

    return of


def epochs(made: Any, count: int = 2) -> list[torch.Tensor]:
    """All that some epochs give, on the host."""
    with made:
        return [each.cpu() for _ in range(count) for item in made for each in tensors(item)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def nothing_taken(machine: Machine) -> None:
    """All memory has been let go."""
    gc.collect()
    machine.finish()
    assert set(machine.taken.values()) == {0}


@every_way
def test_any_order_of_the_streams_gives_the_same(play: Any, twice: Any, name: str) -> None:
    """Late or early."""
    wanted = twice(name)
    with play(seed=0) as machine:
        assert same(epochs(WAYS[name]()), wanted)
        nothing_taken(machine)


@pytest.mark.long(form="test_any_order_of_the_streams_gives_the_same")
@pytest.mark.parametrize("first", range(0, 200, 50))
@every_way
def test_two_hundred_orders_of_the_streams(play: Any, twice: Any, name: str, first: int) -> None:
    """The same of many."""
    wanted = twice(name)
    for seed in range(first, first + 50):
        with play(seed=seed):
            assert same(epochs(WAYS[name]()), wanted), seed


@every_way
def test_another_device_is_no_other_data_and_touches_no_first_one(play: Any, once: Any, name: str) -> None:
    """By a loop whose thread has the first one, which is never called."""
    wanted = once(name)
    with play(devices=4) as machine:
        assert same(epochs(WAYS[name]("cuda:2"), 1), wanted)
        nothing_taken(machine)
        assert {device: dict(places) for device, places in machine.touched.items() if device != 2} == {}


@every_way
def test_a_bad_record_costs_its_slot(play: Any, name: str) -> None:
    """The decoder fails in a batch, and its batch is run again."""
    seen = []
    for seed in (None, 3):
        with play(seed=seed) as machine:
            made = WAYS[name](bad=7)
            seen.append(epochs(made, 1))
            assert made.stats().bad == 1
            del made
            nothing_taken(machine)
    assert same(*seen)


@every_way
def test_a_loader_may_be_closed_at_any_point(play: Any, once: Any, name: str) -> None:
    """Batches that were given stay whole, and the rest lets go of its memory."""
    wanted = once(name)
    with play() as machine:
        for count in range(COUNT // SIZE + 1):
            made = WAYS[name]()
            batches, taken = iter(made), list[torch.Tensor]()
            for _ in range(count):
                taken += tensors(next(batches))
            made.close()
            assert all(torch.equal(one.cpu(), other) for one, other in zip(taken, wanted, strict=False))
            del made, batches, taken
            nothing_taken(machine)


@every_way
def test_one_of_two_loaders_is_closed_while_the_other_trains(play: Any, once: Any, name: str) -> None:
    """Its batches are whole, and to close waits for none of them."""
    wanted = once(name)
    with play() as machine:
        one, other = WAYS[name](), WAYS[name]()
        found = list[torch.Tensor]()
        with one:
            batches = iter(one)
            found += tensors(next(batches))
            list(other)
            asleep = torch.cuda.Event()  # type: ignore[no-untyped-call]
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
            found += tensors(next(batches))
            asleep.record()
            other.close()
            for item in iter(functools.partial(next, batches, None), None):
                found += tensors(item)
        assert same([each.cpu() for each in found], wanted)
        del found, one, other, batches, item
        nothing_taken(machine)


@every_way
def test_a_state_goes_on_on_another_device(play: Any, once: Any, name: str) -> None:
    """From the first GPU to the second."""
    wanted = once(name)
    with play(devices=2):
        with WAYS[name]() as one, WAYS[name]("cuda:1") as other:
            batches = iter(one)
            first = [each.cpu() for _ in range(2) for each in tensors(next(batches))]
            other.load_state_dict(one.state_dict())
            rest = [each.cpu() for item in other for each in tensors(item)]
        assert same([*first, *rest], wanted)


@every_way
def test_a_loop_on_its_own_stream_may_drop_what_it_has_enqueued(play: Any, once: Any, name: str) -> None:
    """Its stream is behind all the time, and memory that it lets go is used again."""
    wanted = [each.double().sum() for each in once(name)]
    with play() as machine:
        sums = list[torch.Tensor]()
        with WAYS[name]() as made, torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for item in made:
                torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
                sums += [each.double().sum() for each in tensors(item)]
                del item
            torch.cuda.current_stream().synchronize()
        assert [float(each) for each in sums] == pytest.approx([float(each) for each in wanted])
        del sums
        nothing_taken(machine)


LIVES = (
    test_a_loader_may_be_closed_at_any_point,
    test_one_of_two_loaders_is_closed_while_the_other_trains,
    test_a_state_goes_on_on_another_device,
    test_a_loop_on_its_own_stream_may_drop_what_it_has_enqueued,
)


@pytest.mark.long(form="test_a_loader_may_be_closed_at_any_point")
@every_way
def test_two_hundred_orders_of_whole_lives(play: Any, once: Any, name: str) -> None:
    """Closed anywhere, beside another, on another device, on a stream of the loop's: sixteen orders of each way."""
    for seed in range(16):
        LIVES[seed % len(LIVES)](functools.partial(play, seed=seed), once, name)


NO_MEMORY = "CUDA error: out of memory"
POINTS: dict[str, Callable[[], BaseException]] = {
    "malloc": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    "cudaHostAlloc": lambda: torch.AcceleratorError(NO_MEMORY),
    "record": lambda: torch.AcceleratorError(NO_MEMORY),
    "event": lambda: torch.AcceleratorError(NO_MEMORY),
    "launch": lambda: RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    "dali outputs": lambda: MemoryError("CUDA allocation failed: Can't allocate 1048576 bytes on device 0."),
    "dali run": lambda: RuntimeError("CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory"),
    "dali pipeline": lambda: RuntimeError("CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory"),
}


WHEN: dict[str, Callable[[int], int]] = {
    "first": lambda count: min(1, count),
    "middle": lambda count: (count + 1) // 2,
    "last": lambda count: count,
}


LACKS = {"own graph": ["launch"], "host, mixed": [kind for kind in POINTS if kind.startswith("dali")]}


def ends() -> Iterator[Any]:
    """Each way with each call that it makes, at its first, middle or last: each pair of the three; all three are long.

    The first memory of a cache is among them: it alone sees kept images that are read and not held.
    """
    for b, kind in enumerate(POINTS):
        ways = [name for name in ("dali", "kept, dali", "own graph", "host, mixed") if kind not in LACKS.get(name, ())]
        for (a, name), (c, when) in itertools.product(enumerate(ways), enumerate(WHEN)):
            yield pytest.param(name, kind, when, marks=[pytest.mark.long] if (a + b + c + 2) % len(WHEN) else [])


@pytest.mark.parametrize(("name", "kind", "when"), [*ends()])
def test_memory_may_end_at_any_call(play: Any, once: Any, calls: Any, name: str, kind: str, when: str) -> None:
    """The batches come whole, or an error that says so; no record is called bad, and no memory is lost."""
    wanted, point = once(name), WHEN[when](calls(name)[kind])
    assert point, "the way makes no such call"
    with play() as machine:
        machine.fail(kind, POINTS[kind], point)
        made = WAYS[name]()
        try:
            assert same(epochs(made, 1), wanted)
        except (DaliFeedError, torch.OutOfMemoryError, RuntimeError) as error:
            assert "memory" in str(error), error
        assert made.stats().bad == 0
        del made
        nothing_taken(machine)


def test_a_decoder_that_fails_once_for_no_record_blames_none(play: Any, once: Any) -> None:
    """As nvImageCodec does where memory was short for a moment: its text names a sample, which is good."""
    wanted = once("dali")
    text = "Error in mixed operator: Failed to decode sample #2"
    for point in (1, 2, 5):
        with play() as machine:
            machine.fail("dali outputs", lambda: RuntimeError(text), point)
            made = WAYS["dali"]()
            assert same(epochs(made, 1), wanted)
            assert made.stats().bad == 0


def test_a_cache_keeps_what_there_is_memory_for(play: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Half of what it would, or a quarter: it never fails for that, and its log says so."""
    with play() as machine:
        wanted = epochs(WAYS["kept, host"](), 2)
    with play() as machine:
        allocate, lacks = machine.allocate, [machine.no_memory]  # for the first that is as large, which is the cache

        def less(size: int, *rest: Any) -> Any:
            if size >= COUNT * 16 * 16 * 3 and lacks:
                raise lacks.pop()(size)
            return allocate(size, *rest)

        machine.allocate = less
        with WAYS["kept, host"]() as made:
            found = [each.cpu() for _ in range(2) for item in made for each in tensors(item)]
            cache = made.stats().cache
        assert same(found, wanted)
        assert cache.device_records == COUNT // 2
    assert "are kept there. Give a smaller size" in caplog.text


@pytest.mark.parametrize("kind", ["synchronize", "record", "launch", "dali outputs", "malloc"])
@pytest.mark.parametrize("name", ["dali", "dali, mixed"])
def test_an_error_that_stays_ends_the_run_as_that(play: Any, name: str, kind: str) -> None:
    """No sample is tried by itself, and none is called bad; close returns."""
    for point in (1, 3):
        with play() as machine:
            real = machine.call
            machine.call = functools.partial(breaks, machine, real, kind, point)
            made = WAYS[name]()
            with pytest.raises((DaliFeedError, RuntimeError), match="illegal memory access"):
                epochs(made, 1)
            assert made.stats().bad == 0
            del made
            machine.call = real
            machine.broken.clear()


def breaks(machine: Machine, real: Any, kind: str, point: int, called: str, *rest: Any, **how: Any) -> Any:
    """A call of the machine's: from one of that kind on the GPU has failed for good."""
    if called == kind and machine.calls[kind] >= point:
        machine.break_down(0)
    return real(called, *rest, **how)


@pytest.mark.parametrize("engine", ["dali", "host"])
def test_a_global_capture_ends_neither_the_feed_nor_itself(play: Any, engine: str) -> None:
    """The loader's threads take memory, wait and look at events meanwhile."""
    with play() as machine, loader(decode=Decode(engine=engine), tuning=Tuning(prefetch=2)) as made:
        batches, graph = iter(made), torch.cuda.CUDAGraph()
        still = next(batches)[0].clone()
        with torch.cuda.graph(graph):
            total = still.sum()
            made.stats()
        for images, _ in batches:
            still.copy_(images)
            graph.replay()
            assert torch.equal(total, images.sum())
        assert not machine.errors


def test_a_batch_cannot_be_captured(play: Any) -> None:
    """One sentence, which ends the pass; the capture is whole."""
    with play(), loader() as made:
        batches, one = iter(made), torch.zeros(1, device="cuda")
        next(batches)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            one.add_(1)
            with pytest.raises(DaliFeedError, match=r"next\(\) cannot be captured"):
                next(batches)


@pytest.mark.parametrize("engine", ["dali", "host"])
def test_a_loop_far_ahead_of_its_gpu_keeps_few_batches(play: Any, engine: str) -> None:
    """The feed thread waits for the GPU, and the loop for nothing of its own."""
    with play() as machine, loader(decode=Decode(engine=engine), tuning=Tuning(prefetch=1, next_epoch=False)) as made:
        kept = []
        for _ in range(4):
            for images, _ in made:
                del images
                running = made._positions._machine.engine
                kept.append(len(running.device.in_use))
        # Two more than its depth when a batch is begun; then that one, one in the channel and one that waits for room.
        assert max(kept) <= running.depth + 5
        assert len(kept) == 4 * COUNT // SIZE
        assert not [each for each in machine.waits if each[1] == "MainThread"]


@pytest.mark.parametrize("engine", ["dali", "host"])
def test_a_consumer_takes_a_batch_on_its_own_stream(play: Any, engine: str) -> None:
    """By DLPack: ready there, and the event behind what it reads is of that stream."""
    with play() as machine:
        seen = []
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            with Feed(source(), SIZE, transform=USUAL, device=0, seed=1, decode=Decode(engine=engine)) as feed:
                found = []
                for batch in feed:
                    with torch.cuda.stream(stream):
                        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
                        found.append(torch.from_dlpack(batch))  # type: ignore[attr-defined]
                stream.synchronize()
                with torch.cuda.stream(stream):
                    seen.append([each.cpu() for each in found])
                    del found, batch
        assert same(*seen)
        nothing_taken(machine)


class Own(v2.RandAugment):  # type: ignore[misc, unused-ignore]
    """A user's."""


def test_operations_of_a_class_of_the_users_are_run_by_host(play: Any) -> None:
    """Nobody knows what it does."""
    with play(), loader(transform=v2.Compose([v2.CenterCrop(16), Own(), *FLOATS])) as made:
        assert made.state_dict()["info"]["engine"] == "host"
        assert len(list(made)) == COUNT // SIZE


LEVELS = {
    "autocontrast": lambda: v2.RandomAutocontrast(0.7),
    "equalize": lambda: v2.RandomApply([v2.RandomEqualize(0.7)], 0.8),
    "levels": lambda: v2.Compose(
        [v2.RandomEqualize(), v2.RandomPosterize(3), v2.RandomSolarize(100.5), v2.RandomInvert(), v2.ColorJitter(0.4)]
    ),
    "behind others": lambda: v2.Compose([v2.RandAugment(), v2.RandomPosterize(3), v2.RandomAutocontrast()]),
    "sharpness": lambda: v2.RandomChoice([v2.RandomAdjustSharpness(2.3, 1), v2.RandomAdjustSharpness(0.2, 1)]),
}


@pytest.mark.parametrize("name", [*MAKERS, *LEVELS])
def test_operations_on_a_gpu_have_the_pixels_of_the_host(play: Any, name: str) -> None:
    """Behind flips, of images that are decoded alike, by the engine that nobody chose.

    A rest of an epoch is the same, of images that a GPU keeps from then on too.
    """
    ends = [v2.RandomVerticalFlip(), *FLOATS, v2.RandomErasing(0.5)]
    flips = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3)]
    transform = v2.Compose([v2.CenterCrop(20), *flips, {**MAKERS, **LEVELS}[name](), *ends])
    pictures = ScriptedSource([(png(n, 24, 30), n) for n in range(COUNT)])

    def of(device: str, **options: Any) -> Any:
        return DataLoader(pictures, SIZE, True, transform=transform, device=device, seed=1, **options)

    wanted = epochs(of("cpu"))
    with play(seed=0) as machine:
        with of("cuda") as made, of("cuda", tuning=KEEPS) as rest:
            assert made.state_dict()["info"]["engine"] == "dali"
            found = list[torch.Tensor]()
            for item in itertools.chain(made, made):
                found += [each.cpu() for each in tensors(item)]
                if len(found) == 4:
                    rest.load_state_dict(made.state_dict())
            for a, b in zip(found, wanted, strict=True):
                assert ((a - b).abs() > 1e-6).double().mean() <= (0 if fused_here() else 0.02)
            assert same([each.cpu() for _ in range(2) for item in rest for each in tensors(item)], found[4:])
        del made, rest, item
        nothing_taken(machine)


@pytest.mark.parametrize(
    ("engine", "options", "launches", "copies", "kernels"),
    [
        ("dali", {}, 1, 1, 1),
        ("host", {}, 1, 2, 1),
        ("dali", {"collate_fn": BOTH}, 1, 1, 12),
        ("dali", {"transform": COLOURS}, 2, 1, 1),
        (None, {"transform": OPERATIONS}, 2, 1, 1),
        (None, {"transform": CHAINS}, 3, 1, 1),
        (None, {"transform": own_graph}, 0, 1, 2),
    ],
)
def test_the_counts_of_a_batch(
    play: Any, engine: str | None, options: dict[str, Any], launches: int, copies: int, kernels: int
) -> None:
    """What docs/engines.md says: launches of ours, transfers, torch's kernels, and one wait of the feed thread."""
    with play() as machine:
        with loader(decode=Decode(engine=engine), tuning=Tuning(next_epoch=False), **options) as made:
            number = sum(1 for _ in made)
            calls, waits = machine.calls.copy(), list(machine.waits)
        variants = launches  # each is launched once before the first batch
        assert calls["launch"] == number * launches + variants
        assert calls["copy"] == number * copies
        assert calls["kernel"] == number * kernels
        assert [(kind, thread) for kind, thread, _ in waits if kind != "loading a kernel"] == [
            ("event", "dali_feed-feed")
        ] * number
        assert {thread for _, thread, _ in waits} == {"dali_feed-feed"}
        assert not calls["spinning wait"]
