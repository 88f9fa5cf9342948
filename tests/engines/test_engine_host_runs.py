"""How the host engine runs: threads, chunks and JPEGs decoded together, bad samples as marks, nothing left behind."""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.engine_runs import engine_of, images_of, submit, work_for
from kit.images import bad_tables, jpeg, png
from kit.limits import LONG

from dali_feed.engines.engine import Engine, Work
from dali_feed.engines.host import decode
from dali_feed.engines.host.decode import decoded, decoded_jpegs, jpegs, new_decoder
from dali_feed.engines.host.images import ImageSteps
from dali_feed.screen.header import UnusableError
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.op import Key, Recipe
from dali_feed.transforms.program import compile_host
from dali_feed.transforms.resize import RandomResizedCrop

BATCH = Recipe((RandomResizedCrop((32, 24)), Flip("x"), ToFloat(), Normalize((0.5,) * 3, (0.2,) * 3)))


PROGRAM = compile_host(BATCH)
CROP = Key("window")  # rows of a batch, by which it is known


def host(threads: int = 2, batch_size: int = 32) -> Any:
    """An engine for them."""
    return engine_of("host", PROGRAM, batch_size, threads=threads)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Of two threads."""
    made = host()
    yield made
    made.close()


def work(payloads: Sequence[bytes], first: int = 0) -> Work:
    """A batch of samples first, first+1, ..."""
    return work_for(PROGRAM, payloads, first)


def ran(engine: Engine, first: int = 0) -> Any:
    """The images of good ones."""
    return images_of(engine.redo(work(good(), first)))


def good(count: int = 32) -> list[bytes]:
    """JPEGs of many sizes."""
    return [jpeg(n, 16 + n, 48 - n) for n in range(count)]


def test_no_more_threads_than_asked_for() -> None:
    """Tuning(threads=3) is three threads of ours, and none is left behind."""

    def ours() -> int:
        return sum(thread.name.startswith("dali_feed-work-") for thread in threading.enumerate())

    before = ours()
    engine = host(3)
    ran(engine)
    assert ours() - before == 3
    engine.close()
    assert ours() == before


def test_a_slow_image_holds_back_its_chunk_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread is kept by an image, the other does the rest of its batch and the batch behind it."""
    done, go_on = queue.SimpleQueue[int](), threading.Event()
    run = ImageSteps.run

    def waits(self: ImageSteps, pixels: Any, arrays: Any, slot: int, out: torch.Tensor, **how: int) -> None:
        if arrays[CROP] is slow.rows[0, CROP] and slot == 0:
            go_on.wait(LONG)
        run(self, pixels, arrays, slot, out, **how)
        done.put(slot)

    monkeypatch.setattr(ImageSteps, "run", waits)
    engine = host(2)
    slow = work(good())
    submit(engine, slow)
    other = submit(engine, work(good(), 100))
    finished = sorted(done.get(timeout=LONG) for _ in range(24 + 32))  # all but the eight of the kept chunk
    assert finished == sorted([*range(8, 32), *range(32)])
    go_on.set()
    for each in (slow, other):
        assert engine.take(each).outputs
    engine.close()


def test_a_mended_batch_runs_its_replaced_slots_alone_and_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in for a bad record is run before the batches in flight go on, and no good slot is run again."""
    seen: list[tuple[str, int]] = []
    run, turn, begun = ImageSteps.run, threading.Event(), threading.Event()
    engine = host(1)

    def urgent() -> bool:
        jobs = engine._workers._jobs
        return bool(jobs) and len(jobs[0].chunks) == 1  # of one slot

    def told(self: ImageSteps, pixels: Any, arrays: Any, slot: int, out: torch.Tensor, **how: int) -> None:
        deadline = time.monotonic() + LONG
        crop = id(arrays[CROP])
        while crop == id(second.rows[0, CROP]) and slot == 0 and not urgent():
            begun.set()
            turn.wait(0.001)  # on a busy machine the other thread would not get the lock
            assert time.monotonic() < deadline  # the only thread is kept here until there is something to mend
        run(self, pixels, arrays, slot, out, **how)
        seen.append((names[crop], slot))

    payloads = good()
    mended, clean = work(good()), images_of(engine.redo(work(good())))
    payloads[5] = bad_tables()
    first, second = work(payloads), work(good(), 100)
    every = {"first": first, "second": second, "mended": mended}
    names = {id(each.rows[0, CROP]): name for name, each in every.items()}
    monkeypatch.setattr(ImageSteps, "run", told)
    submit(engine, first)
    submit(engine, second)
    failed = engine.take(first)
    assert list(failed.bad) == [5]
    assert begun.wait(LONG)  # else the slot that is mended may be the next one anyway
    assert torch.equal(images_of(engine.redo(mended, failed, [5])), clean)
    engine.take(second)
    assert [slot for name, slot in seen if name == "mended"] == [5]
    assert seen.index(("mended", 5)) < seen.index(("second", 16))  # the second batch's next chunk
    engine.close()


def test_a_batch_keeps_its_memory_and_gives_it_back(engine: Engine) -> None:
    """A tensor over a batch keeps its pixels while others pass; once the last has died its memory serves again."""
    held = ran(engine)
    before, row = held.clone(), held[5]
    for first in range(1, 9):
        ran(engine, first)
    assert torch.equal(held, before)
    at = held.data_ptr()
    del held
    gc.collect()
    taken = [ran(engine, 50) for _ in range(8)]
    assert at not in [images.data_ptr() for images in taken]
    assert torch.equal(row, before[5])
    del row
    gc.collect()
    assert ran(engine, 50).data_ptr() == at


def test_torchs_own_threads_are_left_alone() -> None:
    """The user's thread count is what it was, here and in threads that begin later."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    engine = host(4, 4)
    engine.redo(work(good(4)))
    assert torch.get_num_threads() == 3
    engine.close()
    torch.set_num_threads(before)


def test_a_fault_that_is_no_records_is_raised(engine: Engine) -> None:
    """A parameter that no image can take is an EngineError, not a mark and not a hang."""
    broken = work(good(4))
    broken.rows[0, Key("scale0")] = np.zeros_like(broken.rows[0, Key("scale0")])
    with pytest.raises(Exception, match="host engine: a step failed"):
        engine.redo(broken)


NO_PICTURE = b"\xff\xd8 no picture \xff\xd9"  # it cannot even be parsed
KINDS = [jpeg(0, 16, 24), jpeg(1, 40, 8), jpeg(2, 64, 64), png(3), bad_tables(), NO_PICTURE, b""]


def _alone(decoder: Any, payload: memoryview, window: Sequence[int] | None) -> Any:
    try:
        return decoded(decoder, payload, window)
    except UnusableError as error:
        return str(error)


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12), st.booleans(), st.integers(1, 20_000))
def test_one_call_gives_what_each_gives_alone(payloads: list[bytes], windowed: bool, memory: int) -> None:
    """Windows or whole images, bad ones among them, with others before and behind, whatever one call may hold."""
    views, decoder = [memoryview(payload) for payload in payloads], new_decoder()
    windows = [[1, 2, 5, 6]] * len(views) if windowed else None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decode, "TOGETHER", memory)
        streams = jpegs(views, windows)
    for k, found in enumerate(decoded_jpegs(decoder, streams) if streams else ()):
        alone = _alone(decoder, views[k], None if windows is None else windows[k])
        if isinstance(found, str):
            assert found == alone
        else:
            np.testing.assert_array_equal(found, alone)


def test_their_pixels_are_bounded_and_the_first_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels of the windows that are decoded count; an image above the bound has a call of its own."""
    views = [memoryview(jpeg(n, 64, 64)) for n in range(8)]
    monkeypatch.setattr(decode, "TOGETHER", 3 * 64 * 64 * 3)
    assert len(jpegs(views, None)) == 3
    assert len(jpegs(views, [[0, 0, 32, 64]] * 8)) == 6
    monkeypatch.setattr(decode, "TOGETHER", 1)
    assert len(jpegs(views, None)) == 1
