"""The engine by itself, over both makers of images: batches by name, what fails where, and what stays behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kit.engine_runs import engine_of, images_of, maker_of, submit, work_for
from kit.images import bad_tables, encoded, jpeg
from kit.limits import LONG
from torchvision.transforms import v2

from dali_feed.columns import Bytes
from dali_feed.engines.choose import compile_for, make_engine
from dali_feed.engines.engine import Engine, Work
from dali_feed.engines.host import images as host
from dali_feed.errors import ClosedError, EngineError
from dali_feed.options import Tuning
from dali_feed.screen import pillow
from dali_feed.transforms.lower import lower
from dali_feed.transforms.program import Output, Program

TRANSFORM = lower(v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()]))


@pytest.fixture(params=["host", "dali"])
def name(request: pytest.FixtureRequest) -> str:
    """Of a maker of images."""
    made: str = request.param
    return made


def program_of(name: str, *columns: str) -> Program:
    """An image for each column."""
    called = [f"column {column!r}: " if len(columns) > 1 else "" for column in columns]
    outputs = [
        Output(name, compile_for(name, TRANSFORM, None), column, called=told)
        for column, told in zip(columns or ("",), called or ("",), strict=True)
    ]
    return Program(tuple(outputs))


def works(program: Program, count: int = 4) -> list[Work]:
    """Batches of four."""
    every = [[jpeg(4 * k + n, 40, 30 + n) for n in range(4)] for k in range(count)]
    return [one(program, payloads, 4 * k) for k, payloads in enumerate(every)]


def one(program: Program, payloads: list[bytes], first: int = 0) -> Work:
    """A batch, with the same payloads in all columns."""
    many = len(program.columns)
    if many == 1:
        return work_for(program, payloads, first)
    drawn = work_for(Program(program.outputs[:1]), payloads, first)
    rows = {(number, key): rows for number in range(many) for (_, key), rows in drawn.rows.items()}
    (views,) = drawn.payloads.values()
    return Work(drawn.ids, dict.fromkeys(program.columns, views), rows)


@pytest.fixture
def engine(name: str) -> Iterator[Engine]:
    """Of one image."""
    made = engine_of(name, program_of(name), 4)
    yield made
    made.close()
    made.close()


def pixels(work: Work) -> Any:
    """Of its first image column."""
    return np.array(np.from_dlpack(images_of(work)))


def test_batches_are_taken_and_dropped_by_name(name: str, engine: Engine) -> None:
    """In any order, and each is what it is alone; one that was taken, or dropped, can be dropped again."""
    program = program_of(name)
    alone = [pixels(engine.redo(work)) for work in works(program)]
    flying = [submit(engine, work) for work in works(program)]
    engine.discard(flying[1])
    for k in (2, 0, 3):
        assert engine.take(flying[k]) is flying[k]
        assert np.array_equal(pixels(flying[k]), alone[k])
    for work in flying:
        engine.discard(work)
    again = submit(engine, works(program)[1])
    assert np.array_equal(pixels(engine.take(again)), alone[1])


def test_what_was_not_submitted_cannot_be_taken(name: str, engine: Engine) -> None:
    """It is no batch of the engine's."""
    (work,) = works(program_of(name), 1)
    engine.discard(work)
    with pytest.raises(ValueError, match="was not submitted"):
        engine.take(work)


def test_a_batch_whose_pass_has_ended_is_closed_for_whoever_waits(name: str, engine: Engine) -> None:
    """Nothing of it is begun, and the batches of another pass are not touched."""
    over = threading.Event()
    over.set()
    first, second = works(program_of(name), 2)
    work = submit(engine, second)
    try:
        engine.submit(first, over)
        engine.take(first)
    except ClosedError as error:
        assert "the iteration was ended" in str(error)
    engine.halt()
    assert engine.take(work).outputs


def test_a_column_that_fails_takes_the_others_along(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be begun in one column is in flight in none; the batches before and behind it are whole."""
    program = program_of(name, "a", "b")
    engine = make_engine(program, batch_size=4, device=None, tuning=Tuning(threads=2))
    before, failing, behind = works(program, 3)
    submit(engine, before)
    maker = engine._images["b"]
    start = maker.start
    with monkeypatch.context() as patched:
        patched.setattr(maker, "start", lambda part: (start(part), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            submit(engine, failing)
    submit(engine, behind)
    for k, work in enumerate((before, None, behind)):
        if work is not None:
            left, right = engine.take(work).outputs
            assert np.array_equal(np.from_dlpack(left.images), np.from_dlpack(right.images))
            alone = engine.redo(works(program, 3)[k])
            assert np.array_equal(np.array(np.from_dlpack(left.images)), pixels(alone))
    engine.close()


def test_bad_images_are_named_by_their_column_and_mended_in_it(name: str) -> None:
    """Of several columns the first that is bad gives the reason; the batch that takes its place is whole."""
    program = program_of(name, "a", "b")
    engine = make_engine(program, batch_size=4, device=None, tuning=Tuning(threads=2))
    (good,) = works(program, 1)
    wanted = pixels(engine.redo(good))
    (work,) = works(program, 1)
    work.payloads["b"] = [*work.payloads["b"][:2], memoryview(bad_tables()), work.payloads["b"][3]]
    engine.take(submit(engine, work))
    assert list(work.bad) == [2]
    assert work.bad[2].startswith("column 'b': decoder: ")
    assert not work.outputs
    (mended,) = works(program, 1)
    assert engine.redo(mended, work, [2]) is mended
    assert np.array_equal(pixels(mended), wanted)
    engine.close()


def test_a_decoder_that_cannot_be_made_is_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory or its threads were not to be had: the batch says so, and its worker goes on with the next one."""
    program = program_of("host")
    engine = engine_of("host", program, 4, threads=1)
    first, second = works(program, 2)
    with monkeypatch.context() as patched:

        def none() -> Any:
            msg = "no threads"
            raise RuntimeError(msg)

        patched.setattr(host, "new_decoder", none)
        with pytest.raises(EngineError, match="host engine: .*RuntimeError: no threads"):
            engine.take(submit(engine, first))
    assert engine.take(submit(engine, second)).outputs
    engine.close()


def test_what_pillow_decodes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of other formats is begun at once, and those behind it too, which wait their turn before DALI."""
    program, decode, go_on = program_of("dali"), pillow.decode, threading.Event()

    def slow(*given: Any) -> Any:
        assert go_on.wait(LONG)
        return decode(*given)

    monkeypatch.setattr(pillow, "decode", slow)
    image = np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    engine = engine_of("dali", program, 4)
    begun = [one(program, [encoded(image, kind)] * 2) for kind in ("WEBP", "PNG")]
    for work in begun:
        submit(engine, work)
    assert engine.at_work() == ("dali", ())
    assert not any(ticket.fed for ticket in maker_of(engine)._flying)
    go_on.set()
    lossy, lossless = (pixels(engine.take(work)) for work in begun)
    assert lossy.shape == lossless.shape == (2, 3, 16, 16)
    engine.close()


def test_what_was_taken_is_let_go_at_once(name: str, engine: Engine) -> None:
    """Payloads, rows and images, without the garbage collector: their memory is to serve the next batch."""
    (work,) = works(program_of(name), 1)
    alive: list[Any] = [weakref.ref(engine.take(submit(engine, work)))]
    part = next(iter(work.flight.parts.values())) if work.flight is not None else None
    alive += [weakref.ref(part)] if part is not None else []
    images = work.outputs[0].images
    gc.disable()
    try:
        work.release()
        assert images is not None
        del work, part
        assert [ref() for ref in alive] == [None, None]
    finally:
        gc.enable()


def late(program: Program, decode: Any, threads: int) -> Engine:
    """With a column that a function makes."""
    tuning = Tuning(threads=threads)
    return make_engine(program, late={"n": Bytes("cls", decode=decode)}, batch_size=4, device=None, tuning=tuning)


def test_a_function_that_hangs_is_named_and_left_behind() -> None:
    """Who waits for it goes on when the pass has ended, and the next pass has as many workers as before."""
    go_on, inside = threading.Event(), threading.Event()

    def decode(data: memoryview) -> int:
        if bytes(data) == b"hangs":
            inside.set()
            go_on.wait(LONG)
        return len(data)

    program = program_of("host")
    engine, stop = late(program, decode, 1), threading.Event()
    work, other = works(program, 2)
    work.values, other.values = {"n": [b"hangs"] * 4}, {"n": [b"123"] * 4}
    engine.submit(work, stop)
    said: list[Any] = []

    def end() -> None:
        inside.wait(LONG)
        while not engine.at_work()[1]:
            pass
        said.append(engine.at_work())
        stop.set()
        engine.halt()

    ends = threading.Thread(target=end)
    ends.start()
    with pytest.raises(ClosedError, match="while functions worked on its batch"):
        engine.take(work)
    ends.join()
    assert said == [("what makes column 'n'", [0])]
    assert engine.name == "host"
    assert engine.take(submit(engine, other)).columns == {"n": [3] * 4}
    go_on.set()
    engine.close()
