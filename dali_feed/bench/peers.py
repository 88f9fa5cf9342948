"""Other loaders that do our work: torch's, WebDataset, DALI's own, a Kafka client by hand, and any that a user names.

The law: each gets what its users would have to think of: one thread of torch's, and memory for floats that is used
again. Each is made afresh for a turn, and its processes end with it; whoever cannot take part says why, with the cure.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from dali_feed.bench.data import BenchJob, Topic
from dali_feed.bench.ours import BIAS, MEAN, SCALE, STD, FloatPool, cuda_index, one_torch_thread, to_float, transform
from dali_feed.bench.runner import Contestant, Steps, installed
from dali_feed.errors import EngineError, SourceUnreachableError

EPOCH = 36_000  # images at least of torch's, so that the end of an epoch is not what is measured
AHEAD = 4  # batches that each worker has made before they are asked for
BUFFER = 1000  # records that a worker draws from, where it reads them in their order
SUFFIXES = ("jpg", "jpeg", "png", "webp", "JPEG", "JPG")  # of images in tars
MANY = 64  # messages asked for at once
PATIENCE = 30.0  # seconds without a record, after which the broker is gone
CONSUMER = {
    "group.id": "dali-feed-bench",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,  # its default of a second leaves a worker with nothing to do
}


class PeerBatches(Steps):
    """Steps that take batches from an iterable, which is begun again when it ends.

    Args:
        again: gives an iterator of batches each time it is called: an epoch, or what has no end.
        images: finds a batch's images, float32 (n, 3, crop, crop) on the job's device, or whatever has their number.
    """

    def __init__(self, again: Callable[[], Iterator[Any]], images: Callable[[Any], Any]) -> None:
        self._again, self._images = again, images
        self.epoch: Any = again()

    def __next__(self) -> int:
        try:
            batch = next(self.epoch)
        except StopIteration:
            self.epoch = self._again()
            batch = next(self.epoch, None)
            if batch is None:
                msg = "an epoch must have a full batch; found none, as there are too few images; make the batch smaller"
                raise EngineError(msg) from None
        return self.step(self._images(batch))


@contextmanager
def worker_loader(dataset: Any, workers: int, images: Callable[[Any], Any], **options: Any) -> Iterator[PeerBatches]:
    """Steps over torch's DataLoader, whose workers end with the context; `options` are further arguments of it."""
    with one_torch_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs: a try
        warnings.filterwarnings("ignore", message="The image decoding and encoding")  # another package's is advised
        if workers:
            options = {"prefetch_factor": AHEAD, "persistent_workers": True} | options
            options.setdefault("multiprocessing_context", "fork")
        loader: Any = torch.utils.data.DataLoader(dataset, num_workers=workers, **options)
        steps = PeerBatches(lambda: iter(loader), images)
        try:
            yield steps
        finally:
            for each in (loader._iterator, steps.epoch):  # workers that last belong to the first
                if hasattr(each, "_shutdown_workers"):
                    each._shutdown_workers()


def _missing(package: str, module: str, install: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  whatever it fails on, the others take part
        return f"no {package} that can be imported: {type(error).__name__}: {error}; {install}"
    return None


def _finish(job: BenchJob, *, floats: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes a batch uint8 (n, 3, crop, crop) floats on the job's device; of `floats`, what takes it there."""
    device = torch.device(job.device)
    if floats:
        return lambda images: images.to(device, non_blocking=True)
    if device.type != "cpu":
        scale, bias = SCALE.to(device), BIAS.to(device)
        return lambda images: torch.mul(images.to(device, non_blocking=True), scale).add_(bias)
    pool = FloatPool(job.batch, job.crop)

    def finish(images: torch.Tensor) -> torch.Tensor:
        out = pool.take()
        for pixels, to in zip(images, out, strict=True):
            to_float(pixels, to)
        return out

    return finish


class _ToPixels:
    """A worker's part: an encoded image, or a sample that has one, to uint8 (3, crop, crop) or to normalized floats."""

    def __init__(self, crop: int, *, floats: bool) -> None:
        self._transform = v2.Compose(transform(crop).transforms[: None if floats else 2])

    def __call__(self, record: bytes | dict[str, Any]) -> torch.Tensor:
        file = record if isinstance(record, bytes) else next(record[each] for each in SUFFIXES if each in record)
        # Torch warns of memory that it may not write; copying costs 1 % of decoding.
        image: torch.Tensor = self._transform(decode_image(torch.frombuffer(bytearray(file), dtype=torch.uint8), "RGB"))
        return image


def _ways(job: BenchJob, *kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind} x{count}" for count in (job.threads, job.threads + 1) for kind in kinds)


def _way(way: str) -> tuple[str, int]:
    kind, _, count = way.rpartition("x")
    return kind.strip(), int(count)


def _decoded(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_image(path, mode=ImageReadMode.RGB)
    return image


@contextmanager
def torch_loader(job: BenchJob, way: str) -> Iterator[PeerBatches]:
    """Torch's DataLoader over an ImageFolder, in one of `torch_peer`'s ways."""
    kind, workers = _way(way)
    whole = transform(job.crop).transforms
    inside = {"all": whole, "uint8": whole[:2], "pil": [*whole[:2], v2.ToImage(), *whole[2:]]}[kind]
    options: dict[str, Any] = {} if kind == "pil" else {"loader": _decoded}
    folder = ImageFolder(str(job.data.files), v2.Compose(inside), **options)
    dataset: Any = torch.utils.data.ConcatDataset([folder] * max(1, EPOCH // len(folder)))
    finish = _finish(job, floats=kind != "uint8")
    options = {"batch_size": job.batch, "shuffle": True, "drop_last": True, "pin_memory": job.device != "cpu"}
    with worker_loader(dataset, workers, lambda batch: finish(batch[0]), **options) as steps:
        yield steps


def torch_peer(job: BenchJob) -> Contestant:
    """Its ways: "pil": workers open with Pillow, as torchvision's examples do, and do all; "all": they decode to
    tensors and do all; "uint8": they send uint8, and this process normalizes the batch.
    """
    ways = _ways(job, "all", "uint8", "pil")
    return Contestant("torch", lambda way: torch_loader(job, way), ways, version=installed("torch"))


def _webdataset(job: BenchJob) -> Contestant:
    """Shards drawn again and again, a buffer shuffled, batches made in its workers."""

    @contextmanager
    def opens(way: str) -> Iterator[Steps]:
        import webdataset as wds  # type: ignore[import-untyped]

        (kind, workers), paths = _way(way), [str(path) for path in job.data.shards]
        dataset: Any = wds.WebDataset(paths, resampled=True, shardshuffle=False, seed=job.seed).shuffle(BUFFER)
        dataset = dataset.map(_ToPixels(job.crop, floats=kind == "all"))
        dataset = dataset.batched(job.batch, collation_fn=torch.stack, partial=False)
        options = {"batch_size": None, "pin_memory": job.device != "cpu"}
        with worker_loader(dataset, workers, _finish(job, floats=kind == "all"), **options) as steps:
            yield steps

    unable = _missing("webdataset", "webdataset", "pip install 'dali-feed[peers]'")
    return Contestant("webdataset", opens, _ways(job, "uint8", "all"), unable=unable, version=installed("webdataset"))


def _endless(files: Sequence[str], seed: int, batch: int) -> Iterator[list[Any]]:
    """PeerBatches of files' bytes without end, each epoch in an order of its own."""
    rng, line = np.random.default_rng(seed), list[int]()
    while True:
        while len(line) < batch:
            line += rng.permutation(len(files)).tolist()
        yield [np.fromfile(files[k], np.uint8) for k in line[:batch]]
        del line[:batch]


def dali_peer(job: BenchJob, share: float = 0.65) -> Contestant:
    """DALI's operators over files: behind its own reader, or fed by a callback in this process.

    `share` of the JPEGs is for a GPU's JPEG engine, where there is one; DALI's own is the default.
    """
    index, device = cuda_index(job.device), torch.device(job.device)

    @contextmanager
    def opens(way: str) -> Iterator[Steps]:
        from nvidia.dali import Pipeline, fn, types

        (kind, threads), where = _way(way), "cpu" if index is None else "mixed"
        crop: dict[str, Any] = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3]}
        resize: dict[str, Any] = {"size": [job.crop] * 2, "interp_type": types.INTERP_LINEAR, "antialias": True}
        pipe = Pipeline(
            batch_size=job.batch,
            num_threads=threads,
            device_id=index,
            prefetch_queue_depth=2,
            exec_dynamic=True,  # its outputs are the taker's, so nothing is copied
            seed=job.seed,
        )
        with pipe:
            if kind == "reader":
                encoded, _ = fn.readers.file(file_root=str(job.data.files), random_shuffle=True, seed=job.seed)
            else:
                files = sorted(map(str, job.data.files.glob("*/*")))
                batches = _endless(files, job.seed, job.batch)
                encoded = fn.external_source(source=batches, no_copy=True, dtype=types.UINT8)
            if index is None:
                images = fn.resize(fn.decoders.image_random_crop(encoded, device=where, **crop), **resize)
            else:  # decoding a window there takes the process along with some versions of nvImageCodec
                decoded = fn.decoders.image(encoded, device=where, hw_decoder_load=share)
                images = fn.random_resized_crop(decoded, **crop, **resize)
            output = fn.crop_mirror_normalize(
                images,
                dtype=types.FLOAT,
                output_layout="CHW",
                mean=[255 * mean for mean in MEAN],
                std=[255 * std for std in STD],
                mirror=fn.random.coin_flip(probability=0.5),
            )
            pipe.set_outputs(output)
        pipe.build()

        def images_of() -> Iterator[torch.Tensor]:
            while True:
                (batch,) = pipe.run(None if index is None else torch.cuda.current_stream(device))
                yield torch.utils.dlpack.from_dlpack(batch.as_tensor())

        steps = PeerBatches(images_of, lambda batch: batch)
        try:
            yield steps
        finally:
            steps.epoch.close()
            pipe._shutdown()  # its threads end now, whoever holds it

    unable = _missing("nvidia-dali-cuda120", "nvidia.dali", "pip install 'dali-feed[cuda12]'")
    version = installed("nvidia-dali-cuda120", "nvidia-dali-cuda130")
    return Contestant("dali", opens, _ways(job, "reader", "external source"), unable=unable, version=version)


def image_peers(job: BenchJob) -> list[Contestant]:
    """All that read files or shards, installed or not: each says by itself what it lacks."""
    return [torch_peer(job), _webdataset(job), dali_peer(job)]


class _Records(torch.utils.data.IterableDataset[torch.Tensor]):
    """Images of a topic from its start again and again, each worker with partitions of its own, as people write it."""

    def __init__(self, topic: Topic, to_pixels: _ToPixels, seed: int) -> None:
        self._topic, self._to_pixels, self._seed = topic, to_pixels, seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        draws, values = random.Random(self._seed * workers + worker), self._values(worker, workers)
        buffer = list(islice(values, BUFFER))
        for value in values:
            k = draws.randrange(len(buffer))
            buffer[k], value = value, buffer[k]  # noqa: PLW2901  the one that stood there leaves
            yield self._to_pixels(value)
        draws.shuffle(buffer)
        yield from map(self._to_pixels, buffer)

    def _values(self, worker: int, workers: int) -> Iterator[bytes]:
        """A partition is done where its last offset has come, or its end is told: a marker may have the last one."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        topic = self._topic
        consumer = Consumer({"bootstrap.servers": topic.servers, **CONSUMER})
        try:
            known = sorted(consumer.list_topics(topic.name, PATIENCE).topics[topic.name].partitions)
            mine = {each: TopicPartition(topic.name, each, OFFSET_BEGINNING) for each in known[worker::workers]}
            ends = {each: consumer.get_watermark_offsets(part, PATIENCE) for each, part in mine.items()}
            full = {each: last for each, (first, last) in ends.items() if first < last}
            while full:
                consumer.assign([mine[each] for each in full])
                left = set(full)
                while left:
                    first = consumer.poll(PATIENCE)  # `consume` alone would wait until it has all it was asked for
                    if first is None:
                        msg = f"{topic.name}: {topic.servers} must give a record within {PATIENCE:.0f} s; none came"
                        raise SourceUnreachableError(msg)
                    for message in (first, *consumer.consume(MANY, 0)):
                        partition, ended = message.partition(), message.error() is not None
                        if ended or (message.offset() or 0) + 1 >= full[partition]:
                            left.discard(partition)
                        if not ended and (value := message.value()) is not None:
                            yield value
        finally:
            consumer.close()


def kafka_peer(job: BenchJob, unable: str | None = None) -> Contestant:
    """confluent-kafka in the workers of torch's DataLoader, with `assign` and `consume`."""
    topic = job.data.topic
    if topic is None:
        unable = "it reads a topic, and this data is not in one; `dali-feed produce` writes it into one"

    @contextmanager
    def opens(way: str) -> Iterator[Steps]:
        kind, workers = _way(way)
        records = _Records(topic or Topic("", ""), _ToPixels(job.crop, floats=kind == "all"), job.seed)
        options = {"batch_size": job.batch, "pin_memory": job.device != "cpu"}
        with worker_loader(records, workers, _finish(job, floats=kind == "all"), **options) as steps:
            yield steps

    version = installed("confluent-kafka")
    return Contestant("confluent-kafka", opens, _ways(job, "uint8", "all"), unable=unable, version=version)


def beside(function: Callable[[BenchJob], Iterable[Any]], job: BenchJob, name: str) -> Contestant:
    """A loader of the user's own.

    Args:
        function: called with the job for each turn; gives an iterable of batches, each the images, or a tuple or list
            that begins with them, or a dict whose first value they are. It is begun again when it ends, and closed at
            the end of the turn if it has `close`.
        job: what everybody does.
        name: as the table says it.
    """

    def images(batch: Any) -> Any:
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch
        return first[0] if isinstance(first, tuple | list) else first

    @contextmanager
    def opens(_: str) -> Iterator[Steps]:
        loader: Any = function(job)
        try:
            yield PeerBatches(lambda: iter(loader), images)
        finally:
            if hasattr(loader, "close"):
                loader.close()

    return Contestant(name, opens)
