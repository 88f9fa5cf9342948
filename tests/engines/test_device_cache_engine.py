"""A cache before an engine, batch by batch, in the CPU's memory: bit for bit the engine's own images and finish."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.engine_runs import engine_of, submit, work_for
from kit.images import bad_tables, jpeg, labelled
from kit.inside import running
from kit.recorded import Recorded
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import Cache, DataLoader, Decode, Tuning
from dali_feed.columns import Boxes
from dali_feed.engines.choose import compiled, make_engine
from dali_feed.engines.device.cuda import Device
from dali_feed.engines.device_cache import CachedImages, DeviceCache
from dali_feed.engines.engine import Engine, ImageMaker, Part, Pixels, Work
from dali_feed.errors import ConfigError
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.transforms.colour import ColorJitter
from dali_feed.transforms.convert import Normalize, ToFloat, UserFunction
from dali_feed.transforms.crops import Flip, RandomIoUCrop
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.op import Key, Recipe
from dali_feed.transforms.program import HostProgram, Output, Program, compile_host
from dali_feed.transforms.resize import Resize

END = (Flip("x"), ToFloat(), Normalize((0.5,) * 3, (0.2,) * 3), RandomErasing(0.5))
RECIPES = {
    "a finish is left": Recipe((Resize((12, 10)), *END)),
    "floats as they came out": Recipe((Resize((12, 10)), ToFloat(), ColorJitter((1.2, 1.2)), END[2])),
}
PAYLOADS = {n: jpeg(n, 16 + n, 48 - n) for n in range(24)}


class Numbers(ImageMaker):
    """A maker whose images tell their records, 24 bytes each; it keeps which it has made."""

    def __init__(self, kind: torch.dtype = torch.float32) -> None:
        self.made, self._kind = list[int](), kind

    def finish(self, part: Part) -> None:
        """All of it."""
        self.made += part.ids.tolist()
        part.images = [Pixels(telling(part.ids).to(self._kind))]


def telling(ids: NDArray[np.int64]) -> torch.Tensor:
    """Images that tell their records."""
    return torch.from_numpy(ids.astype(np.float32)).reshape(-1, 1, 1).repeat(1, 2, 3)


def cached(maker: Any, limit: int = 10**6, records: int = 40, gpu: Device | None = None) -> CachedImages:
    """A cache before that maker, on a GPU that is played, for so many records."""
    made = CachedImages(maker, None, limit, gpu or Recorded())
    made.forget(records)
    return made


def out_of(images: CachedImages, ids: Sequence[int], made_with: int = 0) -> torch.Tensor:
    """The images of these records, made with that."""
    numbers = np.array(ids, np.int64)
    rows = {Key("row"): np.full(len(ids), made_with)}
    part = Part([memoryview(b"")] * len(ids), [rows], ids=numbers)
    images.start(part)
    images.finish(part)
    (pixels,) = part.images
    assert isinstance(pixels.images, torch.Tensor)
    return pixels.images


@given(st.lists(st.integers(0, 39), min_size=1, max_size=60), st.integers(1, 30), st.integers(0, 50 * 24))
def test_rows_are_those_that_were_kept(records: list[int], batch: int, limit: int) -> None:
    """The first that came, as many as there is room for, in any order and at any slots; the others are made again."""
    maker = Numbers()
    images = cached(maker, limit)
    for k in range(0, len(records), batch):
        ids = records[k : k + batch]
        assert torch.equal(out_of(images, ids), telling(np.array(ids)))
    kept = list(dict.fromkeys(records))[: limit // 24]
    assert len(images) == len(kept)
    assert images.nbytes <= limit
    maker.made.clear()
    every = np.random.default_rng(0).permutation(40)
    assert torch.equal(out_of(images, every.tolist()), telling(every))
    assert set(maker.made) == set(range(40)) - set(kept)


def test_what_is_no_row_of_theirs() -> None:
    """Images made with other parameters, and of another dtype; and all that was forgotten, with its memory."""
    maker = Numbers()
    images = cached(maker)
    out_of(images, range(4))
    out_of(images, range(2, 4), made_with=1)
    assert (images.hits, images.misses, len(images)) == (0, 6, 6)
    images._maker = Numbers(torch.float16)
    out_of(images, range(5, 7))
    assert len(images) == 6
    images.forget(8)
    assert (len(images), images.nbytes) == (0, 0)
    images._maker = maker
    maker.made.clear()
    out_of(images, range(4))
    assert (maker.made, len(images)) == ([0, 1, 2, 3], 4)


def test_a_device_without_memory_keeps_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is one line in the log."""

    class Full(Recorded):
        """A device without room."""

        def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            """None."""
            msg = "CUDA out of memory. Tried to allocate 20.00 GiB"
            raise torch.OutOfMemoryError(msg)

    images = cached(Numbers(), gpu=Full())
    for _ in range(3):
        assert torch.equal(out_of(images, [1, 2]), telling(np.array([1, 2])))
    assert (len(images), images.nbytes) == (0, 0)
    assert len(caplog.messages) == 1
    assert "none are kept there" in caplog.text


@pytest.fixture(params=RECIPES)
def program(request: pytest.FixtureRequest) -> HostProgram:
    """As it is made for a GPU."""
    return compile_host(RECIPES[request.param], on_gpu=True)


@pytest.fixture
def engine(program: HostProgram) -> Iterator[Engine]:
    """With a cache before its images, on a GPU that is played."""
    made = make_engine(Program((Output("host", program),)), batch_size=8, device=None, tuning=Tuning(threads=2))
    ((column, images),) = made._images.items()
    made._images[column] = CachedImages(images, program.finish, 10**6, Recorded())
    kept_in(made).forget(40)
    yield made
    made.close()
    made.close()


def kept_in(engine: Engine) -> CachedImages:
    """The cache."""
    (images,) = engine._images.values()
    assert isinstance(images, CachedImages)
    return images


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


def test_batches_are_the_engines_own(program: HostProgram, engine: Engine) -> None:
    """Of images that are there, that are not, and both, in flight at once, epoch after epoch: images and finish."""
    own = engine_of("host", program, 8)
    batches = [([0, 1, 2, 3], 0), ([2, 9, 0, 8], 0), ([3, 2, 1, 0], 1), ([9, 9, 8, 8], 2), ([10, 1, 10], 1)]
    flying = [[submit(one, work(program, *each)) for one in (engine, own)] for each in batches]
    dropped = submit(engine, work(program, [0, 12]))
    for mine, theirs in flying:
        assert outcome(engine.take(mine)) == outcome(own.take(theirs))
        engine.discard(dropped)
        dropped = submit(engine, work(program, [0, 1]))
    engine.discard(dropped)
    for ids, epoch in batches:
        assert outcome(engine.redo(work(program, ids, epoch + 1))) == outcome(own.redo(work(program, ids, epoch + 1)))
    assert len(kept_in(engine)) == 7
    own.close()


def test_what_was_bad_is_not_kept(program: HostProgram, engine: Engine) -> None:
    """Its slot is named as the batch has it; mended, where another image stands or one that was kept, it is kept."""
    own = engine_of("host", program, 8)
    outcome(engine.redo(work(program, [0, 1, 2])))
    before = engine.take(submit(engine, work(program, [1, 5, 0, 6], n6=bad_tables(6))))
    assert list(before.bad) == [3]
    assert len(kept_in(engine)) == 3
    for ids, slots in (([1, 5, 0, 7], [3]), ([1, 5, 2, 7], [2])):
        before = engine.redo(work(program, ids), before, slots)
        assert outcome(before) == outcome(own.redo(work(program, ids)))
    assert {sample for sample, _ in kept_in(engine)._at} == {0, 1, 2, 5, 7}
    own.close()


@pytest.mark.parametrize("name", ["host", "dali"])
def test_another_snapshot_is_another_cache(name: str) -> None:
    """Of each program for a GPU whose images are the same in every epoch; what was kept goes with the source."""
    floats = (v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,), (0.2,)))
    colours = (v2.ColorJitter(0.4, 0.4),) if name == "dali" else ()  # at the end of a graph they are the kernel's
    transform = v2.Compose([v2.Resize((20, 24)), v2.RandomHorizontalFlip(), *colours, *floats])
    program = compiled(transform, Decode(engine=name), 0)
    cache = DeviceCache(program, 4 * 24, 0)
    cache.begin("one", 40)
    images = cache.before(Numbers(), program.outputs[0], Recorded())
    assert isinstance(images, CachedImages)
    images._finish = None
    out_of(images, range(3))
    cache.begin("one", 40)
    assert cache.counted[2:] == (3, 96)
    cache.begin("another", 40)
    assert cache.counted[2:] == (0, 0)


def test_a_function_of_the_users_own_is_refused() -> None:
    """Nobody knows whether it draws random numbers."""
    program = compile_host(Recipe((UserFunction(abs), *RECIPES["a finish is left"].ops)), on_gpu=True)
    with pytest.raises(ConfigError, match="found abs, a function of your own"):
        DeviceCache(Program((Output("host", program),)), 10**6, 0)


def test_a_window_by_boxes_is_refused_by_name() -> None:
    """The boxes that it draws by are there; it is random, and so there is nothing to keep."""
    program, boxes = compile_host(Recipe((RandomIoUCrop(),)), on_gpu=True), {"boxes": Boxes("boxes")}
    with pytest.raises(ConfigError, match="before the first random transform; .* found RandomIoUCrop"):
        DeviceCache(Program((Output("host", program, followers=boxes),)), 10**6, 0)


@pytest.mark.device
@pytest.mark.parametrize("name", ["host", "dali"])
def test_a_loader_that_is_closed_holds_no_memory(name: str) -> None:
    """Of what was kept nothing stays, whoever still holds the loader."""
    transform = v2.Compose([v2.Resize(40), v2.CenterCrop(32), v2.ToDtype(torch.bfloat16, scale=True)])
    options: Any = {"device": "cuda", "decode": Decode(engine=name), "tuning": Tuning(cache=Cache(device="1GB"))}
    with DataLoader(ScriptedSource(labelled(72, sizes=True)), 16, transform=transform, **options) as made:
        for _ in made:
            pass
        (images,) = running(made)._machine.on_device._images
        memory = weakref.ref(images._rows)
        assert memory() is not None
    assert memory() is None
