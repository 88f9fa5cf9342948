"""The DALI engine: one pipeline that is fed batch by batch, and a twin, a second one for batches to be run again.

It relies on these facts (tests hold them): with the dynamic executor a batch that fails raises alone, and the
batches behind it arrive whole and in order; equal input gives equal output in the twin, because nothing
in the graph draws random numbers; views given with no_copy are kept alive by DALI while in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline
from nvidia.dali.backend import ReleaseUnusedMemory
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from dali_feed.compiler.program import ViewsProgram
from dali_feed.engines.codec import nvimgcodec
from dali_feed.engines.dali.graph import PAYLOAD, DaliProgram, build_graph
from dali_feed.engines.engine import Result, Tail, Work
from dali_feed.engines.failures import ends_all, engine_error, out_of_memory, stays
from dali_feed.engines.gpu.device import KEPT, use
from dali_feed.engines.host.decode import new_decoder
from dali_feed.errors import ClosedError, DaliFeedError, EngineError, TransformError
from dali_feed.options import Tuning
from dali_feed.screen import pillow
from dali_feed.screen.header import UnusableError
from dali_feed.transforms.keys import by_view

__all__ = ["DaliEngine", "prepared", "refused", "twin_threads"]


# Finds the payloads that a decoder refuses, one verdict per payload, without ending the process.
#
# nvImageCodec is DALI's own decoder; asked for a list, it gives None for each item that fails.


def refused(payloads: Sequence[Any], threads: int = 1, check: Callable[[], None] = lambda: None) -> dict[int, str]:
    """Index -> reason for every payload (bytes, uint8) that cannot be decoded on the CPU, by so many threads.

    `check` is called now and then; an exception of it ends the search.
    """
    bad: dict[int, str] = {}
    streams: list[Any] = []
    rows: list[int] = []
    for n, payload in enumerate(payloads):
        try:
            streams.append(nvimgcodec.CodeStream(np.asarray(payload)))
            rows.append(n)
        except RuntimeError:
            bad[n] = "decoder: nvImageCodec cannot parse it"
    decoder, some = new_decoder(threads), 4 * threads  # images held at a time: a batch of large ones fills gigabytes
    for first in range(0, len(streams), some):
        check()
        images = decoder.decode(streams[first : first + some])
        for n, image in zip(rows[first : first + some], images, strict=True):
            if image is None:
                bad[n] = "decoder: nvImageCodec cannot decode it"
    return bad


_ENGINE = "dali engine"  # its name in errors
_TWIN_THREADS = 2, 4  # at least and at most: the twin runs one batch now and then


def twin_threads(threads: int) -> int:
    """Threads of a twin beside a pipeline of so many."""
    least, most = _TWIN_THREADS
    return min(most, max(least, threads))


def _own(images: Any, seen: set[int]) -> Any:
    """The images, copied where an earlier view has their memory: DALI computes equal views once."""
    array = np.asarray(images)
    start = array.ctypes.data
    images = torch.from_numpy(array.copy()) if start in seen else images
    seen.add(start)
    return images


# The inputs of a DALI graph: payloads as they are, or pixels decoded by Pillow where nvImageCodec gets none.
#
# Such a payload becomes a PPM, which the graph's decoder reads as it is, whole or a window, on every device; one that
# is such a file already is given as it is.


_GRAPHS = (0xFF, 0x89)  # first bytes of JPEG and PNG; a decoder of a graph gets no other format but a plain PPM


@dataclass(frozen=True, slots=True, eq=False)
class _Aside:
    """A payload to be decoded before the graph."""

    payload: memoryview


def prepared(payloads: Sequence[memoryview]) -> list[Any]:
    """DALI's view of each payload, none of them empty, or a mark that it must be decoded first."""
    return [TensorCPU(view) if view[0] in _GRAPHS or pillow.is_usual(view) else _Aside(view) for view in payloads]


class Feeder:
    """Decodes marked payloads for the graph, on threads of its own that are started by the first such image."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, some: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
        """The graph's input, and the slots that cannot be decoded, each with the reason: then feed nothing."""
        out, bad = list(some), dict[int, str]()
        rows = [n for n, one in enumerate(some) if type(one) is _Aside]
        if not rows:
            return out, bad
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "dali_feed-pillow")
        for n, made in zip(rows, self._pool.map(_decoded, [some[n].payload for n in rows]), strict=True):
            if isinstance(made, str):
                bad[n] = made
            else:
                out[n] = TensorCPU(made)
        return out, bad

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _decoded(payload: memoryview) -> bytes | str:
    try:
        return pillow.pnm(pillow.decode(payload))
    except UnusableError as error:
        return str(error)


class DaliEngine:
    """Runs a program as a DALI graph, on a CUDA device or on DALI's CPU backend (`device` None)."""

    name = "dali"
    payload = PAYLOAD  # the input that takes them

    def __init__(
        self, program: DaliProgram | ViewsProgram[DaliProgram], *, batch_size: int, device: int | None, tuning: Tuning
    ) -> None:
        self.depth = tuning.prefetch
        self._program, self._batch_size, self._device = program, batch_size, device
        self._threads = tuning.cpu_threads if device is None else tuning.gpu_threads
        self._flying: list[tuple[Work, dict[int, str]]] = []  # a batch with bad slots is not in the pipeline
        self._fed = Feeder(self._threads)
        self._halted = False
        self._twin: Any = None
        self._half_fed: Any = None
        self._main: Any = self._pipeline(self.depth)
        self._takes: dict[str, bool] = {}
        if not self._has_input(self.payload):
            msg = "transform: a graph function must use the images that it is given; found one that does not"
            raise TransformError(msg)

    def _pipeline(self, depth: int, *, twin: bool = False) -> Any:
        """Build a pipeline. Raises EngineError for anything that DALI raises."""
        # One more: the thread that distributes the work decodes little itself.
        threads = twin_threads(self._threads) if twin else self._threads + 1
        try:
            return self._built(depth, threads, twin=twin)
        except DaliFeedError:
            raise
        except Exception as error:
            raise engine_error(self._called(), "the graph cannot be built", error, self._device) from error

    def _called(self) -> str:
        return _ENGINE

    def _built(self, depth: int, threads: int, *, twin: bool) -> Any:
        pipe = Pipeline(
            batch_size=self._batch_size,
            num_threads=threads,
            device_id=self._device,
            prefetch_queue_depth=depth,
            exec_dynamic=True,
            seed=0,
        )
        with pipe:
            on_gpu = self._device is not None
            pipe.set_outputs(*build_graph(self._program.views, gpu=on_gpu, spare=twin))
        pipe.build()
        return pipe

    def enter(self) -> None:
        """Make the engine's GPU the thread's current one, or DALI and torch would also open a context on GPU 0."""
        use(self._device)

    def _has_input(self, name: str) -> bool:
        """Whether the graph uses a declared input; DALI drops inputs that lead nowhere."""
        if name not in self._takes:
            try:
                self._takes[name] = self._main.input_feed_count(name) > 0
            except KeyError:
                self._takes[name] = False
        return self._takes[name]

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """DALI's view of each payload."""
        return prepared(payloads)

    def _feed(self, pipe: Any, work: Work) -> None:
        # The calls inside pipe.feed_input, and below pipe.run and pipe.outputs: their checks, repeated for each batch,
        # cost more than the work.
        feed = pipe._pipe.SetExternalTLInput
        feed(self.payload, TensorListCPU(work.payloads, contiguous=False), None, False)
        for name, rows in work.arrays.items():
            if self._has_input(name):
                feed(name, TensorListCPU(rows), None, False)

    def _start(self, pipe: Any, work: Work) -> tuple[Work, dict[int, str]]:
        """Feed a batch; gives its entry among those in flight. With bad slots nothing is fed."""
        if pipe is self._half_fed:
            msg = f"{_ENGINE}: an earlier batch could not be fed; make a new loader"
            raise EngineError(msg)
        payloads, bad = self._fed(work.payloads)
        work = replace(work, payloads=payloads)
        if bad:
            return work, bad
        try:
            self._feed(pipe, work)
            pipe._pipe.Run()
        except DaliFeedError:
            raise
        except Exception as error:
            self._half_fed = pipe  # inputs that it has already taken would be used for the next batch
            what = f"a batch of {len(work.payloads)} cannot be fed"
            raise engine_error(_ENGINE, what, error, self._device) from error
        return work, bad

    def submit(self, work: Work) -> None:
        """Start a batch."""
        self._flying.append(self._start(self._main, work))

    def take(self) -> Result:
        """The oldest batch; where it failed, its bad slots."""
        return self._result(self._main, *self._flying.pop(0))

    def discard(self) -> None:
        """Wait for the oldest batch and drop it."""
        _, bad = self._flying.pop(0)
        if bad:
            return
        with suppress(Exception):  # a failed batch is out of the pipeline like a good one
            self._main._pipe.Outputs(None)

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """Run all of `work` on the twin: DALI gives no outputs of a batch that failed."""
        del failed, slots
        self._check_halted()
        if self._twin is None:
            self._twin = self._pipeline(1, twin=True)
        return self._result(self._twin, *self._start(self._twin, work))

    def halt(self) -> None:
        """Redo nothing any more. DALI finishes what is in flight; nothing can stop that."""
        self._halted = True

    def resume(self) -> None:
        """Be ready for batches again."""
        self._halted = False

    def _check_halted(self) -> None:
        if self._halted:
            msg = "dali engine: the iteration was ended while its batch was run"
            raise ClosedError(msg)

    def at_work(self) -> Sequence[int]:
        """Nothing: DALI does not say."""
        return ()

    def _result(self, pipe: Any, work: Work, bad: dict[int, str]) -> Result:
        if bad:
            return Result(None, bad)
        try:
            outputs = pipe._pipe.Outputs(None)
        except Exception as error:  # ValueError, IndexError and more: operators raise many types
            if stays(error, self._device):
                raise self._failure(error) from error
            bad = refused(work.payloads, self._threads, self._check_halted)
            return Result(None, bad) if bad else self._one_by_one(pipe, work, error)
        return self._made(outputs, work)

    def _dense(self, out: Any, what: str) -> Any:
        """An output as one tensor."""
        if not out.is_dense_tensor():
            shapes = sorted({tuple(shape) for shape in out.shape()})
            found = f"the graph gave {shapes[:4]}"
            msg = f"dali engine: {what} of a batch must have one size; {found}. Crop or resize to one"
            raise EngineError(msg)
        return out.as_tensor()

    def _made(self, outputs: Any, work: Work) -> Result:
        """The graph's outputs as the result of `work`."""
        made: list[tuple[Any, Tail | None]] = []
        views, seen = self._program.views, set[int]()
        for view, arrays, output in zip(views, by_view(work.arrays, len(views)), outputs, strict=True):
            images = self._dense(output, "the images")
            if self._device is None and len(views) > 1:
                images = _own(images, seen)
            tail = None if self._device is None else Tail.of(view.finish, arrays)
            if self._device is None and view.dtype == "bfloat16":  # a dtype that DALI does not have
                images = torch.utils.dlpack.from_dlpack(images).to(torch.bfloat16)
            made.append((images, tail))
        (first, tail), *more = made
        return Result(first, tail=tail, more=tuple(more))

    def _one_by_one(self, pipe: Any, work: Work, error: Exception) -> Result:
        """The CPU decoder takes every payload: run the graph with one sample at a time to see which it fails on."""
        if out_of_memory(error):
            raise self._failure(error) from error
        bad: dict[int, str] = {}
        for n in range(len(work.payloads) if len(work.payloads) > 1 else 0):
            arrays = {key: rows[n : n + 1] for key, rows in work.arrays.items()}
            fields = {name: rows[n : n + 1] for name, rows in work.fields.items()}
            alone = Work(work.payloads[n : n + 1], arrays, fields)
            try:
                self.redo(alone)
            except EngineError as failure:
                if ends_all(failure.__cause__, self._device):
                    raise
                bad[n] = f"decoder: {failure}"
        if len(bad) == len(work.payloads) or (pipe is self._twin and not bad):
            raise self._failure(error) from error
        return Result(None, bad) if bad else self.redo(work)

    def _failure(self, error: Exception) -> EngineError:
        nobodys = ends_all(error, self._device)
        what = "a batch failed" if nobodys else "the graph failed on a batch whose images can all be decoded"
        return engine_error(_ENGINE, what, error, self._device)

    def close(self) -> None:
        """Drop both pipelines, upon which DALI joins its threads, and give back the memory that it keeps of them."""
        self._flying.clear()
        self._fed.close()
        if self._device is not None and self._main is not None:
            KEPT.let_go()  # before DALI's memory pool is released
        self._main = self._twin = None
        if self._device is not None:
            with suppress(Exception):  # the GPU may have failed for good
                ReleaseUnusedMemory()
