"""Whose fault a failed batch is: what is no record's comes first, and a record's is one only when it is sure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kit.dali_pipelines import graph as pipeline_of
from kit.engine_runs import engine_of, images_of, maker_of, submit, work_for
from kit.images import QUICK, bad_tables, jpeg, labelled
from kit.recorded import Recorded
from nvidia.dali import fn

from dali_feed import DataLoader
from dali_feed.dali import DALIGenericIterator
from dali_feed.engines.dali import images as dali_images
from dali_feed.engines.dali.user_graph import compile_function
from dali_feed.engines.engine import Engine, Work
from dali_feed.engines.failures import ends_all, engine_error, out_of_memory, stays
from dali_feed.errors import EngineError
from dali_feed.feed import Feed
from dali_feed.testing.scripted import ScriptedSource

COUNT, WHOLE, PLENTY = 4, 4 * 40 * 50 * 3, 10**9  # samples, bytes of their images, and more than enough of them
NO_MEMORY, CAPTURED = "CUDA_ERROR_OUT_OF_MEMORY (2)", "cudaErrorStreamCaptureUnsupported (900)"
OWN = "nvJPEG error (6): NVJPEG_STATUS_EXECUTION_FAILED"
BROKEN = "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was encountered"
FREED = ["free_memory", "release"]
Script = Callable[[int, int], str | None]


class Graph:
    """A graph of the user's that fails by a script: what the n-th run of a sample raises, or None."""

    def __init__(self, script: Script) -> None:
        self._script, self.runs = script, list[int]()

    def __call__(self, images: Any, draws: Any) -> Any:
        """As DALI's users write it."""
        return fn.python_function(images, function=self.run)

    def run(self, image: Any) -> Any:
        """One sample, of number `which` by its height."""
        which = image.shape[0] - 40
        self.runs.append(which)
        if (raises := self._script(which, self.runs.count(which))) is not None:
            raise RuntimeError(raises)
        return image[:40]


def batch(graph: Any, *numbers: int) -> Work:
    """A batch of these samples."""
    return work_for(compile_function(graph), [jpeg(n, 40 + n, 50) for n in numbers or range(COUNT)])


def submitted(graph: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Work, Recorded]:
    """An engine as before a GPU, with a batch in it."""
    engine, gpu = engine_of("dali", compile_function(graph), COUNT, threads=1), Recorded()
    maker_of(engine)._gpu = gpu
    monkeypatch.setattr(dali_images, "ReleaseUnusedMemory", lambda: gpu.calls.append("release"))
    monkeypatch.setattr(dali_images, "LOOK", 0.0)
    return engine, submit(engine, batch(graph)), gpu


# What the n-th run of a sample raises, bytes that the GPU has left, and the error, or who is bad; calls of the GPU.
NOBODYS: dict[str, tuple[Script, int, str | list[int], list[str]]] = {
    "memory is there, once it is given back": (
        lambda which, run: NO_MEMORY if (which, run) == (0, 1) else None, PLENTY, [], FREED,
    ),
    "no memory": (lambda which, run: NO_MEMORY, PLENTY, "a batch failed; out of memory", FREED),
    "no word of memory, of which there is too little": (
        lambda which, run: OWN if (which, run) == (0, 1) else None, WHOLE - 1, [], FREED,
    ),
    "no word of memory, of which there is enough": (
        lambda which, run: OWN if (which, run) == (0, 1) else None, PLENTY, [], [],
    ),
    "a GPU that is full": (lambda which, run: OWN, 1, "a batch failed; out of memory .*NVJPEG_STATUS_EXECUTION", FREED),
    "a capture that ends": (lambda which, run: CAPTURED if run <= 3 else None, PLENTY, [], []),
    "a capture without an end": (
        lambda which, run: CAPTURED, PLENTY, "a CUDA graph is captured .*capture_error_mode='thread_local'", [],
    ),
    "one fails alone and twice, another once": (
        lambda which, run: OWN if which == 2 or (which == 1 and run <= 2) else None, PLENTY, [2], [],
    ),
    "an error that stays": (
        lambda which, run: BROKEN, PLENTY, "a CUDA error on the CPU after which nothing more.*cudaErrorIllegalAd", [],
    ),
    "an error that stays comes while samples run alone": (
        lambda which, run: None if which else OWN if run == 1 else BROKEN, PLENTY, "after which nothing more", [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOBODYS)
def test_what_is_no_records_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is run again, or is the error; then no sample was tried by itself, unless what it met came there."""
    script, free, wanted, calls = NOBODYS[name]
    graph = Graph(script)
    engine, work, gpu = submitted(graph, monkeypatch)
    monkeypatch.setattr(dali_images, "free_and_total", lambda device: (free, 10**10))
    if isinstance(wanted, list):
        engine.take(work)
        assert list(work.bad) == wanted
        assert work.bad or np.array(images_of(work)).shape == (COUNT, 40, 50, 3)
        assert all(why.startswith("decoder: dali engine: the graph failed") and OWN in why for why in work.bad.values())
    else:
        monkeypatch.setattr(dali_images, "CAPTURED", 0.0)
        if free > 1 and not name.endswith("alone"):  # nor is the CPU's decoder asked
            monkeypatch.setattr(dali_images, "undecodable", None)
        if not name.endswith("alone"):
            monkeypatch.setattr(maker_of(engine), "_one_by_one", None)
        with pytest.raises(EngineError, match=wanted):
            engine.take(work)
    assert [call for call in gpu.calls if call in FREED] == calls
    engine.close()


def test_what_the_cpu_refuses_is_bad_on_a_gpu_that_is_full_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has no say in that."""
    monkeypatch.setattr(dali_images, "free_and_total", lambda device: (1, 10**10))
    graph = Graph(lambda which, run: None)
    engine, work, _ = submitted(graph, monkeypatch)
    engine.take(work)
    payloads = [jpeg(0, 40, 50), bad_tables(1), jpeg(2, 42, 50)]
    assert list(engine.redo(work_for(compile_function(graph), payloads)).bad) == [1]
    engine.close()


def test_what_fails_on_a_sample_that_was_good_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run first; where it fails now, no other is tried by itself."""
    broken = False
    graph = Graph(lambda which, run: OWN if broken else None)
    engine, work, _ = submitted(graph, monkeypatch)
    engine.take(work)
    broken = True
    graph.runs.clear()
    monkeypatch.setattr(maker_of(engine), "_one_by_one", None)
    with pytest.raises(EngineError, match="NVJPEG_STATUS_EXECUTION_FAILED"):
        engine.redo(batch(graph))
    assert graph.runs[-1] == 0
    engine.close()


@pytest.mark.parametrize("good", [False, True])
def test_a_batch_all_of_whose_records_fail(good: bool) -> None:
    """They are bad where a sample before them still goes through; else it is the graph that fails."""
    graph = Graph(lambda which, run: OWN if which else None)
    engine = engine_of("dali", compile_function(graph), COUNT, threads=1)
    if good:
        engine.take(submit(engine, batch(graph, 0)))
    work = submit(engine, batch(graph, 1, 2))
    if good:
        assert list(engine.take(work).bad) == [0, 1]
    else:
        with pytest.raises(EngineError, match="the graph failed on a batch whose images can all be decoded"):
            engine.take(work)
    engine.close()


# What DALI raises beside RuntimeError, and the words by which it is known.


def _twice(images: Any, draws: Any) -> Any:
    return fn.reductions.mean(images, axes=[0, 0])  # DALI: ValueError


def _far(images: Any, draws: Any) -> Any:
    return fn.reductions.mean(images, axes=[7])  # DALI: IndexError


def _endless(images: Any, draws: Any) -> Any:
    return fn.resize(images, size=[2e7, 2e7])  # DALI: std::bad_alloc; more than any address space


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (_twice, r"images can all be decoded; fn\.reductions\.mean at .*test_blame\.py:\d+: "),
        (_far, r"images can all be decoded; fn\.reductions\.mean at .*test_blame\.py:\d+: "),
        (_endless, r"a batch failed; out of memory on the CPU: .*bad_alloc.*smaller batch_size"),
    ],
)
def test_whatever_dali_raises_is_an_engine_error(graph: Any, why: str) -> None:
    """A ValueError and an IndexError of its operators, with the operator and the user's line; memory, with the cure."""
    engine = engine_of("dali", compile_function(graph), COUNT, threads=1)
    with pytest.raises(EngineError, match=why):
        engine.take(submit(engine, batch(graph)))
    engine.close()


def test_it_comes_to_the_trainer_and_not_as_the_end_of_an_epoch() -> None:
    """Of a loader with a graph function, and of an iterator around a user's own pipeline; of one not built, too."""
    source = ScriptedSource(labelled(8))
    with DataLoader(source, 4, transform=_twice, device="cpu", tuning=QUICK) as loader, pytest.raises(EngineError):
        list(loader)
    mine = pipeline_of(lambda: _far(fn.decoders.image(fn.external_source(name="image")), None))
    with DALIGenericIterator(mine, ["data"], source) as loop, pytest.raises(EngineError, match="reductions"):
        list(loop)
    with Feed(source, 4, device=99) as feed, pytest.raises(EngineError, match="cannot be built"):
        iter(feed)


STAYS, MEMORY, PASSES = "Start again", "out of memory on cuda:1: ", ""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (BROKEN, STAYS),
        ("CUDA driver API error CUDA_ERROR_ILLEGAL_ADDRESS (700):\nan illegal memory access was encountered", STAYS),
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported", STAYS),
        ("cudaErrorLaunchFailure: unspecified launch failure", STAYS),
        ("CUDA driver API error CUDA_ERROR_LAUNCH_FAILED (719)", STAYS),
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
        (OWN, PASSES),
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
    engine = engine_of("dali", compile_function(lambda images, draws: images + 1), COUNT, threads=1)
    maker = maker_of(engine)

    def release() -> None:
        states.append((maker._main, maker._twin))
        raise RuntimeError(BROKEN)

    monkeypatch.setattr(dali_images, "ReleaseUnusedMemory", release)
    for device in (None, 0):  # the second as if it had run there
        maker._device = device
        engine.close()
    assert states == [(None, None)]
