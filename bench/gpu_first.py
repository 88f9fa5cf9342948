"""The first questions to a GPU, each in a few seconds: does anything work at all, and are the laws held there?

    python bench/gpu_first.py CHECK [--device cuda:0]

Ends with 0, 1 and the reason, or 77 where the question cannot be asked: with --device cpu, which rehearses what can be.
The last line printed is the answer. bench/on_gpu.sh runs all of them, each in a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _checks import SKIPPED
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Decode
from dali_feed.bench.facts import facts, jpeg_engine
from dali_feed.testing.scripted import ScriptedSource

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DALI_LEVELS = 1.5  # mean of |difference| to DALI's CPU decoder, in levels of 255
DALI_MEAN = 0.03  # the same behind a resize and Normalize
HOST_MOST = 7.2e-7  # the finish kernel rounds once where torch rounds three times
BUSY_CYCLES = 2_000_000_000  # about a second of a GPU's clock
COUNT = 64


class WrongError(Exception):
    """What was found is not what must be."""


class NotHereError(Exception):
    """The question needs a GPU."""


@functools.cache
def picture(n: int, height: int, width: int) -> bytes:
    """A JPEG of a picture with edges and slopes, another for every n."""
    rng = np.random.default_rng(n)
    y, x = np.mgrid[0:height, 0:width]
    phase = rng.random((3, 4)) * 6
    waves = [np.sin(x / (4 + 9 * a) + b) + np.cos(y / (5 + 9 * c) - d) for a, b, c, d in phase]
    pixels = np.clip(128 + 55 * np.stack(waves, -1) + 20 * (x[..., None] > width * phase[0, 0] / 6), 0, 255)
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "JPEG", quality=90, subsampling=n % 3)
    return out.getvalue()


def pictures(count: int) -> list[Any]:
    """(JPEG, label) of different sizes."""
    return [(picture(n, 180 + 13 * (n % 7), 260 + 17 * (n % 5)), n) for n in range(count)]


def crops() -> v2.Compose:
    """The usual augmentation."""
    pixels = [v2.RandomResizedCrop(96), v2.RandomHorizontalFlip()]
    return v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def epoch(items: list[Any], batch: int, device: str, **options: Any) -> Iterator[torch.Tensor]:
    """All images of an epoch, in order, on the CPU."""
    with DataLoader(ScriptedSource(items), batch, device=device, seed=1, **options) as loader:
        for images, _ in loader:
            yield images.float().cpu()


def versions(device: str) -> str:
    """What is here."""
    found = facts()
    if device != "cpu":
        free, total = torch.cuda.mem_get_info(device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        found |= {"gpu": torch.cuda.get_device_name(device), "capability": capability}
        found |= {"free": f"{free >> 20} of {total >> 20} MiB"}
    for name, value in found.items():
        print(f"{name:12} {value}")
    names = ("gpu", "driver", "python", "torch", "dali", "nvimgcodec", "cupy", "numpy")
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


class _There(np.ndarray[Any, Any]):
    """Host memory that says it lies on a GPU, so that a launch can be prepared."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.__array_interface__, "version": 3}


def _case(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """The kernel's module, its arrays, its options, its outputs (NumPy, by keyword) and what must stand in them."""
    module: Any = importlib.import_module(f"dali_feed.kernels.{name}")
    rng = np.random.default_rng(0)
    if name == "finish":
        images = rng.integers(0, 256, (5, 36, 52, 3), np.uint8)
        scale, bias = module.normalize_factors(MEAN, STD)
        given: dict[str, Any] = {"scale": scale, "bias": bias, "flip_x": np.arange(5, dtype=np.int32) % 2}
        wanted = module.finish_reference(images, dtype="float32", **given)
        return module, (images,), given, {"out": np.zeros_like(wanted)}, {"out": wanted}
    if name == "jitter":
        images = rng.integers(0, 256, (5, 36, 52, 3), np.uint8)
        kinds, factors = np.array([[1, 2, 3, 4], [4, 3, 2, 1]] * 3)[:5], rng.uniform(-0.5, 0.5, (5, 4))
        steps = np.stack([kinds, factors + (kinds != 4)], axis=-1).astype(np.float32)
        wanted = module.jitter_reference(images, steps)
        return module, (images,), {"steps": steps}, {"out": np.zeros_like(wanted)}, {"out": wanted}
    records = rng.integers(0, 256, (5, 36 * 52 * 3 * 12 // 8), np.uint8)
    given = {"shape": (36, 52, 3), "bits": 12, "scale": 1 / 4095}
    wanted = module.unpack_reference(records, dtype="float32", **given)
    return module, (records,), given, {"out": np.zeros_like(wanted)}, {"out": wanted}


def _prepared(name: str) -> str:
    """Without a GPU: the launch is allowed, and compiles for three kinds of GPU."""
    from dali_feed.kernels import launch

    module, arrays, given, outputs, _ = _case(name)

    def there(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.view(_There)
        if type(value).__name__ == "Mix":
            return type(value)(*(there(each) for each in (value.partner, value.weight, value.box)))
        return value

    found = module.prepare(*map(there, arrays), **{k: there(v) for k, v in {**given, **outputs}.items()})
    jobs = found if isinstance(found, tuple) else (found,)
    for job in jobs:
        for arch in ("sm_80", "sm_90", "sm_100"):
            launch.compile_ptx(job.kernel, arch, job.options)
    return f"{len(jobs)} launches prepared, compiled for sm_80, sm_90 and sm_100, and not launched: no GPU"


def kernel(name: str, device: str) -> str:
    """One launch of a kernel gives the bits of its reference."""
    if device == "cpu":
        return _prepared(name)
    module, arrays, given, outputs, wanted = _case(name)

    def there(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value).to(device)
        if type(value).__name__ == "Mix":
            return type(value)(*(there(each) for each in (value.partner, value.weight, value.box)))
        return value

    on_device = {k: there(v) for k, v in outputs.items()}
    launch = getattr(module, name)
    launch(*map(there, arrays), **{k: there(v) for k, v in given.items()}, **on_device)
    torch.cuda.synchronize(device)
    for key, value in wanted.items():
        found = on_device[key].cpu().numpy()
        if found.tobytes() != np.ascontiguousarray(value).tobytes():
            apart = int((found != value).sum())
            msg = f"{key}: {apart} of {value.size} values differ from the reference, {found.ravel()[:4]}"
            raise WrongError(msg)
    return f"{sum(value.size for value in wanted.values())} values, the reference's bits"


def decode(device: str) -> str:
    """Eight JPEGs through DALI's decoder are DALI's CPU decoder's, but for its rounding."""
    how: dict[str, Any] = {"transform": v2.CenterCrop((176, 256)), "decode": Decode(engine="dali")}
    (there,), (here,) = (list(epoch(pictures(8), 8, place, **how)) for place in (device, "cpu"))
    if device != "cpu" and "libnvjpeg.so" not in Path("/proc/self/maps").read_text():
        msg = "no libnvjpeg was loaded: what is asked of the GPU is decoded on the CPU"
        raise WrongError(msg)
    apart = (there - here).abs()
    said = f"mean |difference| {apart.mean():.3f} levels, largest {apart.max():.0f}"
    if not apart.mean() < DALI_LEVELS:
        raise WrongError(said)
    return said


def engine(name: str, device: str) -> str:
    """Four batches are the CPU's, within what the engine promises."""
    both = (
        list(epoch(pictures(COUNT), 16, place, transform=crops(), decode=Decode(engine=name)))
        for place in (device, "cpu")
    )
    apart = torch.cat([(a - b).abs().flatten() for a, b in zip(*both, strict=True)])
    said = f"4 batches: mean |difference| {apart.mean():.2g}, largest {apart.max():.2g}"
    if not (apart.mean() < DALI_MEAN if name == "dali" else apart.max() <= HOST_MOST):
        raise WrongError(said)
    return said


def neighbours(name: str, device: str) -> str:
    """A sample's pixels are the same whoever stands beside it: in batches of 1, 8, 64 and 24, and in one run again."""
    items = pictures(COUNT)
    torn = bytearray(picture(COUNT, 200, 300))
    torn[-len(torn) // 2 :] = b"\xff\xd9" * (len(torn) // 4)  # passes the screen; the decoder's to judge
    how: dict[str, Any] = {"transform": crops(), "decode": Decode(engine=name), "bad": BadRecords(limit=None)}
    wanted = torch.cat(list(epoch(items, 1, device, **how)))
    for batch in (8, 24, COUNT):
        found = torch.cat(list(epoch(items, batch, device, **how)))
        different = [n for n in range(COUNT) if not torch.equal(found[n], wanted[n])]
        if different:
            most = (found - wanted).abs().max()
            msg = f"batch {batch}: {len(different)} of {COUNT} samples differ from batch 1, largest {most:.3g}"
            raise WrongError(msg)
    beside = torch.cat(list(epoch([*items, (bytes(torn), COUNT)], COUNT + 1, device, **how)))
    if not torch.equal(beside[:COUNT], wanted):
        msg = "a batch with a torn JPEG in it, run again without it, has other pixels"
        raise WrongError(msg)
    return f"{COUNT} samples: equal bits in batches of 1, 8, 24, {COUNT}, and beside a torn JPEG"


def decoder_load(device: str) -> str:
    """What the GPU's JPEG engine changes: of the whole batch, and of the share that DALI gives it by itself."""
    if device == "cpu":
        msg = "needs a GPU: the JPEG engine is one's"
        raise NotHereError(msg)
    how: dict[str, Any] = {"transform": v2.CenterCrop((176, 256)), "decode": Decode(engine="dali")}
    none, again = (torch.cat(list(epoch(pictures(COUNT), 16, device, **how))) for _ in range(2))
    if not torch.equal(none, again):
        msg = "two runs without the JPEG engine differ"
        raise WrongError(msg)
    apart = {}
    for load in (0.65, 1.0):
        found = torch.cat(list(epoch(pictures(COUNT), 16, device, decode=Decode(hardware=load), **how)))
        apart[load] = (found - none).abs()
    told = ", ".join(f"{load}: mean {each.mean():.3f}, largest {each.max():.0f}" for load, each in apart.items())
    return f"levels from those without it, by share: {told}; the engine {jpeg_engine()}"


def next_returns(device: str) -> str:
    """next() comes back while the device is still at what was enqueued before it."""
    if device == "cpu":
        msg = "needs a GPU: there is nothing to wait for on a CPU"
        raise NotHereError(msg)
    busy: list[str] = []
    for name in ("dali", "host"):
        with DataLoader(
            ScriptedSource(pictures(COUNT)), 16, transform=crops(), device=device, decode=Decode(engine=name)
        ) as loader:
            batches = iter(loader)
            for _ in range(2):  # kernels are compiled and memory has been had
                next(batches)
            torch.cuda.synchronize(device)
            feed: Any = loader._feed
            ready = feed._passes.run._out  # so that nothing but the device is waited for
            with ready._changed:
                ready._changed.wait_for(lambda: len(ready) > 0, 30)  # noqa: B023  used before it changes
            torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            next(batches)
            if done.query():  # type: ignore[no-untyped-call]
                busy.append(name)
            torch.cuda.synchronize(device)
    if busy:
        msg = f"next() waited for the device: {', '.join(busy)}"
        raise WrongError(msg)
    return "next() returned while a second of work was pending, with both engines"


def no_sync(device: str) -> str:
    """A loop on a stream of its own never makes torch wait for the device."""
    if device == "cpu":
        msg = "needs a GPU: there is no device to wait for"
        raise NotHereError(msg)
    for name in ("dali", "host"):
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with (
            DataLoader(
                ScriptedSource(pictures(COUNT)), 16, transform=crops(), device=device, decode=Decode(engine=name)
            ) as loader,
            torch.cuda.stream(stream),
        ):
            try:
                torch.cuda.set_sync_debug_mode("error")
                total = sum((images.sum() for images, _ in loader), torch.zeros((), device=device))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        stream.synchronize()
        if not torch.isfinite(total):
            msg = f"{name}: the sum of the pixels is {total}"
            raise WrongError(msg)
    return "an epoch with each engine under torch's sync debug mode"


def _of(ask: Callable[[str, str], str], name: str) -> Callable[[str], str]:
    return lambda device: ask(name, device)


CHECKS: dict[str, Callable[[str], str]] = {
    "versions": versions,
    **{f"kernel-{name}": _of(kernel, name) for name in ("finish", "jitter", "unpack")},
    "decode": decode,
    **{f"engine-{name}": _of(engine, name) for name in ("dali", "host")},
    **{f"neighbours-{name}": _of(neighbours, name) for name in ("dali", "host")},
    "decoder-load": decoder_load,
    "next-returns": next_returns,
    "no-sync": no_sync,
}


def main() -> int:
    """Ask one question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    try:
        print(CHECKS[args.check](args.device))
    except WrongError as wrong:
        print(f"WRONG: {wrong}")
        return 1
    except NotHereError as why:
        print(why)
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
