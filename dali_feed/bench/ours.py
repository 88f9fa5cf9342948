"""Our loader as a contestant, and who stands above it: its engine fed from memory, and a bare loop of its decoder.

The law: everybody does the same work, from encoded bytes to a normalized float batch on the device. The ceiling reads
nothing, screens nothing and draws nothing; the bare loop reads each image from the tar shards, in the same task: the
work that a loader over them has too. What a loader loses beside them is the loader's.

All that a bench needs of the loader's arguments and of the engines' insides stands in this file.
"""

from __future__ import annotations

import functools
import itertools
import os
import tarfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia import nvimgcodec
from torch.nn.functional import interpolate
from torchvision.transforms import v2

from dali_feed.bench.data import BenchJob, payloads_of
from dali_feed.bench.runner import Contestant, Opens, Steps, installed
from dali_feed.engines.choose import choose_engine, compile_for, make_engine
from dali_feed.engines.device.parcel import Parcels
from dali_feed.engines.engine import Engine, Work
from dali_feed.engines.finish import finished
from dali_feed.engines.host.decode import decoded, new_decoder
from dali_feed.errors import DataLostError, EngineError
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet
from dali_feed.feed.stats import verdict
from dali_feed.loader import DataLoader
from dali_feed.options import BadRecords, Decode, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.records.metrics import since
from dali_feed.records.source import Source
from dali_feed.screen.screen import screen
from dali_feed.transforms.lower import lower
from dali_feed.transforms.op import Key
from dali_feed.transforms.program import Output, Program, compile_host

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SCALE = 1 / (255 * torch.tensor(STD).view(3, 1, 1))
BIAS = -torch.tensor(MEAN).view(3, 1, 1) / torch.tensor(STD).view(3, 1, 1)
CROP = 224
KAFKA_SHUFFLE = Shuffle(window=2)  # 64 MB read at a time: with the usual 256 a turn sees too few windows
PREPARED = 64  # batches that the ceiling is fed with in turn


def transform(crop: int = CROP) -> v2.Compose:
    """What everybody does to each image: a float32 (3, crop, crop) comes out."""
    pixels = [v2.RandomResizedCrop(crop, antialias=True), v2.RandomHorizontalFlip()]
    return v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def cuda_index(device: str) -> int | None:
    """The number that engines know a device by; None for the CPU."""
    where = torch.device(device)
    return None if where.type == "cpu" else where.index or 0


def engine_of(name: str | None, device: str) -> str:
    """The engine of that name, or the loader's own choice there. Raises ConfigError where there is no such one."""
    return choose_engine(Decode(engine=name).engine, cuda_index(device), graph=False)


def to_float(pixels: torch.Tensor, out: torch.Tensor) -> None:
    """uint8 (3, height, width), normalized into `out`."""
    out.copy_(pixels)  # first: one call that multiplies too takes twice as long, as dtypes and strides differ
    out.mul_(SCALE).add_(BIAS)


class _Watched(np.ndarray[Any, Any]):
    """A view whose death can be watched."""


class FloatPool:
    """Batches of floats in memory that is used again once the last tensor over it has died.

    Fresh memory of this size costs a page fault every 4 KB, more than all that is done to its pixels. Whoever would
    pay that gets this one, so that the contestants differ in their own work.
    """

    def __init__(self, batch: int, crop: int = CROP) -> None:
        self._shape = (batch, 3, crop, crop)
        self._idle: deque[NDArray[np.float32]] = deque()

    def take(self) -> torch.Tensor:
        """A batch that is nobody else's; any thread may take one."""
        try:
            raw = self._idle.pop()
        except IndexError:
            raw = np.empty(self._shape, np.float32)
        view = raw.view(_Watched)
        weakref.finalize(view, self._idle.append, raw).atexit = False
        return torch.from_numpy(view)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch computes with one thread, in this thread and in those that start meanwhile.

    With more, the threads of one operation wait for each other in busy loops, on the cores that others decode on.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def loader(source: Source, batch: int, *, device: str = "cpu", engine: str | None = None, **options: Any) -> DataLoader:
    """Our loader as every bench makes it: whole batches, and no bad record. `options`: further arguments of it."""
    every: dict[str, Any] = {"shuffle": True, "drop_last": True, "bad": BadRecords(limit=0)} | options
    every.setdefault("decode", Decode(engine=engine))
    return DataLoader(source, batch, device=torch.device(device), **every)


class OurSteps(Steps):
    """Batches of our loader, epoch after epoch; what it says of itself is of the steps since `begins`."""

    def __init__(self, feeding: DataLoader) -> None:
        self._loader, self._batches = feeding, iter(feeding)
        self._before = feeding.stats()

    def begins(self) -> None:
        """What was before does not count."""
        self._before = self._loader.stats()

    def __next__(self) -> int:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return self.step(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])

    def extras(self) -> dict[str, float | str]:
        """What it says of the steps that were counted; `feed us` of the whole turn, as it is added at its end."""
        stats = self._loader.stats()
        judged = verdict(since(self._before, stats))
        numbers: dict[str, float | str]
        numbers = {"feed us": round(1e6 * stats.feed_cpu / max(1, stats.samples), 2), "slab MB": stats.slab_peak / 1e6}
        return {**numbers, "verdict": judged.sentence, "advice": "; ".join(judged.advice)}


def ours(make: Callable[[], DataLoader]) -> Opens:
    """`Contestant.opens` of our loader, made afresh for each turn and closed behind it."""

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        with make() as feeding:
            yield OurSteps(feeding)

    return opens


def our_contestants(job: BenchJob, *reads: str, **tuning: Any) -> list[Contestant]:
    """Our loader over the same images: as "tar" shards, as a "folder" of files, as a topic ("kafka").

    `tuning`: further settings of its `Tuning`.
    """
    data, version = job.data, installed("dali-feed")
    shared: dict[str, Any] = {"device": job.device, "transform": transform(job.crop), "seed": job.seed}
    shared |= {
        "tuning": Tuning(threads=job.threads, **tuning),
        "decode": Decode(engine=job.engine, hardware=job.hardware),
    }

    def source(kind: str) -> Source:
        if kind == "kafka" and data.topic is not None:
            return KafkaTopic(data.topic.name, data.topic.servers)
        if kind == "folder":
            return FileList.from_folder(data.files)
        return ShardSet([str(path) for path in data.linked or data.shards])

    def contestant(kind: str) -> Contestant:
        options = shared | ({"shuffle": KAFKA_SHUFFLE} if kind == "kafka" else {})
        unable = None
        if kind == "kafka" and data.topic is None:
            unable = "this data is not in a topic; `dali-feed bench kafka` measures one"
        opens = ours(lambda: loader(source(kind), job.batch, **options))
        return Contestant(kind, opens, role="ours", unable=unable, version=version)

    return [contestant(kind) for kind in reads]


class _Ceiling(Steps):
    def __init__(self, works: list[Work], engine: Engine) -> None:
        self._engine = engine
        self._works, self._at = works, 0
        self._stop, self._flying = threading.Event(), deque[Work]()
        self._parcels = None if engine.device is None else Parcels(engine.device)
        for _ in range(engine.depth):
            self._submit()

    def _submit(self) -> None:
        one = self._works[self._at % len(self._works)]
        self._flying.append(Work(one.ids, one.payloads, one.rows))
        self._engine.submit(self._flying[-1], self._stop)
        self._at += 1

    def __next__(self) -> int:
        work = self._engine.take(self._flying.popleft())
        if work.bad:
            msg = f"ceiling: every image must be decodable; one is not: {next(iter(work.bad.values()))}; leave it out"
            raise EngineError(msg)
        (pixels,) = work.outputs
        if pixels.device is not None and self._parcels is not None:
            (pixels.tail,), _ = self._parcels.with_tails([pixels.tail], {})
            pixels.device.wait()
        with pixels.reading():
            images = finished(pixels.images, pixels.tail, pixels.device)
        self._submit()
        return self.step(images)

    def close(self) -> None:
        for work in self._flying:
            self._engine.discard(work)
        self._engine.close()


Within = Callable[[], AbstractContextManager[Any]]


class _InTurn(Steps):
    """Several at work at once, of which each gives a batch in turn."""

    def __init__(self, each: Sequence[Steps]) -> None:
        self._each = itertools.cycle(each)

    def __next__(self) -> float:
        return next(next(self._each))


def ceiling(
    job: BenchJob, *, engines: int = 1, prefetch: int | None = None, pinned: bool = False, within: Within = nullcontext
) -> Contestant:
    """The engine fed from memory, with prepared batches in turn; `pinned`: from page-locked memory.

    It is made and run `within` a context, which each turn enters anew.
    """

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        views = [memoryview(payload) for payload in payloads_of(job.data)]
        name, index, tuning = engine_of(job.engine, job.device), cuda_index(job.device), Tuning(threads=job.threads)
        tuning = tuning if prefetch is None else replace(tuning, prefetch=prefetch)
        recipe = replace(lower(transform(job.crop)), hardware=job.hardware)
        program = Program((Output(name, compile_for(name, recipe, index)),))
        rng = np.random.default_rng(0)
        works: list[Work] = []
        sizes = screen(views).sizes
        if pinned:
            views = [torch.frombuffer(bytearray(each), dtype=torch.uint8).pin_memory().numpy().data for each in views]
        while len(works) < PREPARED:
            ids = rng.integers(0, len(views), job.batch)
            drawn = program.draw(sizes[ids], ids, 0, 0)[0]
            works.append(Work(ids, {"": [views[k] for k in ids.tolist()]}, drawn))
        with within(), ExitStack() as stack:
            made = [make_engine(program, batch_size=job.batch, device=index, tuning=tuning) for _ in range(engines)]
            steps = [stack.enter_context(closing(_Ceiling(works, engine))) for engine in made]
            yield steps[0] if engines == 1 else _InTurn(steps)

    return Contestant("ceiling", opens, role="top", version=installed("dali-feed"))


Task = Callable[[Any, NDArray[np.int64], int], Sized]


class _Pooled(Steps):
    """Batches of rows worked on by a pool of threads, a task each, in order; one more in flight than threads."""

    def __init__(self, task: Task, begin: Callable[[], Any], count: int, batch: int, threads: int) -> None:
        self._task, self._begin, self._count, self._batch = task, begin, count, batch
        self._rng, self._number, self._local = np.random.default_rng(0), 0, threading.local()
        self._pool = ThreadPoolExecutor(threads, "bench-pool", self._start)
        self._flying: deque[Future[Any]] = deque()
        for _ in range(threads + 1):
            self._submit()

    def _start(self) -> None:
        self._local.own = self._begin()

    def _submit(self) -> None:
        rows = self._rng.integers(0, self._count, self._batch)
        self._flying.append(self._pool.submit(self._run, rows, self._number))
        self._number += 1

    def _run(self, rows: NDArray[np.int64], number: int) -> Sized:
        return self._task(self._local.own, rows, number)

    def __next__(self) -> int:
        done = self._flying.popleft().result()
        self._submit()
        return self.step(done)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def pooled(task: Task, begin: Callable[[], Any], count: int, batch: int, threads: int) -> Opens:
    """`Contestant.opens` of so many threads.

    `task` is called as task(own, rows, number) with `batch` of `count` rows, drawn at random, int64, and the number of
    the batch; what it gives is as long as they are. `begin` makes what a thread owns.
    """

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        with closing(_Pooled(task, begin, count, batch, threads)) as steps:
            yield steps

    return opens


class _TarReads:
    """Images as they lie in tar shards: each is one `preadv` of its own bytes, into memory that is used again.

    For any thread. No index of ours, no header, no label: who reads a record at random can hardly do less.
    """

    def __init__(self, shards: Sequence[Path]) -> None:
        self._shards, self._places = tuple(shards), _places(tuple(shards))
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in shards]
        self._own = threading.local()

    def __len__(self) -> int:
        return len(self._places)

    def __call__(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """The bytes of those images, until the same thread's next call."""
        places = self._places[rows]
        ends = np.cumsum(places[:, 2])
        memory: NDArray[np.uint8] | None = getattr(self._own, "memory", None)
        if memory is None or len(memory) < ends[-1]:
            memory = self._own.memory = np.empty(int(ends[-1]) * 5 // 4, np.uint8)
        views = []
        for (shard, at, size), end in zip(places.tolist(), ends.tolist(), strict=True):
            view = memory[end - size : end]
            if os.preadv(self._files[shard], (view.data,), at) != size:
                path = self._shards[shard]
                msg = f"{path}: must have {size} bytes at byte {at}, as before; it was cut; write it again"
                raise DataLostError(msg)
            views.append(view)
        return views

    def close(self) -> None:
        files, self._files = self._files, []
        for file in files:
            os.close(file)


@functools.lru_cache(maxsize=1)  # listed once, not in every turn
def _places(shards: tuple[Path, ...]) -> NDArray[np.int64]:
    """Shard, first byte and size of each image, int64 (n, 3): of each member that is no label."""
    places = []
    for number, path in enumerate(shards):
        with tarfile.open(path) as tar:
            places += [(number, each.offset_data, each.size) for each in tar if not each.name.endswith(".cls")]
    return np.array(places, np.int64).reshape(-1, 3)


def bare(job: BenchJob) -> Contestant:
    """The host engine's decoder and resize in a bare loop of threads, which reads each image from the shards.

    A task is a whole batch; batches come in their order. No screen, no bad image, no state.
    """
    program = compile_host(lower(transform(job.crop)))

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        pool = FloatPool(job.batch, job.crop)
        with closing(_TarReads(job.data.shards)) as reads:

            def task(decoder: Any, rows: NDArray[np.int64], number: int) -> torch.Tensor:
                streams = [nvimgcodec.CodeStream(encoded) for encoded in reads(rows)]
                sizes = np.array([(stream.height, stream.width) for stream in streams], np.int32)
                drawn = program.parameters(sizes, rows, 0, number).arrays
                views = [nvimgcodec.Region(y, x, y + h, x + w) for y, x, h, w in drawn[Key("window")].tolist()]
                regions = [
                    stream.get_sub_code_stream(nvimgcodec.CodeStreamView(region=view))
                    for stream, view in zip(streams, views, strict=True)
                ]
                images, out = decoder.decode(regions), pool.take()
                for image, mirrored, to in zip(images, drawn[Key("flip1")].tolist(), out, strict=True):
                    pixels = torch.from_numpy(np.asarray(image))[None].permute(0, 3, 1, 2)
                    scaled = interpolate(pixels, size=(job.crop, job.crop), mode="bilinear", antialias=True)[0]
                    to_float(scaled.flip(-1) if mirrored else scaled, to)
                return out

            with one_torch_thread(), pooled(task, new_decoder, len(reads), job.batch, job.threads)("") as steps:
                yield steps

    unable = None if job.device == "cpu" else "decodes on the CPU; measured with --device cpu"
    version = installed("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
    return Contestant("bare", opens, role="top", unable=unable, version=version)


def draw_windows(payloads: Sequence[bytes], crop: int) -> NDArray[np.int32]:
    """A window of each image, int32 (n, 4): y, x, height, width; as RandomResizedCrop draws them."""
    sizes = screen([memoryview(payload) for payload in payloads]).sizes
    drawn = compile_host(lower(transform(crop))).parameters(sizes, np.arange(len(payloads)), 0, 0).arrays
    return np.ascontiguousarray(drawn[Key("window")], np.int32)


def decoders(payloads: Sequence[bytes], windows: Sequence[Sequence[int]] | None) -> tuple[Task, Callable[[], Any]]:
    """The host engine's decoding alone, of whole images or of windows: a task for `pooled`, and what a thread owns."""
    views = [memoryview(payload) for payload in payloads]

    def task(decoder: Any, rows: NDArray[np.int64], _: int) -> Sized:
        for row in rows.tolist():
            decoded(decoder, views[row], None if windows is None else windows[row])
        return rows

    return task, new_decoder
