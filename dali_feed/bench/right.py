"""Whether the way over a GPU is right: what `dali-feed bench gpu` asks before it measures.

The law: a check compares with what was made in another way (the CPU's engine, another batch, an idle GPU), says a
sentence where both agree, and raises where they do not. `--device cpu` rehearses those that need no GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed.bench.data import BenchJob, payloads_of
from dali_feed.bench.ours import cuda_index, loader, transform
from dali_feed.bench.runner import RIGHT, UNCHECKED, WRONG, installed
from dali_feed.bench.training import Trainer, network
from dali_feed.errors import DaliFeedError, MissingPackageError
from dali_feed.kernels.launch import load_cupy
from dali_feed.loader import DataLoader
from dali_feed.options import BadRecords, Tuning
from dali_feed.testing.scripted import ScriptedSource

ENGINES = ("dali", "host")
STEPS = (0, 1, 2, 4, 8, 16, 255)  # levels of 255: borders of the histogram
FAR, MOST_FAR, MOST_MEAN = 16, 0.02, 3.0  # levels; the share of values that may lie further apart; levels, on average
BATCHES = (1, 3, 8, 64)
CYCLES = 200_000_000  # that a GPU sleeps: about a tenth of a second
LOADS = 8  # products of matrices behind each batch
PROFILED = 20  # steps
BLACKWELL = (10, 0)  # compute capability that NVRTC knows from 12.8 on
# A table of codes that cannot be, between two segments: the screen lets it pass, no decoder does.
BAD_TABLE = b"\xff\xc4\x00\x13\x00" + b"\xff" * 16

Pixels = dict[int, NDArray[Any]]  # by sample


class WrongError(DaliFeedError):
    """A check that did not agree."""


class NotCheckedError(DaliFeedError):
    """A check that cannot be made here; the reason, with the cure."""


def gpu_of(job: BenchJob) -> int:
    """The number of the job's GPU. Raises NotCheckedError where it is rehearsed on the CPU."""
    index = cuda_index(job.device)
    if index is None:
        raise NotCheckedError("needs a GPU")
    return index


# What is there.


def _of_cupy() -> tuple[str, tuple[int, int]]:
    """CuPy with its runtime, in words, and the version of NVRTC; (0, 0) where it does not load."""
    try:
        cupy = load_cupy()
        from cupy_backends.cuda.libs import nvrtc
    except (ImportError, MissingPackageError):
        return "no CuPy", (0, 0)
    runtime = cupy.cuda.runtime.runtimeGetVersion()
    words = f"CuPy {cupy.__version__} (runtime {runtime // 1000}.{runtime % 1000 // 10})"
    try:
        major, minor = nvrtc.getVersion()
    except Exception:  # noqa: BLE001  the library is not there, or is of another kind
        return words, (0, 0)
    return words, (major, minor)


def _of_driver() -> tuple[str, tuple[int, int]]:
    """The driver's version, and the newest CUDA that it takes; "" and (0, 0) where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        newest = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return str(pynvml.nvmlSystemGetDriverVersion()), (newest // 1000, newest % 1000 // 10)
    except pynvml.NVMLError:
        return "", (0, 0)


def jpeg_engine(index: int | None) -> bool:
    """Whether that GPU has hardware for JPEGs that this process may use: containers often lack it."""
    if index is None:
        return False
    from nvidia import nvimgcodec

    from dali_feed.bench.data import texture

    backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.HW_GPU_ONLY)]
    try:
        decoder = nvimgcodec.Decoder(device_id=index, backends=backends)
        return decoder.decode(texture(0)) is not None
    except RuntimeError:
        return False


def misfits(
    driver: tuple[int, int], torch_cuda: str | None, dali: str, nvrtc: tuple[int, int], gpu: tuple[int, int]
) -> list[str]:
    """A sentence for each two parts that do not fit, with the cure.

    Args:
        driver: the newest CUDA that it takes; (0, 0): there is none.
        torch_cuda: the CUDA that torch is built for; None: for none.
        dali: the package of DALI that is installed, "" for none.
        nvrtc: its version.
        gpu: compute capability.
    """
    says, index = [], "https://download.pytorch.org/whl"
    takes = ".".join(map(str, driver))
    if torch_cuda is None:
        says.append(f"this torch is built for the CPU alone: pip install torch --index-url {index}/cu130")
    elif driver == (0, 0):
        says.append("there is no NVIDIA driver: install one, or start the container with its GPUs")
    elif int(torch_cuda.split(".", maxsplit=1)[0]) > driver[0]:
        build = "cu128" if driver >= (12, 8) else "cu126"
        cure = f"a driver of 580 or newer, or pip install torch --index-url {index}/{build}"
        says.append(f"torch is built for CUDA {torch_cuda} and the driver takes {takes} at most: {cure}")
    if dali == "nvidia-dali-cuda130" and (0, 0) < driver < (13, 0):
        says.append(f"DALI is built for CUDA 13 and the driver takes {takes} at most: take dali-feed[cuda12]")
    if gpu >= BLACKWELL and (0, 0) < nvrtc < (12, 8):
        says.append(f"NVRTC {nvrtc[0]}.{nvrtc[1]} compiles nothing for this GPU: take dali-feed[cuda13]")
    return says


def set_up(job: BenchJob) -> str:
    """The first line: what is there, and a sentence for what does not fit."""
    index, (driver, newest), (cupy, nvrtc) = cuda_index(job.device), _of_driver(), _of_cupy()
    dali = next((name for name in ("nvidia-dali-cuda120", "nvidia-dali-cuda130") if installed(name)), "")
    there = torch.cuda.is_available()
    name = torch.cuda.get_device_name(index) if there and index is not None else "no GPU"
    engine = "a JPEG engine" if there and jpeg_engine(index) else "no JPEG engine here"
    facts = [
        f"{name}, driver {driver or 'none'}",
        f"torch {torch.__version__} for CUDA {torch.version.cuda}",
        f"{dali or 'no DALI'} {installed(dali) if dali else ''}".strip(),
        cupy,
        f"NVRTC {nvrtc[0]}.{nvrtc[1]}" if nvrtc > (0, 0) else "no NVRTC",
        engine,
    ]
    gpu = torch.cuda.get_device_capability(index) if there and index is not None else (0, 0)
    if there and not driver:  # NVML is not in every container; what torch runs on takes its CUDA
        newest = (int(str(torch.version.cuda).split(".", maxsplit=1)[0]), 0)
    wrong = misfits(newest, torch.version.cuda, dali, nvrtc, gpu)
    line = "; ".join(facts)
    if index is not None and (wrong or not there):
        raise WrongError(f"{line}. {'. '.join(wrong) or 'torch finds no GPU'}")
    return line


# What a run gives.


def _items(job: BenchJob, count: int) -> list[Any]:
    payloads = payloads_of(job.data)
    return [(payloads[n % len(payloads)], n) for n in range(count)]


def _loader(job: BenchJob, items: Sequence[Any], batch: int, **options: Any) -> DataLoader:
    """Batches of uint8 of these records in their order, with their ids; `device=` and `engine=` among the options."""
    cut = v2.Compose([v2.RandomResizedCrop(job.crop), v2.RandomHorizontalFlip()])
    every = {"device": job.device, "transform": cut, "shuffle": False, "drop_last": False, "info": True, "seed": 5}
    every |= {"bad": BadRecords(limit=None), "tuning": Tuning(threads=job.threads)} | options
    return loader(ScriptedSource(items), batch, **every)


def _epoch(job: BenchJob, items: Sequence[Any], batch: int, work: Callable[[], object] = int, **options: Any) -> Pixels:
    """The pixels of each record that was good, by its number; `work` is done behind each batch."""
    seen: Pixels = {}
    with _loader(job, items, batch, **options) as batches:
        for images, _, info in batches:
            work()
            for sample, good, image in zip(info.ids.tolist(), info.ok.tolist(), images.cpu(), strict=True):
                if good:
                    seen[sample] = image.numpy().copy()
    return seen


def _differ(one: Mapping[int, NDArray[Any]], other: Mapping[int, NDArray[Any]]) -> list[int]:
    """The samples of both whose bits are not the same."""
    return [sample for sample in one.keys() & other.keys() if not np.array_equal(one[sample], other[sample])]


SIZES = ((8, 12), (223, 224), (225, 223))  # height and width, of images that stores of every width fit


def kernels(job: BenchJob) -> str:
    """Each kernel has the bits of its reference, in every type of floats."""
    index = gpu_of(job)
    from dali_feed.engines.finish import DTYPES, by_torch
    from dali_feed.kernels.augment import augment, augment_reference, copies
    from dali_feed.kernels.finish import finish
    from dali_feed.kernels.jitter import jitter, jitter_reference
    from dali_feed.kernels.unpack import unpack
    from dali_feed.transforms.colour import KINDS

    rng, wrong, count = np.random.default_rng(0), list[str](), 0
    with torch.cuda.device(index):
        for height, width in SIZES:
            images = rng.integers(0, 256, (6, height, width, 3), np.uint8)
            here, there = torch.from_numpy(images), torch.from_numpy(images).cuda()
            flips = torch.arange(6, dtype=torch.int32) % 2
            boxes = torch.tensor([[1, 2, 4, 5]], dtype=torch.int32).repeat(6, 1)
            for name, dtype in DTYPES.items():
                for layout in ("NCHW", "NHWC"):
                    shape = (6, 3, height, width) if layout == "NCHW" else (6, height, width, 3)
                    factors: dict[str, Any] = (
                        {} if name == "uint8" else {"scale": (0.01, 0.02, 0.03), "bias": (-2.0, 0.0, 1.0)}
                    )
                    right, out = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype, device="cuda")
                    by_torch(here, right, flip_x=flips, erase=boxes, layout=layout, **factors)
                    finish(there, out, flip_x=flips.cuda(), erase=boxes.cuda(), layout=layout, **factors)
                    count += 1
                    if not _same(out.cpu(), right):
                        wrong.append(f"finish {name} {layout} {height}x{width}")
            for names in (("brightness",), ("contrast", "hue"), ("hue", "saturation", "brightness", "contrast")):
                steps = np.tile(np.array([[(KINDS[each], 0.3) for each in names]], np.float32), (6, 1, 1))
                out = torch.empty_like(there)
                jitter(there, out, torch.from_numpy(steps).cuda())
                count += 1
                if not _same(out.cpu(), torch.from_numpy(jitter_reference(images, steps))):
                    wrong.append(f"jitter {', '.join(names)} {height}x{width}")
            for what, rows, weights in _operations(rng, height, width):
                some, chains = images[: len(rows)], rows.shape[1:3]
                room = copies(*chains, mixed=weights is not None)
                spare = torch.empty((room, *some.shape), dtype=torch.uint8, device="cuda") if room else None
                shares = None if weights is None else torch.from_numpy(weights).cuda()
                out = torch.empty_like(there[: len(rows)])
                augment(there[: len(rows)], out, torch.from_numpy(rows).cuda(), spare=spare, weights=shares)
                count += 1
                if not _same(out.cpu(), torch.from_numpy(augment_reference(some, rows, weights=weights))):
                    wrong.append(f"augment {what} {height}x{width}")
            out = torch.empty((6, 3, height, width), device="cuda")
            unpack(there.view(6, -1), out, shape=(height, width, 3), scale=0.01, bias=-1.0)
            values = images.transpose(0, 3, 1, 2).astype(np.float32)
            count += 1
            if not _same(out.cpu(), torch.from_numpy(values * np.float32(0.01) + np.float32(-1.0))):
                wrong.append(f"unpack {height}x{width}")
    if wrong:
        raise WrongError(f"{len(wrong)} of {count} launches have other bits than their reference: {', '.join(wrong)}")
    return f"{count} launches of 4 kernels have the bits of their references"


def _operations(rng: Any, height: int, width: int) -> Iterator[tuple[str, Any, Any]]:
    """What `augment` is asked to do with two images: each operation with either sign, then two, then mixed chains."""
    from dali_feed.transforms.auto_augment import FLIPPED, RandAugment, stage_table

    for op in (RandAugment(), RandAugment(interpolation="bilinear", fill=7.0)):
        table, names = stage_table(op, height, width), op.space.names
        for which, name in enumerate(names):
            yield f"{name} {op.interpolation}", table[which, 9, :, None, None].copy(), None
        for chains, weights in ((1, None), (3, rng.dirichlet(np.ones(4), 2).astype(np.float32))):
            rows = table[rng.integers(len(names), size=(2, chains, 2)), 9, 1]
            rows[:, :, 0, FLIPPED] = np.eye(2, dtype=np.float32)[:, None]  # one to the side, one upside down
            yield f"in {chains} chains {op.interpolation}", rows, weights


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)))


def histogram(one: Pixels, other: Pixels) -> tuple[str, float, float]:
    """How far two runs' pixels are apart: in words, on average in levels of 255, and the share that is far apart."""
    gaps = [np.abs(one[sample].astype(np.int16) - other[sample]) for sample in sorted(one.keys() & other.keys())]
    values = np.concatenate([each.ravel() for each in gaps])
    counts = np.histogram(values, bins=[0, *(step + 1 for step in STEPS)])[0] / len(values)
    shares = [
        f"{share:.2%} up to {step}" if step else f"{share:.2%} equal" for share, step in zip(counts, STEPS, strict=True)
    ]
    text = ", ".join(share for share, count in zip(shares, counts, strict=True) if count)
    return text, float(values.mean()), float((values > FAR).mean())


def pixels(job: BenchJob) -> str:
    """Both engines' pixels there beside those of `host` on the CPU; the histogram comes before any judgement."""
    items = _items(job, job.batch * 2)
    wanted = _epoch(job, items, job.batch, device="cpu", engine="host")
    says, wrong = [], []
    for engine in ENGINES:
        seen = _epoch(job, items, job.batch, engine=engine)
        text, mean, far = histogram(seen, wanted)
        says.append(f"{engine}: {text}, {mean:.3f} levels on average")
        if seen.keys() != wanted.keys() or (engine == "host" and mean) or mean > MOST_MEAN or far > MOST_FAR:
            wrong.append(engine)
    line = f"beside host on the CPU: {'; '.join(says)}"
    if wrong:
        raise WrongError(f"{line}: {' and '.join(wrong)} too far apart")
    return line


def batches(job: BenchJob) -> str:
    """A sample has the same bits in batches of any size, whoever stands beside it."""
    items = _items(job, min(3 * job.batch, 96))
    sizes = [size for size in BATCHES if size <= len(items) // 2]
    for engine in ENGINES:
        alone, *others = (_epoch(job, items, size, engine=engine) for size in sizes)
        for size, other in zip(sizes[1:], others, strict=True):
            if alone.keys() != other.keys() or _differ(alone, other):
                raise WrongError(f"{engine}: samples {_differ(alone, other)[:5]} differ in batches of {size} and of 1")
    return f"{len(items)} samples have the same bits in batches of {', '.join(map(str, sizes))}"


@contextmanager
def _loaded(job: BenchJob) -> Iterator[Callable[[], object]]:
    """What keeps the GPU busy on a stream of its own; on the CPU nothing does."""
    index = cuda_index(job.device)
    if index is None:
        yield lambda: None
        return
    with torch.cuda.device(index):
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        matrix = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)

        def work() -> None:
            with torch.cuda.stream(stream):
                for _ in range(LOADS):
                    torch.mm(matrix, matrix)

        yield work
        torch.cuda.synchronize()


def torn(job: BenchJob) -> str:
    """Broken JPEGs cost their slots alone: their neighbours have the bits that they have without, under load too."""
    items = _items(job, 4 * job.batch)
    broken, places = list(items), range(1, len(items), 5)
    for number, place in enumerate(places):
        payload = items[place][0]
        at = payload.find(b"\xff\xda")
        half = payload[: len(payload) // 2]
        broken[place] = (half if number % 2 or at < 0 else payload[:at] + BAD_TABLE + payload[at:], place)
    lost = 0
    for engine in ENGINES:
        whole = _epoch(job, items, job.batch, engine=engine)
        idle: Any = nullcontext(int)
        for keep in (idle, _loaded(job)):
            with keep as work:
                seen = _epoch(job, broken, job.batch, work, engine=engine)
            changed = [sample for sample in _differ(whole, seen) if sample not in places]
            missing = [sample for sample in whole.keys() - seen.keys() if sample not in places]
            if changed or missing:
                raise WrongError(f"{engine}: beside a broken JPEG {changed[:5]} have other pixels, {missing[:5]} none")
            lost = len(whole) - len(seen)
    return f"{len(places)} broken JPEGs: {lost} are replaced, no neighbour has changed"


def reuse(job: BenchJob) -> str:
    """Memory that enqueued work still reads is not used again: batches behind a sleeping GPU are an idle one's."""
    items = _items(job, 8 * job.batch)
    index = cuda_index(job.device)
    for engine in ENGINES:
        runs = []
        for asleep in (False, True):
            with _loader(job, items, job.batch, engine=engine, transform=transform(job.crop)) as feeding:
                sums = []
                for images, _, _ in feeding:
                    if asleep and index is not None:
                        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
                    sums.append(images.double().sum())  # behind the sleep; the batch is dropped at once
                runs.append(torch.stack(sums).cpu())
        if not torch.equal(*runs):
            raise WrongError(f"{engine}: batches dropped behind a sleeping GPU had other pixels")
    return f"{len(runs[0])} batches an engine, dropped while the GPU {'slept' if index is not None else 'worked'}, kept"


def waits(job: BenchJob) -> str:
    """An epoch under torch's mode that forbids waits, no context on another GPU, and a profile of calls by threads."""
    index, steps_of = cuda_index(job.device), "dali_feed step"
    forbid: Callable[[str], None] = torch.cuda.set_sync_debug_mode if index is not None else lambda _: None
    trainer = Trainer(network(job.device), torch.device(job.device))
    with _loader(job, _items(job, 40 * job.batch), job.batch, transform=transform(job.crop)) as feeding:
        steps = iter(feeding)
        for images, *_ in islice(steps, 10):
            trainer.step(images)
        forbid("error")
        try:
            for _ in islice(steps, 5):
                pass
        finally:
            forbid("default")
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if index is not None else []
        with torch.profiler.profile(activities=kinds) as profile:
            for _ in range(PROFILED):
                with torch.profiler.record_function(steps_of):
                    images, *_ = next(steps)
                trainer.step(images)
            with torch.profiler.record_function("on purpose"):
                if index is not None:
                    torch.cuda.synchronize(index)
        events = list(profile.events())
    others = set(getattr(torch.cuda, "_primary_context_devices", list)()) - {index}
    if index is not None and others:
        raise WrongError(f"there is a context on GPU {sorted(others)} too, beside {index}")
    if index is not None and not any("Synchronize" in name for name in calls(events, "on purpose")[0]):
        raise NotCheckedError("torch's profiler does not show what this thread waits for; is CUPTI there?")
    places = calls(events, steps_of)
    waited = {name: count for name, count in places[0].items() if "Synchronize" in name}
    if waited:
        raise WrongError(f"next() waits for the GPU: {waited} in {PROFILED} steps")
    parts = [", ".join(f"{count} {name}" for name, count in each.items()) or "none" for each in places]
    text = "{} in next(); {} in the rest of the loop; {} in other threads".format(*parts)
    return f"{PROFILED} steps: next() waits for nothing; calls that wait, allocate or copy slowly: {text}"


_CALL = re.compile(r"^cu(da)?\w*(Synchronize|Malloc\w*|MemAlloc\w*|HostAlloc|Free\w*)$|Pageable")


def calls(events: Sequence[Any], name: str) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Of a profile the calls that wait, allocate or copy from pageable memory, in three places.

    They are: in ranges of that name, on their thread and within their time; elsewhere in that thread; in others. The
    thread is the system's number of it: of a call that belongs to none of its operations torch says that the thread
    has made it that ended the profile. A copy stands where it was begun.
    """
    spans = [
        (each.device_resource_id, each.time_range.start, each.time_range.end) for each in events if each.name == name
    ]
    begun = {each.id: each for each in events if each.name.startswith(("cudaMemcpy", "cuMemcpy"))}
    places: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()
    for each in events:
        if not _CALL.search(each.name):
            continue
        call = begun.get(each.id, each) if "Pageable" in each.name else each
        mine = [(start, end) for thread, start, end in spans if thread == call.device_resource_id]
        inside = any(start <= call.time_range.start <= end for start, end in mine)
        places[0 if inside else 1 if mine else 2][each.name] += 1
    return places


CHECKS: dict[str, Callable[[BenchJob], str]] = {
    "set-up": set_up,
    "kernels": kernels,
    "pixels": pixels,
    "batches": batches,
    "torn": torn,
    "reuse": reuse,
    "waits": waits,
}


def outcome(check: Callable[[BenchJob], str], job: BenchJob) -> tuple[str, str]:
    """How it ends, RIGHT, WRONG or UNCHECKED, and what there is to say."""
    try:
        return RIGHT, check(job)
    except (NotCheckedError, MissingPackageError) as error:
        return UNCHECKED, str(error)
    except WrongError as error:
        return WRONG, str(error)
    except Exception as error:  # noqa: BLE001  whatever it fails on is what the check is for
        return WRONG, " ".join(f"{type(error).__name__}: {error}".split())
