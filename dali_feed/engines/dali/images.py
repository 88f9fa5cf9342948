"""Images made by DALI: one pipeline that is fed batch by batch, and a twin, a second one for batches to be run again.

It relies on these facts (tests hold them): with the dynamic executor a batch that fails raises alone, and the
batches behind it arrive whole and in order; equal input gives equal output in the twin, because nothing
in the graph draws random numbers; views given with no_copy are kept alive by DALI while in flight; with a queue of one
as many batches may be in flight as wanted, each by `feed_input` and `schedule_run`, each out by `outputs`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
from nvidia.dali import Pipeline
from nvidia.dali.backend import ReleaseUnusedMemory
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from dali_feed import sync
from dali_feed.engines.dali.graph import PAYLOAD, DaliProgram, build_graph
from dali_feed.engines.device.cuda import Device, free_and_total
from dali_feed.engines.engine import ImageMaker, Part, Pixels
from dali_feed.engines.failures import captured, ends_all, engine_error, stays
from dali_feed.engines.host.decode import undecodable
from dali_feed.engines.workers import Job, Workers, WorkerThread
from dali_feed.errors import ClosedError, DaliFeedError, EngineError, TransformError
from dali_feed.options import Tuning
from dali_feed.screen import pillow
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import header_of
from dali_feed.transforms.op import Key, viewed
from dali_feed.transforms.program import Output, Tail

# A batch that fails then fails alone, and it is the caller who says how many are in flight.
PIPELINE_OPTIONS = {"prefetch_queue_depth": 1, "exec_pipelined": True, "exec_async": True, "exec_dynamic": True}

_ENGINE = "dali engine"  # its name in errors
_TWIN_THREADS = 2, 4  # at least and at most: the twin runs one batch now and then
CAPTURED, LOOK = 30.0, 0.05  # seconds that a batch waits for the end of a CUDA graph's capture, and between two looks


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


def _kept(values: Any) -> Any:
    """Values of a member, in memory of their own."""
    if isinstance(values, np.ndarray):
        return values.copy()
    return [bytes(each) if isinstance(each, memoryview) else copy.deepcopy(each) for each in values]


_GRAPHS = (0xFF, 0x89)  # first bytes of JPEG and PNG; a decoder of a graph gets no other format but a plain PPM


class _Pillow(Job):
    """Payloads that nvImageCodec does not get: Pillow makes PPMs of them, which a graph's decoder reads as they are."""

    halted = f"{_ENGINE}: the iteration was ended while its batch was run"

    def __init__(self, part: Part, slots: Sequence[int]) -> None:
        super().__init__([(slot,) for slot in slots], part.stop)
        self._payloads = part.payloads
        self.files: dict[int, bytes] = {}
        self.bad: dict[int, str] = {}

    def run(self, worker: WorkerThread, slots: Sequence[int]) -> None:
        """Decode one."""
        worker.slots = slots
        for slot in slots:
            try:
                self.files[slot] = pillow.pnm(pillow.decode(self._payloads[slot]))
            except UnusableError as error:
                self.bad[slot] = str(error)


class _Ticket:
    """A batch on its way through a pipeline: it waits for Pillow, is in the graph, or is out of it.

    payloads  DALI's view of each, once it is fed
    outputs   what the graph gave; None before that, and where it raised `error`
    """

    def __init__(self, part: Part, pillow: _Pillow | None) -> None:
        self.part, self.pillow = part, pillow
        self.payloads: list[Any] = []
        self.fed = self.done = False
        self.outputs: Any = None
        self.error: Exception | None = None

    @property
    def bad(self) -> dict[int, str]:
        """What Pillow cannot decode; then nothing is fed."""
        return {} if self.pillow is None else self.pillow.bad


class DaliImages(ImageMaker):
    """Runs programs as a DALI graph, on a CUDA device or on DALI's CPU backend.

    Batches go through the pipeline in the order in which they were begun. One that waits for Pillow holds up those
    behind it there, and never the thread that begins them.
    """

    payload: Key = PAYLOAD  # the input that takes them
    inputs: Collection[str] = ()  # the values that it takes beside them
    called = _ENGINE  # in errors about its graph

    def __init__(
        self, outputs: Sequence[Output], workers: Workers, *, batch_size: int, device: Device | None, tuning: Tuning
    ) -> None:
        self._programs = [cast("DaliProgram", output.program) for output in outputs]
        self._workers, self._batch_size, self._gpu = workers, batch_size, device
        self._device = None if device is None else device.number
        self._threads = tuning.cpu_threads if device is None else tuning.gpu_threads
        self._flying: deque[_Ticket] = deque()  # begun and not yet out of the main pipeline
        self._twin: Any = None
        self._half_fed: Any = None
        self._good: Part | None = None  # a sample that went through
        self._main: Any = self._pipeline()
        self._takes: dict[str, bool] = {}
        if not self._has_input(self.payload):
            msg = "transform: a graph function must use the images that it is given; found one that does not"
            raise TransformError(msg)

    def _pipeline(self, *, twin: bool = False) -> Any:
        """Build a pipeline. Raises EngineError for anything that DALI raises."""
        # One more: the thread that distributes the work decodes little itself.
        threads = twin_threads(self._threads) if twin else self._threads + 1
        try:
            return self._built(threads, twin=twin)
        except DaliFeedError:
            raise
        except Exception as error:
            raise engine_error(self.called, "the graph cannot be built", error, self._device) from error

    def _built(self, threads: int, *, twin: bool) -> Any:
        pipe = Pipeline(
            batch_size=self._batch_size, num_threads=threads, device_id=self._device, seed=0, **PIPELINE_OPTIONS
        )
        with pipe:
            pipe.set_outputs(*build_graph(self._programs, gpu=self._device is not None, spare=twin))
        pipe.build()
        return pipe

    def _has_input(self, name: str) -> bool:
        """Whether the graph uses a declared input; DALI drops inputs that lead nowhere."""
        if name not in self._takes:
            try:
                self._takes[name] = self._main.input_feed_count(name) > 0
            except KeyError:
                self._takes[name] = False
        return self._takes[name]

    def start(self, part: Part) -> None:
        """Begin: it goes into the graph at once, unless Pillow has to decode some of it, or of a batch before it."""
        part.ticket = ticket = self._ticket(part)
        self._flying.append(ticket)
        for each in list(self._flying):
            if each.pillow is not None and each.pillow.left:
                break
            self._feed(self._main, each)
        if ticket.error is not None:
            self._flying.remove(ticket)
            raise ticket.error

    def finish(self, part: Part) -> None:
        """Fill it; where it failed, with its bad slots. Older batches leave the graph first."""
        ticket: _Ticket = part.ticket
        while not ticket.done:
            self._collect()
        part.ticket = None  # it has the part
        self._fill(ticket)

    def drop(self, part: Part) -> None:
        """Wait until it is out of the graph; what was not fed never goes there."""
        ticket: _Ticket | None = part.ticket
        if ticket is None:
            return
        if ticket.pillow is not None:
            self._workers.drop(ticket.pillow)
        if not ticket.fed and ticket in self._flying:
            self._flying.remove(ticket)
        while ticket in self._flying:
            self._collect()
        part.ticket = None

    def again(self, part: Part, before: Part | None, slots: Sequence[int]) -> None:
        """Run all of it on the twin: DALI gives no outputs of a batch that failed."""
        del before, slots
        self._fill(self._on_twin(part))

    def at_work(self, part: Part) -> Sequence[int]:
        """Those that Pillow decodes; DALI does not say."""
        ticket: _Ticket | None = part.ticket
        return () if ticket is None or ticket.pillow is None else self._workers.at(ticket.pillow)

    def close(self) -> None:
        """Drop both pipelines, upon which DALI joins its threads, and give back the memory that it keeps of them."""
        self._flying.clear()
        self._main = self._twin = self._good = None
        if self._device is not None:
            with suppress(Exception):  # the GPU may have failed for good
                ReleaseUnusedMemory()

    @staticmethod
    def aside(part: Part) -> list[int]:
        """The slots whose payloads, none of them empty, Pillow decodes first."""
        slots = enumerate(part.payloads)
        return [slot for slot, view in slots if view[0] not in _GRAPHS and not pillow.is_usual(view)]

    def _ticket(self, part: Part, *, first: bool = False) -> _Ticket:
        if not (aside := self.aside(part)):
            return _Ticket(part, None)
        job = _Pillow(part, aside)
        self._workers.add(job, first=first)
        return _Ticket(part, job)

    def _feed(self, pipe: Any, ticket: _Ticket) -> None:
        """Put a batch into the graph, once Pillow is done with it; with bad slots nothing is fed."""
        if ticket.fed or ticket.error is not None:
            return
        try:
            if ticket.pillow is not None:
                self._workers.wait(ticket.pillow)
            if ticket.bad:
                return
            if pipe is self._half_fed:
                raise EngineError(f"{_ENGINE}: an earlier batch could not be fed; make a new loader")
            payloads: list[Any] = ticket.part.payloads
            if ticket.pillow is not None:
                payloads = [ticket.pillow.files.get(slot, view) for slot, view in enumerate(payloads)]
            ticket.payloads = [TensorCPU(view) for view in payloads]
            self._start(pipe, ticket)
            ticket.fed = True
        except Exception as error:  # noqa: BLE001  whatever it is, it is this batch's and not that of who waits now
            ticket.error = error

    def _start(self, pipe: Any, ticket: _Ticket) -> None:
        try:
            self._give(pipe, ticket)
            pipe.schedule_run()
        except DaliFeedError:
            raise
        except Exception as error:
            self._half_fed = pipe  # inputs that it has already taken would be used for the next batch
            what = f"a batch of {len(ticket.payloads)} cannot be fed"
            raise engine_error(_ENGINE, what, error, self._device) from error

    def _give(self, pipe: Any, ticket: _Ticket) -> None:
        pipe.feed_input(self.payload, TensorListCPU(ticket.payloads, contiguous=False))
        for view, own in enumerate(ticket.part.rows):
            for key, rows in own.items():
                name = viewed(key, view)
                if self._has_input(name):
                    pipe.feed_input(name, TensorListCPU(rows))

    def _collect(self) -> None:
        ticket = self._flying[0]
        self._feed(self._main, ticket)
        self._take_out(self._main, ticket)
        self._flying.popleft()

    def _take_out(self, pipe: Any, ticket: _Ticket) -> None:
        if ticket.fed:
            try:
                if self._gpu is None:
                    ticket.outputs = pipe.outputs()
                else:  # the copy stream waits for them, and so does whoever waits for what was sent
                    with self._gpu.sending() as stream:
                        ticket.outputs = pipe.outputs(cuda_stream=stream)
            except Exception as error:  # noqa: BLE001  ValueError, IndexError and more: operators raise many types
                ticket.error = error
        ticket.done = True

    def _on_twin(self, part: Part) -> _Ticket:
        """A batch that has been through the twin; again and again while another thread captures a CUDA graph."""
        ends = sync.monotonic() + CAPTURED
        while True:
            self._check_stop(part)
            if self._twin is None:
                self._twin = self._pipeline(twin=True)
            part.ticket = ticket = self._ticket(part, first=True)
            self._feed(self._twin, ticket)
            self._take_out(self._twin, ticket)
            part.ticket = None
            if ticket.error is None or not captured(ticket.error) or sync.monotonic() > ends:
                return ticket
            sync.sleep(LOOK)

    @staticmethod
    def _check_stop(part: Part) -> None:
        if part.stop.is_set():
            raise ClosedError(_Pillow.halted)

    def _fill(self, ticket: _Ticket, *, again: bool = False) -> None:
        """Fill the part of a batch that is out of a graph; `again`: of one that has failed before."""
        if ticket.error is not None:
            self._blame(ticket, ticket.error, again=again)
            return
        part = ticket.part
        part.bad = dict(sorted(ticket.bad.items()))
        if not part.bad:
            part.images = self._pixels(ticket)
            self._good = self._good or self._alone(part, 0, keep=True)
        ticket.outputs = None

    def _dense(self, out: Any, what: str) -> Any:
        if not out.is_dense_tensor():
            shapes = sorted({tuple(shape) for shape in out.shape()})
            shown = f"the graph gave {shapes[:4]}"
            raise EngineError(f"dali engine: {what} of a batch must have one size; {shown}. Crop or resize to one")
        return out.as_tensor()

    def _pixels(self, ticket: _Ticket) -> list[Pixels]:
        every, seen = list[Pixels](), set[int]()
        for program, rows, output in zip(self._programs, ticket.part.rows, ticket.outputs, strict=True):
            images = self._dense(output, "the images")
            if self._device is None and len(self._programs) > 1:
                images = _own(images, seen)
            tail = None if self._device is None else Tail.of(program.finish, rows)
            if self._device is None and program.dtype == "bfloat16":  # a dtype that DALI does not have
                images = torch.utils.dlpack.from_dlpack(images).to(torch.bfloat16)
            every.append(Pixels(images, tail, device=self._gpu))
        return every

    def _blame(self, ticket: _Ticket, error: Exception, *, again: bool) -> None:
        """Find out why a batch failed. What is the fault of no record comes first, and a record's only when it is sure.

        The order: a CUDA error that stays; a capture of a CUDA graph; no memory, by the error's words or the GPU's
        figures, upon which torch and DALI give back what they keep; a sample that went through before; what the CPU's
        decoder refuses; what fails alone, twice.
        """
        part = ticket.part
        if not ticket.fed:
            raise error
        nobodys, last = ends_all(error, self._device), again or self._gpu is None
        if stays(error, self._device) or (nobodys and last):
            raise self._failure(error) from error
        short = self._short(part)
        if self._gpu is not None and not last and (nobodys or short):
            if not captured(error):
                self._gpu.free_memory()
                ReleaseUnusedMemory()
            self._fill(self._on_twin(part), again=True)
            return
        if self._good is not None and (failure := self._on_twin(self._good).error) is not None:
            raise self._failure(failure) from failure
        part.bad = undecodable(ticket.payloads, self._threads, lambda: self._check_stop(part))
        if not part.bad and short:
            raise self._failure(error, short=True) from error
        if not part.bad:
            self._one_by_one(part, error, again=again)

    def _one_by_one(self, part: Part, error: Exception, *, again: bool) -> None:
        """The CPU's decoder takes every payload: find those on which the graph fails."""
        count = len(part.payloads)
        for slot in range(count):
            alone = self._alone(part, slot)
            if self._fails(alone) and (failure := self._fails(alone)):
                part.bad[slot] = f"decoder: {failure}"
        if (len(part.bad) == count and self._good is None) or (again and not part.bad):
            raise self._failure(error) from error
        if not part.bad:
            self._fill(self._on_twin(part), again=True)

    def _fails(self, part: Part) -> EngineError | None:
        """What a sample alone ends in, or None. Raises what is the fault of no record."""
        error = self._on_twin(part).error
        if error is not None and ends_all(error, self._device):
            raise self._failure(error) from error
        return None if error is None else self._failure(error)

    def _alone(self, part: Part, slot: int, *, keep: bool = False) -> Part:
        """One sample of a batch; `keep`: with memory of its own."""
        here = slice(slot, slot + 1)
        payloads = part.payloads[here]
        rows = [{key: values[here] for key, values in own.items()} for own in part.rows]
        values = {name: part.values[name][here] for name in self.inputs}
        if keep:
            payloads = [memoryview(bytes(view)) for view in payloads]
            rows = [{key: row.copy() for key, row in own.items()} for own in rows]
            values = {name: _kept(each) for name, each in values.items()}
        return Part(payloads, rows, values, stop=sync.Event() if keep else part.stop)

    def _short(self, part: Part) -> bool:
        """Whether the GPU has less memory left than the decoded images of a batch take."""
        known = free_and_total(self._device)
        if known is None:
            return False
        headers = map(header_of, part.payloads)
        return known[0] < sum(3 * header.width * header.height for header in headers)

    def _failure(self, error: Exception, *, short: bool = False) -> EngineError:
        nobodys = short or ends_all(error, self._device)
        what = "a batch failed" if nobodys else "the graph failed on a batch whose images can all be decoded"
        return engine_error(_ENGINE, what, error, self._device, short=short)
