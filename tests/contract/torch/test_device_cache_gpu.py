"""A cache in a GPU's memory: bit for bit the batches of a loader without one, on either engine."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kit.images import broken_png, jpeg, png
from kit.inside import Corrupt, Gap
from torchvision.transforms import v2

from dali_feed import BadRecords, Cache, DataLoader, Decode, Mixing, Tuning
from dali_feed.errors import ConfigError
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.device

EPOCHS = 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CUT = (v2.Resize(20), v2.CenterCrop(16))
FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
HALVES = (v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD))
ROW = 16 * 16 * 3

TRANSFORMS: dict[str, Any] = {
    "training": v2.Compose([*CUT, v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.6, value=3)]),
    "evaluation": v2.Compose([*CUT, *HALVES]),
    "bytes": v2.Compose([*CUT, v2.RandomVerticalFlip()]),
    "gray": v2.Compose([*CUT, v2.Grayscale(1), v2.RandomHorizontalFlip(), FLOATS[0], v2.Normalize([0.4], [0.2])]),
    "behind the graph": v2.Compose([v2.Resize((16, 16)), v2.RandomAdjustSharpness(2.0, p=1.0), *FLOATS]),
}


def source() -> ScriptedSource:
    """JPEGs and PNGs of several sizes, with holes, faults, and one that only the decoder refuses."""
    items: list[Any] = [((png if n % 3 else jpeg)(n, 30 + n % 4 * 5, 45 - n % 5 * 4), n) for n in range(36)]
    items[5], items[20], items[33] = Gap(), Corrupt(), (broken_png(), 33)
    return ScriptedSource(items, partitions=2, extent=4)


def loader(engine: str, transform: Any, cache: Cache | None, next_epoch: bool = True, **options: Any) -> DataLoader:
    """A loader that shuffles."""
    chosen: dict[str, Any] = {"shuffle": True, "seed": 3, "info": True, "bad": BadRecords(limit=None)} | options
    return DataLoader(
        source(),
        8,
        transform=transform,
        device="cuda",
        decode=Decode(engine=engine),
        tuning=Tuning(cache=cache, next_epoch=next_epoch),
        **chosen,
    )


def told(item: Any) -> Any:
    """All that a batch is."""
    *tensors, info = item
    assert all(each.is_cuda for each in tensors)
    return [*(each.cpu() for each in tensors), info.ids, info.ok]


def run(made: DataLoader) -> list[torch.Tensor]:
    """What the training loop is given in some epochs."""
    with made:
        return [each for _ in range(EPOCHS) for item in made for each in told(item)]


@functools.cache
def without_one(engine: str, name: str) -> list[torch.Tensor]:
    """What it gives without a cache, which is the same in each of its tests."""
    return run(loader(engine, TRANSFORMS[name], None))


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.fixture(params=["dali", "host"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine before a GPU."""
    return str(request.param)


RUNS = [("dali", name) for name in TRANSFORMS if name != "behind the graph"]  # for which DALI has no operator
RUNS += [("host", name) for name in TRANSFORMS]


def limited() -> Iterator[Any]:
    """Each run with each limit; what is not needed that each pair of engine, transform and limit comes is long."""
    for n, (engine, name) in enumerate(RUNS):
        for k, limit in enumerate(["1GB", 15 * ROW + 1]):
            spare = name != "behind the graph" and (n + k) % 2 == (engine == "host")
            yield pytest.param(engine, name, limit, marks=[pytest.mark.long] * spare)


@pytest.mark.parametrize(("engine", "name", "limit"), list(limited()))
def test_a_batch_does_not_see_it(engine: str, name: str, limit: int | str) -> None:
    """Images that are all there, or a part of them: pixels, labels, ids and ok of every epoch."""
    cache = Cache(device=limit)
    assert same(run(loader(engine, TRANSFORMS[name], cache)), without_one(engine, name))


def test_colours_at_the_end_are_the_kernels() -> None:
    """On the dali engine they may be random."""
    transform = v2.Compose([v2.Resize((16, 16)), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), *FLOATS])
    with_one = run(loader("dali", transform, Cache(device="1GB")))
    assert same(with_one, run(loader("dali", transform, None)))
    with pytest.raises(ConfigError, match="found ColorJitter"):
        loader("host", transform, Cache(device="1GB"))


def test_later_epochs_decode_what_is_bad_and_nothing_else(engine: str) -> None:
    """Each image is made once, and lies in the GPU's memory, within the limit."""
    with loader(engine, TRANSFORMS["training"], Cache(device="1GB"), next_epoch=False) as made:
        misses = []
        for _ in range(EPOCHS):
            for _ in made:
                pass
            found = made.stats().cache
            assert found is not None
            misses.append(found.device_misses)
    assert found is not None
    assert found.device_records == 33
    assert 33 * ROW <= found.device_held <= found.device_limit
    assert {b - a for a, b in itertools.pairwise(misses)} <= {1, 2}


def test_mixed_batches_are_the_same(engine: str) -> None:
    """Mixing takes kept pixels in the finish's launch."""
    mixing = Mixing(0.4, 1.0, classes=36)
    kept = run(loader(engine, TRANSFORMS["training"], Cache(device="1GB"), collate_fn=mixing))
    assert same(kept, run(loader(engine, TRANSFORMS["training"], None, collate_fn=mixing)))


def test_a_state_goes_both_ways(engine: str) -> None:
    """Taken in the second epoch with a cache it goes on without, and the other way round."""
    halves = []
    for cache, other in itertools.permutations([None, Cache(device="1GB")]):
        one, two = (loader(engine, TRANSFORMS["training"], each) for each in (cache, other))
        with one, two:
            for made in (one, two):
                for _ in made:
                    pass
            given = [each for item in itertools.islice(one, 2) for each in told(item)]
            two.load_state_dict(one.state_dict())
            halves.append(given + [each for item in two for each in told(item)])
    assert same(*halves)


def test_a_busy_stream_of_the_loops_own_sees_whole_batches(engine: str) -> None:
    """The loop takes batches on a stream of its own that is behind, and drops them at once: memory is used again."""
    want = run(loader(engine, TRANSFORMS["training"], None))
    found: list[torch.Tensor] = []
    with loader(engine, TRANSFORMS["training"], Cache(device="1GB")) as made:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(EPOCHS):
                for images, labels, info in made:
                    torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
                    found += [images.clone(), labels.clone(), info.ids, info.ok]
                    del images, labels
        stream.synchronize()
    assert same([each.cpu() for each in found], want)
