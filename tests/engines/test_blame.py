"""Whose fault a failed batch is: what is no record's comes first, and a record's is one only when it is sure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kit.engine_runs import engine_of, images_of, maker_of, submit, work_for
from kit.images import bad_tables, jpeg
from kit.recorded import Recorded
from nvidia.dali import fn

from dali_feed.engines.dali import images as dali_images
from dali_feed.engines.dali.user_graph import compile_function
from dali_feed.engines.engine import Engine, Work
from dali_feed.errors import EngineError

COUNT = 4
NO_MEMORY, CAPTURED = "CUDA_ERROR_OUT_OF_MEMORY (2)", "cudaErrorStreamCaptureUnsupported (900)"
OWN = "nvJPEG error (6): NVJPEG_STATUS_EXECUTION_FAILED"


class Graph:
    """A graph of the user's that fails by a script: what the n-th run of a sample raises, or None."""

    def __init__(self, script: Callable[[int, int], str | None]) -> None:
        self._script, self.runs = script, list[int]()

    def __call__(self, images: Any, draws: Any) -> Any:
        """Samples are known by their mean."""
        return fn.python_function(images, function=self.run)

    def run(self, image: Any) -> Any:
        """One sample, of number `which` by its height."""
        which = image.shape[0] - 40
        self.runs.append(which)
        if (raises := self._script(which, self.runs.count(which))) is not None:
            raise RuntimeError(raises)
        return image[:40]


def submitted(graph: Graph, monkeypatch: pytest.MonkeyPatch, *, good: bool = False) -> tuple[Engine, Work, Recorded]:
    """An engine as before a GPU, with a batch in it; `good`: behind one that went through, of sample 0."""
    program = compile_function(graph)
    engine = engine_of("dali", program, COUNT, threads=1)
    gpu = Recorded()
    maker_of(engine)._gpu = gpu
    monkeypatch.setattr(dali_images, "ReleaseUnusedMemory", lambda: gpu.calls.append("release"))
    if good:
        engine.take(submit(engine, work_for(program, [jpeg(0, 40, 50)])))
        graph.runs.clear()
    return engine, submit(engine, work_for(program, [jpeg(n, 40 + n, 50) for n in range(COUNT)])), gpu


def whole(work: Work) -> bool:
    """Whether all of it came out."""
    return not work.bad and np.array(images_of(work)).shape == (COUNT, 40, 50, 3)


def test_memory_is_given_back_and_the_batch_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody is blamed: torch's and DALI's, once, and then the whole batch."""
    graph = Graph(lambda which, run: NO_MEMORY if (which, run) == (0, 1) else None)
    engine, work, gpu = submitted(graph, monkeypatch)
    assert whole(engine.take(work))
    assert gpu.calls == ["free_memory", "release"]
    engine.close()


def test_memory_that_is_missing_then_too_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no record: none of them is run by itself, and the CPU's decoder is not asked."""
    monkeypatch.setattr(dali_images, "undecodable", None)
    engine, work, gpu = submitted(Graph(lambda which, run: NO_MEMORY), monkeypatch)
    monkeypatch.setattr(maker_of(engine), "_one_by_one", None)
    with pytest.raises(EngineError, match="a batch failed; out of memory"):
        engine.take(work)
    assert gpu.calls.count("release") == 1
    engine.close()


@pytest.mark.parametrize(("free", "short"), [(COUNT * 40 * 50 * 3 - 1, True), (10**9, False)])
def test_no_memory_is_seen_by_the_figures_where_words_are_silent(
    monkeypatch: pytest.MonkeyPatch, free: int, short: bool
) -> None:
    """A decoder that says nothing of memory, on a GPU with less of it than the decoded images take."""
    monkeypatch.setattr(dali_images, "free_and_total", lambda device: (free, 10**10))
    engine, work, gpu = submitted(Graph(lambda which, run: OWN if (which, run) == (0, 1) else None), monkeypatch)
    assert whole(engine.take(work))
    assert ("free_memory" in gpu.calls) == short
    engine.close()


def test_a_record_is_not_blamed_on_a_gpu_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the CPU's decoder takes and the graph does not is then out of memory, though no word says so."""
    monkeypatch.setattr(dali_images, "free_and_total", lambda device: (1, 10**10))
    engine, work, _ = submitted(Graph(lambda which, run: OWN), monkeypatch)
    monkeypatch.setattr(maker_of(engine), "_one_by_one", None)
    with pytest.raises(EngineError, match="a batch failed; out of memory .*NVJPEG_STATUS_EXECUTION_FAILED"):
        engine.take(work)
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


def test_a_capture_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread captures a CUDA graph the batch is tried again, and nobody is blamed."""
    monkeypatch.setattr(dali_images, "LOOK", 0.0)
    graph = Graph(lambda which, run: CAPTURED if run <= 3 else None)
    engine, work, _ = submitted(graph, monkeypatch)
    assert whole(engine.take(work))
    engine.close()


def test_a_capture_without_an_end_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how to capture."""
    monkeypatch.setattr(dali_images, "CAPTURED", 0.0)
    engine, work, _ = submitted(Graph(lambda which, run: CAPTURED), monkeypatch)
    with pytest.raises(EngineError, match="a CUDA graph is captured .*capture_error_mode='thread_local'"):
        engine.take(work)
    engine.close()


def test_what_fails_on_a_sample_that_was_good_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run first; where it fails now, no other is tried by itself."""
    broken = False
    graph = Graph(lambda which, run: OWN if broken else None)
    engine, work, _ = submitted(graph, monkeypatch, good=True)
    engine.take(work)
    broken = True
    graph.runs.clear()
    monkeypatch.setattr(maker_of(engine), "_one_by_one", None)
    with pytest.raises(EngineError, match="NVJPEG_STATUS_EXECUTION_FAILED"):
        engine.redo(work_for(compile_function(graph), [jpeg(n, 40 + n, 50) for n in range(COUNT)]))
    assert graph.runs[-1] == 0
    engine.close()


def test_a_record_is_bad_that_fails_alone_and_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails alone once is not; with the reason that the graph gave."""
    graph = Graph(lambda which, run: OWN if which == 2 or (which == 1 and run <= 2) else None)
    engine, work, _ = submitted(graph, monkeypatch)
    engine.take(work)
    assert list(work.bad) == [2]
    assert work.bad[2].startswith("decoder: dali engine: the graph failed")
    assert "NVJPEG_STATUS_EXECUTION_FAILED" in work.bad[2]
    engine.close()


@pytest.mark.parametrize("good", [False, True])
def test_a_batch_all_of_whose_records_fail(monkeypatch: pytest.MonkeyPatch, good: bool) -> None:
    """They are bad where a sample before them still goes through; else it is the graph that fails."""
    graph = Graph(lambda which, run: OWN if which else None)
    program = compile_function(graph)
    engine = engine_of("dali", program, COUNT, threads=1)
    if good:
        engine.take(submit(engine, work_for(program, [jpeg(0, 40, 50)])))
    work = submit(engine, work_for(program, [jpeg(n, 40 + n, 50) for n in (1, 2)]))
    if good:
        assert list(engine.take(work).bad) == [0, 1]
    else:
        with pytest.raises(EngineError, match="the graph failed on a batch whose images can all be decoded"):
            engine.take(work)
    engine.close()
