"""The facts about DALI that the engine stands on, and the engine on them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kit.engine_runs import engine_of, work_for
from kit.images import bad_tables, broken_png, jpeg
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed.compiler.dali import compile_dali
from dali_feed.engines.dali.engine import DaliEngine
from dali_feed.engines.engine import Work
from dali_feed.screen.screen import screen
from dali_feed.transforms.lower import lower

CROP = compile_dali(
    lower(v2.Compose([v2.RandomResizedCrop(16, scale=(0.2, 1.0)), v2.RandomHorizontalFlip()])), region_decode=True
)


def _engine(depth: int = 2) -> DaliEngine:
    engine = engine_of("dali", CROP, 4, prefetch=depth)
    assert isinstance(engine, DaliEngine)
    return engine


def _work(engine: DaliEngine, payloads: list[bytes], first: int = 0) -> Work:
    assert not screen([memoryview(payload) for payload in payloads]).reasons
    return work_for(engine, CROP, [bytearray(payload) for payload in payloads], first)


@pytest.fixture(scope="module")
def engine() -> Iterator[DaliEngine]:
    """One for the tests that leave nothing in flight."""
    one = _engine()
    yield one
    one.close()


def _clean(engine: DaliEngine, k: int) -> Work:
    return _work(engine, [jpeg(4 * k + n, 40, 40) for n in range(4)], 4 * k)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_failing_batch_fails_alone(depth: int) -> None:
    """The batches behind it, in flight beside it, arrive whole and in order at every depth."""
    with_fault, reference = _engine(depth), _engine(1)
    wanted: list[NDArray[Any]] = []
    for k in range(8):
        reference.submit(_clean(reference, k))
        wanted.append(np.array(reference.take().images))
    works = [_clean(with_fault, k) for k in range(8)]
    for k in (0, 3, 4):
        works[k] = _work(with_fault, [jpeg(0, 40, 40), broken_png(), jpeg(1, 40, 40), bad_tables()], 4 * k)
    got: list[Any] = []
    for n in range(8 + depth):
        if n >= depth:
            got.append(with_fault.take())
        if n < 8:
            with_fault.submit(works[n])
    for k, result in enumerate(got):
        if k in (0, 3, 4):
            assert result.images is None
            assert sorted(result.bad) == [1, 3]
        else:
            assert not result.bad
            assert np.array_equal(np.array(result.images), wanted[k])
    with_fault.close()
    reference.close()


def test_what_is_fed_without_a_copy_stays_alive() -> None:
    """DALI itself keeps the payloads of a batch that waits to run, even where nobody else does."""

    class Buffer(np.ndarray[Any, Any]):
        """An array that can be watched."""

    engine = _engine()
    views: list[Any] = [np.frombuffer(bytearray(jpeg(n, 40, 40)), np.uint8).view(Buffer) for n in range(4)]
    watched = [weakref.ref(view) for view in views]
    sizes = screen([memoryview(view) for view in views]).sizes
    arrays = CROP.parameters(sizes, np.arange(4), 0, 0).arrays
    engine._feed(engine._main, Work(engine.prepare([memoryview(view) for view in views]), arrays))  # and not begun
    del views, arrays
    gc.collect()
    assert all(ref() is not None for ref in watched)
    engine._main._pipe.Run()
    images = np.array(engine._main._pipe.Outputs(None)[0].as_tensor())
    engine.submit(_clean(engine, 0))
    assert np.array_equal(images, np.array(engine.take().images))
    engine.close()


def test_an_output_that_is_held_is_not_written_over(engine: DaliEngine) -> None:
    """Images of a batch keep their pixels while many later batches pass."""
    engine.submit(_clean(engine, 0))
    held = engine.take().images
    before = np.array(held)
    for k in range(1, 9):
        engine.submit(_clean(engine, k))
        engine.take()
    assert np.array_equal(np.asarray(held), before)


def test_discard_drops_one_batch_good_or_bad(engine: DaliEngine) -> None:
    """After it the next batch is the next one."""
    engine.submit(_work(engine, [broken_png()] * 4))
    engine.submit(_clean(engine, 2))
    engine.discard()
    assert np.array_equal(np.array(engine.take().images), np.array(engine.redo(_clean(engine, 2)).images))
    engine.submit(_clean(engine, 0))
    engine.submit(_clean(engine, 2))
    engine.discard()
    assert np.array_equal(np.array(engine.take().images), np.array(engine.redo(_clean(engine, 2)).images))
