"""Small records for bench_columns, and who reads them: we, torch, WebDataset and Mosaic Streaming."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning
from dali_feed.bench.contract import Steps
from dali_feed.bench.photos import Photos, cache_folder
from dali_feed.bench.turns import Make
from dali_feed.bench.work import one_torch_thread
from dali_feed.columns import Kind
from dali_feed.external_sources.tar_index import load
from dali_feed.records.source import Source
from dali_feed.testing.shards import Record, write_shard

__all__ = [
    "Small",
    "as_tables",
    "mosaic",
    "ours",
    "pairs",
    "small",
    "straight",
    "torch_tar",
    "webdataset",
    "webdataset_missing",
]

SHARDS, CLASSES, VERSION = 4, 1000, 1
TORCH_EPOCHS = 50
READ = 4 << 20


@dataclass(frozen=True, slots=True)
class Small:
    """Records of one array and a label: `suffix` and `cls` in tar shards."""

    paths: tuple[str, ...]
    count: int
    suffix: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of an array."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def records(self) -> Iterator[tuple[bytes, int]]:
        """(array, label) of each."""
        rng = np.random.default_rng(0)
        for k in range(self.count):
            yield rng.bytes(self.size), k % CLASSES

    def touch(self) -> None:
        """Read everything once, so that it lies in the page cache."""
        for path in self.paths:
            Path(path).read_bytes()


def _kept(name: str, cache: Path | None, make: Callable[[Path], None]) -> Path:
    """A folder of that name, made where it is not there; whole or not at all."""
    root = (cache or cache_folder()) / name
    if not root.exists():
        work = root.with_name(f"{root.name}.{os.getpid()}.tmp")
        work.mkdir(parents=True)
        try:
            make(work)
            work.rename(root)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return root


def _write(folder: Path, records: list[Record]) -> None:
    each = -(-len(records) // SHARDS)
    for k in range(SHARDS):
        write_shard(folder / f"{k}.tar", records[k * each : (k + 1) * each], first=k * each)


def small(count: int, suffix: str, dtype: str, shape: tuple[int, ...], cache: Path | None) -> Small:
    """Make them, or find them in `cache`."""
    told = Small((), count, suffix, dtype, shape)

    def make(folder: Path) -> None:
        _write(folder, [{suffix: data, "cls": b"%d" % label} for data, label in told.records()])

    root = _kept(f"columns-v{VERSION}-{suffix}-{count}-{told.size}", cache, make)
    return Small(tuple(str(root / f"{k}.tar") for k in range(SHARDS)), count, suffix, dtype, shape)


def pairs(data: Photos, cache: Path | None) -> list[str]:
    """The photographs with a caption, a label, a mask and boxes, under several names each as `Photos.linked`."""

    def make(folder: Path) -> None:
        records: list[Record] = []
        for jpeg, label in data.records():
            with Image.open(io.BytesIO(jpeg)) as image:
                gray, file = np.asarray(image.convert("L")), io.BytesIO()
            Image.fromarray((gray > gray.mean()).astype(np.uint8)).save(file, "PNG")
            texts = {"txt": b"a photograph of class %d" % label, "cls": b"%d" % label}
            boxes = {"boxes.json": b"[[10, 20, 110, 220], [200, 50, 400, 300], [0, 0, 50, 50]]"}
            records.append({"jpg": jpeg, **texts, "seg.png": file.getvalue(), **boxes})
        _write(folder, records)
        for n, k in itertools.product(range(12), range(SHARDS)):
            (folder / f"link-{n:02d}-{k}.tar").symlink_to(f"{k}.tar")

    root = _kept(f"columns-v{VERSION}-pairs-{data.count}", cache, make)
    return sorted(map(str, root.glob("link-*.tar")))


def as_tables(which: Small, cache: Path | None) -> Path:
    """The same arrays and labels as `x.npy`, `y.npy` and `rows.parquet`, in row groups of 1,024."""

    def make(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        data, labels = zip(*which.records(), strict=True)
        rows = np.frombuffer(b"".join(data), which.dtype).reshape(which.count, -1)
        np.save(folder / "x.npy", rows)
        np.save(folder / "y.npy", np.array(labels, np.int64))
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        options = {"compression": "none", "use_dictionary": False, "row_group_size": 1024}
        pq.write_table(pa.table({"x": lists, "y": labels}), folder / "rows.parquet", **options)

    return _kept(f"columns-v{VERSION}-tables-{which.suffix}-{which.count}-{which.size}", cache, make)


class _Straight(Steps):
    """The files in order, a piece at a time; a step gives the records that lie in the bytes read so far."""

    def __init__(self, which: Small) -> None:
        super().__init__()
        sizes = [Path(path).stat().st_size for path in which.paths]
        self._per_byte, self._owed = which.count / sum(sizes), 0.0
        self._paths, self._into = itertools.cycle(which.paths), memoryview(bytearray(READ))
        self._file = Path(next(self._paths)).open("rb", buffering=0)  # noqa: SIM115

    def __next__(self) -> int:
        while not (got := self._file.readinto(self._into)):
            self._file.close()
            self._file = Path(next(self._paths)).open("rb", buffering=0)  # noqa: SIM115
        self._owed += got * self._per_byte
        count = int(self._owed)
        self._owed -= count
        return count


def straight(which: Small) -> Make:
    """A plain sequential read of the shards, by one thread, into memory that is used again."""

    @contextmanager
    def make() -> Iterator[Steps]:
        yield _Straight(which)

    return make


class _Batches(Steps):
    """Whatever gives batches, again and again; the size of one is the length of what `first` finds in it."""

    def __init__(self, loader: Any, first: Callable[[Any], Any]) -> None:
        super().__init__()
        self.loader, self._first, self._batches = loader, first, iter(loader)

    def __next__(self) -> int:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches = iter(self.loader)
            batch = next(self._batches)
        return len(self._first(batch))


def ours(
    source: Callable[[], Source],
    batch: int,
    columns: Mapping[str, Kind] | None,
    *,
    shuffle: bool | Shuffle,
    tuning: Tuning | None = None,
    **options: Any,
) -> Make:
    """Our loader with columns, or without."""

    @contextmanager
    def make() -> Iterator[Steps]:
        asked: dict[str, Any] = options | {"columns": columns, "tuning": tuning, "bad": BadRecords(limit=0)}
        with DataLoader(source(), batch, shuffle=shuffle, drop_last=True, device="cpu", **asked) as loader:
            steps = _Batches(loader, lambda item: next(iter(item.values())) if isinstance(item, dict) else item[0])
            yield steps
            loader.close()  # the feed thread's time is added when it ends
            stats = loader.stats()
            steps.notes = {"feed_us": stats.feed_cpu / stats.samples * 1e6}

    return make


class _Offsets(torch.utils.data.Dataset[Any]):
    """A map-style dataset over the tar members' offsets; `whole`: a batch at a time (torch's `__getitems__`)."""

    def __init__(self, which: Small) -> None:
        self._which, indexes = which, [load(path) for path in which.paths]
        found = [(index.member([which.suffix.encode()]), index.member([b"cls"])) for index in indexes]
        self._at = np.concatenate([array[0] for array, _ in found])
        self._label = np.concatenate([np.stack(label, axis=1) for _, label in found])
        self._shard = np.repeat(np.arange(len(indexes)), [len(index) for index in indexes])
        self._files: list[int] = []

    def __len__(self) -> int:
        return len(self._at) * TORCH_EPOCHS

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        if not self._files:
            self._files = [os.open(path, os.O_RDONLY) for path in self._which.paths]
        k %= len(self._at)
        file, (at, length) = self._files[self._shard[k]], self._label[k].tolist()
        data = np.frombuffer(bytearray(os.pread(file, self._which.size, int(self._at[k]))), self._which.dtype)
        return torch.from_numpy(data.reshape(self._which.shape)), int(os.pread(file, length, at))


class _Whole(_Offsets):
    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch, written into its memory without a tensor per record."""
        if not self._files:
            self._files = [os.open(path, os.O_RDONLY) for path in self._which.paths]
        out = np.empty((len(rows), *self._which.shape), self._which.dtype)
        flat, size, labels = out.reshape(-1).view(np.uint8).data, self._which.size, []
        for n, row in enumerate(rows):
            k = row % len(self._at)
            file, (at, length) = self._files[self._shard[k]], self._label[k].tolist()
            os.preadv(file, (flat[n * size : (n + 1) * size],), int(self._at[k]))
            labels.append(int(os.pread(file, length, at)))
        return torch.from_numpy(out), torch.tensor(labels)


def torch_tar(which: Small, batch: int, workers: int, *, whole: bool) -> Make:
    """The DataLoader of torch over the same shards, shuffled; `whole`: its dataset makes batches by itself."""

    @contextmanager
    def make() -> Iterator[Steps]:
        dataset = _Whole(which) if whole else _Offsets(which)
        collate: dict[str, Any] = {"collate_fn": _itself} if whole else {}
        with one_torch_thread(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs: a try
            loader: Any = torch.utils.data.DataLoader(
                dataset, batch, shuffle=True, drop_last=True, num_workers=workers, **collate
            )
            steps = _Batches(loader, lambda item: item[0])
            try:
                yield steps
            finally:
                shutdown = getattr(steps._batches, "_shutdown_workers", None)
                if shutdown is not None:
                    shutdown()

    return make


def _itself(batch: Any) -> Any:
    return batch


def webdataset_missing() -> str | None:
    """Why WebDataset cannot be measured, or None."""
    try:
        import webdataset  # type: ignore[import-untyped] # noqa: F401
    except ImportError as error:
        return f"no webdataset ({error})"
    return None


class _Decode:
    """A sample's bytes as an array and a label."""

    def __init__(self, which: Small) -> None:
        self._which = which

    def __call__(self, sample: dict[str, Any]) -> tuple[Any, int]:
        data = np.frombuffer(bytearray(sample[self._which.suffix]), self._which.dtype)  # that can be written
        return data.reshape(self._which.shape), int(sample["cls"])


def webdataset(which: Small, batch: int, workers: int) -> Make:
    """WebDataset over the same shards, shards and a buffer of 1,000 samples shuffled, batched in its workers."""

    @contextmanager
    def make() -> Iterator[Steps]:
        import webdataset as wds

        with one_torch_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = wds.WebDataset(list(which.paths), shardshuffle=100, resampled=True).shuffle(1000)
            made = made.map(_Decode(which)).batched(batch, collation_fn=wds.filters.default_collation_fn)
            loader = wds.WebLoader(made, batch_size=None, num_workers=workers)
            steps = _Batches(loader, lambda item: item[0])
            try:
                yield steps
            finally:
                shutdown = getattr(steps._batches, "_shutdown_workers", None)
                if shutdown is not None:
                    shutdown()

    return make


class _Told(Steps):
    """Batches of another process, which prints the size of each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self._process = process

    def __next__(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            msg = f"_mosaic.py ended with {self._process.wait()}"
            raise RuntimeError(msg)
        return int(line)


def mosaic(which: Small, python: str, batch: int, workers: int) -> Make:
    """Mosaic Streaming over the same records as MDS, shuffled, run by an interpreter that has it."""
    here = Path(__file__).with_name("_mosaic.py")
    folder = Path(which.paths[0]).with_name("mds")
    shape = ",".join(map(str, which.shape))
    told = [python, str(here), str(folder), which.suffix, which.dtype, shape, str(batch), str(workers), *which.paths]

    @contextmanager
    def make() -> Iterator[Steps]:
        with subprocess.Popen(told, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield _Told(process)
            finally:
                process.terminate()

    return make
