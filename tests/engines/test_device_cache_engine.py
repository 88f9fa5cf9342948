"""The engine before which a cache stands, batch by batch: with a finish step left for a GPU, run again, halted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kit.images import bad_tables, jpeg

from dali_feed.compiler.drawless import Drawless, drawless
from dali_feed.compiler.host import HostProgram, compile_host
from dali_feed.engines.choose import make_engine
from dali_feed.engines.device_cache import CachingEngine, DeviceRows
from dali_feed.engines.engine import Result, Work
from dali_feed.errors import ClosedError
from dali_feed.options import Tuning
from dali_feed.screen.screen import screen
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip, RandomCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.op import Recipe
from dali_feed.transforms.resize import Resize

END = (Flip("x"), ToFloat(), Normalize((0.5,) * 3, (0.2,) * 3), RandomErasing(0.5))
RECIPE = Recipe((Resize((12, 10)), *END))
CROPPED = Recipe((Resize((12, 10)), RandomCrop((8, 9), (2, 1, 2, 1), fill=(3.0, 200.0, 90.7)), *END))
PAYLOADS = {n: jpeg(n, 16 + n, 48 - n) for n in range(24)}
TUNING = Tuning(threads=2)


@pytest.fixture(params=[True, False], ids=["finish left", "on the CPU"])
def left(request: pytest.FixtureRequest) -> bool:
    """As before a GPU, whose finish step is left, and as on the CPU."""
    return bool(request.param)


@pytest.fixture(params=[RECIPE, CROPPED], ids=["whole", "cropped"])
def program(request: pytest.FixtureRequest, left: bool) -> HostProgram:
    """Whose images are kept as they are flipped, or as they are cropped."""
    return compile_host(request.param, on_gpu=left)


@pytest.fixture
def rows() -> DeviceRows:
    """Room for all."""
    made = DeviceRows(10**6, torch.device("cpu"))
    made.forget(24)
    return made


@pytest.fixture
def engine(program: HostProgram, rows: DeviceRows) -> Iterator[CachingEngine]:
    """With a cache."""
    parts = drawless("host", program, None if program.finish is None else 0)
    made = caching(parts, rows)
    yield made
    made.close()


def caching(parts: Drawless, rows: DeviceRows) -> CachingEngine:
    """Before a host engine."""
    inner = make_engine("host", parts.head, batch_size=8, device=None, tuning=TUNING)
    return CachingEngine(inner, parts, rows, device=None, tuning=TUNING)


def work(program: HostProgram, ids: list[int], epoch: int = 0, **other: bytes) -> Work:
    """A batch of these samples; `other` payloads by `n` and number."""
    payloads = [memoryview(other.get(f"n{n}", PAYLOADS[n])) for n in ids]
    sizes = np.maximum(screen(payloads).sizes, 1)
    samples = np.array(ids, np.int64)
    return Work(payloads, program.parameters(sizes, samples, 0, epoch).arrays, ids=samples)


def told(result: Result) -> list[Any]:
    """The images, and what is left to be done to them."""
    assert not result.bad
    assert result.images is not None
    tail = result.tail
    rows = [] if tail is None else [getattr(tail, name) for name in ("flip_x", "flip_y", "erase", "adjust")]
    return [result.images.numpy().tobytes(), *(None if each is None else each.tobytes() for each in rows)]


def test_batches_are_the_engines_own(program: HostProgram, engine: CachingEngine, rows: DeviceRows) -> None:
    """Of images that are there, that are not, and both, in flight at once, epoch after epoch: images and finish."""
    own = make_engine("host", program, batch_size=8, device=None, tuning=TUNING)
    batches = [([0, 1, 2, 3], 0), ([2, 9, 0, 8], 0), ([3, 2, 1, 0], 1), ([9, 9, 8, 8], 2), ([10, 1, 10], 1)]
    for ids, epoch in batches:
        each = work(program, ids, epoch)
        engine.submit(each)
        own.submit(each)
    for _ in batches:
        assert told(engine.take()) == told(own.take())
    for ids, epoch in batches:
        assert told(engine.redo(work(program, ids, epoch + 1))) == told(own.redo(work(program, ids, epoch + 1)))
    assert len(rows) == 7
    own.close()


def test_what_was_bad_is_not_kept(program: HostProgram, engine: CachingEngine, rows: DeviceRows) -> None:
    """Its slot is named as the batch has it; mended, only what changed is made again, and the batch is the engine's."""
    own = make_engine("host", program, batch_size=8, device=None, tuning=TUNING)
    told(engine.redo(work(program, [0, 1, 2])))
    failed = work(program, [1, 5, 0, 6], n6=bad_tables(6))
    engine.submit(failed)
    result = engine.take()
    assert list(result.bad) == [3]
    assert len(rows) == 3
    mended = work(program, [1, 5, 0, 7])
    assert told(engine.redo(mended, result, [3])) == told(own.redo(mended))
    assert rows.find(np.array([5, 6, 7]), np.zeros((3, rows._keys.shape[1]), np.uint8)).shape == (3,)
    assert set(rows._at) == {0, 1, 2, 5, 7}
    own.close()


def test_a_slot_that_was_there_is_mended_too(program: HostProgram, engine: CachingEngine) -> None:
    """As where another column's function refuses the record of an image that is kept."""
    own = make_engine("host", program, batch_size=8, device=None, tuning=TUNING)
    told(engine.redo(work(program, [0, 1, 2])))
    engine.submit(work(program, [0, 5, 1], n5=bad_tables(5)))
    result = engine.take()
    mended = work(program, [2, 4, 1])
    assert told(engine.redo(mended, result, [0, 1])) == told(own.redo(mended))
    engine.submit(mended)
    good = engine.take()
    again = work(program, [2, 3, 1])
    assert told(engine.redo(again, good, [1])) == told(own.redo(again))
    own.close()


def test_what_is_dropped_leaves_the_queue_in_step(program: HostProgram, engine: CachingEngine) -> None:
    """Batches that are there and that are not are discarded each in its turn."""
    first = told(engine.redo(work(program, [0, 1])))
    for ids in ([0, 1], [2, 3], [1, 0], [4, 5], [0, 1]):
        engine.submit(work(program, ids))
    for _ in range(4):
        engine.discard()
    assert told(engine.take()) == first


def test_a_halt_ends_what_is_left_to_be_done() -> None:
    """A batch that waits for no decoder raises as one that does, and the next pass goes on."""
    program = compile_host(RECIPE)
    rows = DeviceRows(10**6, torch.device("cpu"))
    rows.forget(24)
    engine = caching(drawless("host", program, None), rows)
    want = told(engine.redo(work(program, [0, 1])))
    engine.halt()
    engine.submit(work(program, [0, 1]))
    with pytest.raises(ClosedError):
        engine.take()
    engine.resume()
    assert told(engine.redo(work(program, [0, 1]))) == want
    engine.close()
    engine.close()
