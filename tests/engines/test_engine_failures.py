"""What DALI raises beside RuntimeError, and what ends a run for good: told in our words, in its place, at once."""

from __future__ import annotations

from typing import Any

import pytest
from kit.dali_pipelines import CPU
from kit.engine_runs import engine_of, maker_of, submit, work_for
from kit.images import QUICK, jpeg, labelled
from nvidia.dali import fn, pipeline_def

from dali_feed import DataLoader
from dali_feed.dali import DALIGenericIterator
from dali_feed.engines.dali import images as dali_images
from dali_feed.engines.dali.user_graph import compile_function
from dali_feed.engines.engine import Engine, Work
from dali_feed.engines.failures import ends_all, engine_error, out_of_memory, stays
from dali_feed.errors import EngineError
from dali_feed.feed import Feed
from dali_feed.testing.scripted import ScriptedSource


def _twice(images: Any, draws: Any) -> Any:
    return fn.reductions.mean(images, axes=[0, 0])  # DALI: ValueError


def _far(images: Any, draws: Any) -> Any:
    return fn.reductions.mean(images, axes=[7])  # DALI: IndexError


def _endless(images: Any, draws: Any) -> Any:
    return fn.resize(images, size=[2e7, 2e7])  # DALI: std::bad_alloc; more than any address space


def submitted(graph: Any, count: int = 8) -> tuple[Engine, Work]:
    """An engine for the graph with a batch in it."""
    program = compile_function(graph)
    engine = engine_of("dali", program, count, threads=1)
    return engine, submit(engine, work_for(program, [jpeg(n) for n in range(count)]))


@pytest.mark.parametrize("graph", [_twice, _far])
def test_whatever_dali_raises_is_an_engine_error(graph: Any) -> None:
    """A ValueError and an IndexError of its operators, with the operator, the user's line and why."""
    engine, work = submitted(graph)
    with pytest.raises(
        EngineError, match=r"images can all be decoded; fn\.reductions\.mean at .*test_engine_failures\.py:\d+: "
    ):
        engine.take(work)
    engine.discard(submit(engine, work_for(compile_function(graph), [jpeg(0)])))
    engine.close()


def test_it_comes_to_the_trainer_and_not_as_the_end_of_an_epoch() -> None:
    """Of a loader with a graph function, and of an iterator around a user's own pipeline."""
    source = ScriptedSource(labelled(8))
    with DataLoader(source, 4, transform=_twice, device="cpu", tuning=QUICK) as loader, pytest.raises(EngineError):
        list(loader)

    @pipeline_def(**CPU)  # type: ignore[untyped-decorator, unused-ignore]
    def mine() -> Any:
        return fn.reductions.mean(fn.decoders.image(fn.external_source(name="image")), axes=[7])

    with DALIGenericIterator(mine, ["data"], source) as loop, pytest.raises(EngineError, match="reductions"):
        list(loop)


def test_a_graph_that_cannot_be_built_is_an_engine_error() -> None:
    """On a GPU that is not there: no words from inside DALI alone."""
    with Feed(ScriptedSource(labelled(8)), 4, device=99) as feed, pytest.raises(EngineError, match="cannot be built"):
        iter(feed)


def test_no_sample_is_blamed_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that cannot be had is told as that, with the cure, and no sample is run by itself first."""
    engine, work = submitted(_endless)
    monkeypatch.setattr(maker_of(engine), "again", None)
    monkeypatch.setattr(maker_of(engine), "_on_twin", None)
    with pytest.raises(EngineError, match=r"a batch failed; out of memory on the CPU: .*bad_alloc.*smaller batch_size"):
        engine.take(work)
    engine.close()


@pytest.mark.parametrize("count", [8, 64])
def test_a_cuda_error_that_stays_is_told_at_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """It is in the error as that, neither decoder is asked again, and nothing runs on the twin."""
    calls: list[None] = []

    def broken(image: Any) -> Any:
        calls.append(None)
        msg = "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was encountered"
        raise RuntimeError(msg)

    def graph(images: Any, draws: Any) -> Any:
        return fn.python_function(images, function=broken)

    monkeypatch.setattr(dali_images, "undecodable", None)
    engine, work = submitted(graph, count)
    with pytest.raises(
        EngineError, match="a batch failed; a CUDA error on the CPU after which nothing more.*cudaErrorIllegalAddress"
    ):
        engine.take(work)
    assert len(calls) <= count  # those of the one run
    engine.close()


def test_it_is_told_when_it_comes_while_samples_run_alone() -> None:
    """A batch fails on one sample, and the search for it meets the CUDA error: no mark, but the error."""
    calls: list[None] = []

    def broken(image: Any) -> Any:
        calls.append(None)
        msg = "the model's own" if len(calls) == 1 else "CUDA driver API error CUDA_ERROR_LAUNCH_FAILED (719)"
        raise RuntimeError(msg)

    engine, work = submitted(lambda images, draws: fn.python_function(images, function=broken), 8)
    with pytest.raises(EngineError, match="after which nothing more.*CUDA_ERROR_LAUNCH_FAILED"):
        engine.take(work)
    assert len(calls) == 2
    engine.close()


STAYS, MEMORY, PASSES = "Start again", "out of memory on cuda:1: ", ""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was encountered", STAYS),
        ("CUDA driver API error CUDA_ERROR_ILLEGAL_ADDRESS (700):\nan illegal memory access was encountered", STAYS),
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported", STAYS),
        ("cudaErrorLaunchFailure: unspecified launch failure", STAYS),
        ("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address", STAYS),
        ("CUDA runtime API error cudaErrorECCUncorrectable (214):\nuncorrectable ECC error encountered", STAYS),
        ("CUDA driver API error CUDA_ERROR_LAUNCH_TIMEOUT (702)", STAYS),
        ("Can't allocate 268435456 bytes on device 0.\nCurrent pipeline object is no longer valid.", MEMORY),
        ("CUDA allocation failed", MEMORY),
        ("std::bad_alloc", MEMORY),
        ("CUDA driver API error CUDA_ERROR_OUT_OF_MEMORY (2):\nout of memory", MEMORY),
        ("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB", MEMORY),
        # What may be a sample's fault is looked for among them; the user's own lines in a message say nothing.
        (
            'File "out_of_memory.py", line 3\n  fn.resize(x)  # illegal memory access\nencountered:\nAssert failed',
            PASSES,
        ),
        ("nvJPEG error (6): NVJPEG_STATUS_EXECUTION_FAILED", PASSES),
        ("nvImageCodec failure: '#4'", PASSES),
        ("CUDA runtime API error cudaErrorInvalidValue (1):\ninvalid argument", PASSES),
    ],
)
def test_whether_anything_can_run_after_an_error(text: str, kind: str) -> None:
    """By DALI's, torch's and CuPy's words: nothing does, there was no memory, or a sample may be at fault."""
    error = RuntimeError(text)
    assert stays(error, None) == (kind == STAYS)
    assert out_of_memory(error) == (kind == MEMORY)
    assert ends_all(error, None) == (kind != PASSES)
    assert kind in str(engine_error("dali engine", "a batch failed", error, 1))


def test_closing_gives_back_what_dali_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the pipelines are gone, and where a GPU was used; that it fails there, after the GPU has, is no error."""
    states: list[tuple[Any, Any]] = []
    engine, work = submitted(lambda images, draws: images + 1)
    maker = maker_of(engine)

    def release() -> None:
        states.append((maker._main, maker._twin))
        msg = "CUDA runtime API error cudaErrorIllegalAddress (700)"
        raise RuntimeError(msg)

    monkeypatch.setattr(dali_images, "ReleaseUnusedMemory", release)
    engine.take(work)
    maker._device = 0  # as if it had run there: it has no finish, whose memory is CuPy's
    engine.close()
    assert states == [(None, None)]
    ours, _ = submitted(lambda images, draws: images + 1)
    ours.close()
    assert len(states) == 1
