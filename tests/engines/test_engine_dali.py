"""The facts about DALI that the engine stands on, and the engine on them; and the share of a GPU's JPEG engine."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kit.dali_pipelines import CPU
from kit.engine_runs import engine_of, images_of, maker_of, submit, work_for
from kit.images import broken_png, jpeg
from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.tensors import TensorCPU
from torchvision.transforms import v2

from dali_feed.engines.choose import compiled
from dali_feed.engines.dali.graph import build_graph, compile_dali
from dali_feed.engines.dali.images import DaliImages
from dali_feed.engines.dali.user_pipeline import read_pipeline
from dali_feed.engines.engine import Engine, Part, Work
from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.screen.screen import screen
from dali_feed.transforms.lower import lower

CROP = compile_dali(
    lower(v2.Compose([v2.RandomResizedCrop(16, scale=(0.2, 1.0)), v2.RandomHorizontalFlip()])), region_decode=True
)


def _engine() -> Engine:
    engine = engine_of("dali", CROP, 4, prefetch=2)
    assert isinstance(maker_of(engine), DaliImages)
    return engine


def _work(payloads: list[bytes], first: int = 0) -> Work:
    assert not screen([memoryview(payload) for payload in payloads]).reasons
    return work_for(CROP, [bytearray(payload) for payload in payloads], first)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One for the tests that leave nothing in flight."""
    one = _engine()
    yield one
    one.close()


def _clean(k: int) -> Work:
    return _work([jpeg(4 * k + n, 40, 40) for n in range(4)], 4 * k)


def test_what_is_fed_without_a_copy_stays_alive() -> None:
    """DALI itself keeps the payloads of a batch that waits to run, even where nobody else does."""

    class Buffer(np.ndarray[Any, Any]):
        """An array that can be watched."""

    engine = _engine()
    views: list[Any] = [np.frombuffer(bytearray(jpeg(n, 40, 40)), np.uint8).view(Buffer) for n in range(4)]
    watched = [weakref.ref(view) for view in views]
    sizes = screen([memoryview(view) for view in views]).sizes
    arrays = CROP.parameters(sizes, np.arange(4), 0, 0).arrays
    maker = maker_of(engine)
    ticket = maker._ticket(Part([memoryview(view) for view in views], [arrays]))
    ticket.payloads = [TensorCPU(view) for view in ticket.part.payloads]
    maker._give(maker._main, ticket)  # and not begun
    del views, arrays, ticket
    gc.collect()
    assert all(ref() is not None for ref in watched)
    maker._main.schedule_run()
    images = np.array(maker._main.outputs()[0].as_tensor())
    assert np.array_equal(images, np.array(images_of(engine.take(submit(engine, _clean(0))))))
    engine.close()


def test_many_batches_in_flight_fail_alone_and_come_in_order(engine: Engine) -> None:
    """With a queue of one as many are in flight as wanted: each bad one is named, the others are whole, none stays."""
    assert maker_of(engine)._main.prefetch_queue_depth == 1
    bad = {1, 4, 7}
    flying = [submit(engine, _work([broken_png()] * 4) if k in bad else _clean(k)) for k in range(9)]
    for k, work in enumerate(flying):
        if k in {3, 7}:  # a good one, and a bad one
            engine.discard(work)
            continue
        engine.take(work)
        assert list(work.bad) == (list(range(4)) if k in bad else [])
        if k not in bad:
            assert np.array_equal(np.array(images_of(work)), np.array(images_of(engine.redo(_clean(k)))))
    assert not maker_of(engine)._flying


CUT = v2.RandomResizedCrop(24)


def _graph(images: Any, draws: Any) -> Any:
    return fn.resize(images, size=[8, 8])


def given(program: Any, *, spare: bool = False) -> dict[str, Any]:
    """What the graph of a GPU gives to its one decoder; `spare`: that of the twin."""
    pipe = Pipeline(batch_size=2, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(*build_graph([output.program for output in program.outputs], gpu=True, spare=spare))
    pipe._build_graph()
    (decoder,) = (op for op in pipe._ops if op._op.schema.HasArgument("hw_decoder_load"))
    options: dict[str, Any] = decoder._op._init_args
    return options


@pytest.mark.parametrize("transform", [CUT, [CUT, v2.Resize((8, 8))], _graph, v2.Compose([CUT, v2.RandomInvert()])])
@pytest.mark.parametrize("load", [0.0, 0.65])
def test_the_share_reaches_the_decoder(transform: Any, load: float) -> None:
    """One transform, several views, a graph function, a graph with torch behind it: 0 unless asked, not DALI's 0.65."""
    program = compiled(transform, Decode(hardware=load), 0)
    assert given(program)["hw_decoder_load"] == load


def test_a_pipelines_decoder_has_its_users_share_or_none() -> None:
    """What the user's graph says stays; where it says nothing, 0 is written into it."""
    own = {"hw_decoder_load": 0.25}

    @pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
    def mixed() -> Any:
        payloads = fn.external_source(name="image")
        said = fn.decoders.image(payloads, device="mixed", **own)
        cropped = fn.decoders.image_random_crop(payloads, device="mixed")
        return said, cropped, fn.decoders.image(payloads)

    pipe = mixed()
    program = read_pipeline(pipe, ())
    told = [str(op.spec) for op in pipe._ops if "ecoders__" in str(op.spec).splitlines()[0]]
    shares = [[float(share) for share in re.findall(r"(?m)^ *hw_decoder_load: (.*)$", spec)] for spec in told]
    assert shares == [[0.25], [0.0], []]
    for graph, padded in ((program.graph, 0), (program.spare, 2)):  # the twin's take no memory beforehand
        assert graph.count(b"hw_decoder_load") == 2
        assert graph.count(b"device_memory_padding") == graph.count(b"host_memory_padding") == padded


def test_the_twins_decoder_takes_nothing_beforehand() -> None:
    """The one that all batches go through has DALI's defaults; the twin's pixels are made the same way."""
    program = compiled(CUT, Decode(hardware=0.5), 0)
    main, twin = (given(program, spare=spare) for spare in (False, True))
    padding = {"device_memory_padding", "host_memory_padding"}
    assert not padding & set(main)
    assert {twin.pop(name) for name in padding} == {0}
    assert main == twin


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan"), True, "1", None])
def test_shares_that_cannot_be(wrong: Any) -> None:
    """A ConfigError with what was found."""
    with pytest.raises(ConfigError, match=r"^Decode\(hardware=...\): must lie in 0\.\.1; found "):
        Decode(hardware=wrong)
