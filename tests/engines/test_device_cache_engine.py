"""A cache before an engine, batch by batch, in the CPU's memory: bit for bit the engine's own images and finish."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.engine_runs import engine_of, submit, work_for
from kit.images import bad_tables, jpeg, labelled
from kit.inside import running
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import Cache, DataLoader, Decode, Tuning
from dali_feed.engines.choose import compiled, make_engine
from dali_feed.engines.device_cache import CachedImages, DeviceCache, DeviceRows
from dali_feed.engines.engine import Engine, Work
from dali_feed.errors import ConfigError
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import Normalize, ToFloat, UserFunction
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.host import HostProgram, compile_host
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.program import Output, Program
from dali_feed.transforms.resize import Resize

CPU = torch.device("cpu")
ON = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
END = (Flip("x"), ToFloat(), Normalize((0.5,) * 3, (0.2,) * 3), RandomErasing(0.5))
RECIPES = {
    "a finish is left": Recipe((Resize((12, 10)), *END)),
    "floats as they came out": Recipe((Resize((12, 10)), ToFloat(), ColorJitter((1.2, 1.2)), END[2])),
}
PAYLOADS = {n: jpeg(n, 16 + n, 48 - n) for n in range(24)}


def keys(ids: NDArray[np.int64] | range, made_with: bytes = b"") -> list[tuple[int, bytes]]:
    """Of records whose images were made with that."""
    return [(int(n), made_with) for n in ids]


def images(ids: NDArray[np.int64] | range, device: torch.device = CPU) -> torch.Tensor:
    """Images that tell their records, of 24 bytes."""
    return torch.from_numpy(np.array(ids, np.float32)).to(device).reshape(-1, 1, 1).repeat(1, 2, 3)


def room(limit: int = 10**6, records: int = 40, device: str = "cpu") -> DeviceRows:
    """For so many records."""
    rows = DeviceRows(limit, torch.device(device))
    rows.forget(records)
    return rows


@ON
@given(st.lists(st.integers(0, 39), min_size=1, max_size=60), st.integers(1, 30), st.integers(0, 50 * 24))
def test_rows_are_those_that_were_kept(device: str, records: list[int], batch: int, limit: int) -> None:
    """The first that came, as many as there is room for, in any order and at any slots."""
    rows = room(limit, device=device)
    for k in range(0, len(records), batch):
        ids = np.array(records[k : k + batch])
        rows.keep(keys(ids), images(ids, rows.device))
    kept = list(dict.fromkeys(records))[: limit // 24]
    assert len(rows) == len(kept)
    assert rows.held <= limit
    ids = np.random.default_rng(0).permutation(40)
    at = rows.find(keys(ids))
    assert {int(n) for n in ids[at >= 0]} == set(kept)
    out = rows.give(at)
    assert (out is None) == (not kept)
    if out is not None:
        assert torch.equal(out[torch.from_numpy(at >= 0)].cpu(), images(ids[at >= 0]))


def test_what_is_no_row_of_theirs() -> None:
    """Images made with other parameters, and of another shape or dtype; and all that was forgotten, with its memory."""
    rows = room()
    rows.keep(keys(range(4)), images(range(4)))
    assert rows.find([*keys(range(2)), *keys(range(2, 4), b"other")]).tolist() == [0, 1, -1, -1]
    assert (rows.hits, rows.misses) == (2, 2)
    for odd in (images(range(2))[:, :1].contiguous(), images(range(2)).to(torch.float16)):
        rows.keep(keys(range(5, 7)), odd)
    assert len(rows) == 4
    rows.forget(8)
    assert (len(rows), rows.held, rows.find(keys(range(4))).tolist()) == (0, 0, [-1] * 4)
    rows.keep(keys(range(4)), images(range(4))[:, :1].contiguous())
    assert len(rows) == 4


@ON
def test_a_device_without_memory_keeps_nothing(device: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is one line in the log."""
    rows = room(1 << 60, device=device)
    huge = torch.zeros((1, 1), dtype=torch.uint8, device=device).expand(1, 1 << 52)
    for _ in range(3):
        rows.keep(keys(range(1)), huge)
    assert (len(rows), rows.held) == (0, 0)
    assert len(caplog.messages) == 1
    assert "none are kept there" in caplog.text


@pytest.fixture(params=RECIPES)
def program(request: pytest.FixtureRequest) -> HostProgram:
    """As it is made for a GPU."""
    return compile_host(RECIPES[request.param], on_gpu=True)


@pytest.fixture
def rows() -> DeviceRows:
    """What is kept."""
    return room()


@pytest.fixture
def engine(program: HostProgram, rows: DeviceRows) -> Iterator[Engine]:
    """With a cache before its images, in the CPU's memory."""
    made = make_engine(
        Program((Output("host", program),)),
        batch_size=8,
        device=None,
        tuning=Tuning(threads=2),
        before=lambda images, output, gpu: CachedImages(images, output.program.finish, rows),
    )
    yield made
    made.close()
    made.close()


def work(program: HostProgram, ids: list[int], epoch: int = 0, **other: bytes) -> Work:
    """A batch of these samples; `other` payloads by `n` and number."""
    return work_for(program, [other.get(f"n{n}", PAYLOADS[n]) for n in ids], ids, epoch=epoch)


def outcome(made: Work) -> list[Any]:
    """The images, and what is left to be done to them."""
    assert not made.bad
    (pixels,) = made.outputs
    tail = pixels.tail
    rows = [] if tail is None else [getattr(tail, name) for name in ("flip_x", "flip_y", "erase", "adjust")]
    return [pixels.images.numpy().tobytes(), *(None if each is None else each.tobytes() for each in rows)]


def test_batches_are_the_engines_own(program: HostProgram, engine: Engine, rows: DeviceRows) -> None:
    """Of images that are there, that are not, and both, in flight at once, epoch after epoch: images and finish."""
    own = engine_of("host", program, 8)
    batches = [([0, 1, 2, 3], 0), ([2, 9, 0, 8], 0), ([3, 2, 1, 0], 1), ([9, 9, 8, 8], 2), ([10, 1, 10], 1)]
    flying = [[submit(one, work(program, *each)) for one in (engine, own)] for each in batches]
    for mine, theirs in flying:
        assert outcome(engine.take(mine)) == outcome(own.take(theirs))
    for ids, epoch in batches:
        assert outcome(engine.redo(work(program, ids, epoch + 1))) == outcome(own.redo(work(program, ids, epoch + 1)))
    assert len(rows) == 7
    own.close()


def test_what_was_bad_is_not_kept(program: HostProgram, engine: Engine, rows: DeviceRows) -> None:
    """Its slot is named as the batch has it; mended, where another image stands or one that was kept, it is kept."""
    own = engine_of("host", program, 8)
    outcome(engine.redo(work(program, [0, 1, 2])))
    before = engine.take(submit(engine, work(program, [1, 5, 0, 6], n6=bad_tables(6))))
    assert list(before.bad) == [3]
    assert len(rows) == 3
    for ids, slots in (([1, 5, 0, 7], [3]), ([1, 5, 2, 7], [2])):
        before = engine.redo(work(program, ids), before, slots)
        assert outcome(before) == outcome(own.redo(work(program, ids)))
    assert {sample for sample, _ in rows._at} == {0, 1, 2, 5, 7}
    own.close()


def test_what_is_dropped_leaves_the_others(program: HostProgram, engine: Engine) -> None:
    """Batches that are there and that are not are discarded each in its turn."""
    first = outcome(engine.redo(work(program, [0, 1])))
    *dropped, last = [submit(engine, work(program, ids)) for ids in ([0, 1], [2, 3], [1, 0], [4, 5], [0, 1])]
    for each in dropped:
        engine.discard(each)
    assert outcome(engine.take(last)) == first


@pytest.mark.parametrize("name", ["host", "dali"])
def test_another_snapshot_is_another_cache(name: str) -> None:
    """Of each program for a GPU whose images are the same in every epoch; what was kept goes with the source."""
    floats = (v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,), (0.2,)))
    colours = (v2.ColorJitter(0.4, 0.4),) if name == "dali" else ()  # at the end of a graph they are the kernel's
    transform = v2.Compose([v2.Resize((20, 24)), v2.RandomHorizontalFlip(), *colours, *floats])
    cache = DeviceCache(compiled(transform, Decode(engine=name), 0), 4 * 24, 0)
    rows = room(4 * 24)
    cache._rows.append(rows)
    cache.begin("one", 40)
    rows.keep(keys(range(3)), images(range(3)))
    cache.begin("one", 40)
    assert cache.counted[2:] == (3, 96)
    cache.begin("another", 40)
    assert cache.counted[2:] == (0, 0)


def test_a_function_of_the_users_own_is_refused() -> None:
    """Nobody knows whether it draws random numbers."""
    program = compile_host(Recipe((UserFunction(abs), *RECIPES["a finish is left"].ops)), on_gpu=True)
    with pytest.raises(ConfigError, match="found abs, a function of your own"):
        DeviceCache(Program((Output("host", program),)), 10**6, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["host", "dali"])
def test_a_loader_that_is_closed_holds_no_memory(name: str) -> None:
    """Of what was kept nothing stays, whoever still holds the loader."""
    transform = v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.ToDtype(torch.bfloat16, scale=True)])
    options: Any = {"device": "cuda", "decode": Decode(engine=name), "tuning": Tuning(cache=Cache(device="1GB"))}
    with DataLoader(ScriptedSource(labelled(72, sizes=True)), 16, transform=transform, **options) as made:
        for _ in made:
            pass
        (rows,) = running(made)._machine.on_device._rows
        memory = weakref.ref(rows._rows)
        assert memory() is not None
    assert memory() is None
