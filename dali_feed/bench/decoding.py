"""`dali-feed bench decode`: images per second of decoding alone, out of memory: nothing is resized or normalized.

Forms: `whole` images, or the `windows` that RandomResizedCrop draws. The host engine decodes windows; on a GPU the dali
engine decodes whole images.

Columns of a row:

    who, form, threads   a decoder, and what it was asked for
    img/s, least, most   median of the turns, and the others
    img/s a thread       the median over the threads
    MB/s                 encoded bytes
    of whole             images/s over those of whole images by the same decoder and threads, in the same round
    cpu us               CPU time per image
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.bench.contract import Outcome, Steps
from dali_feed.bench.pooled import pooled
from dali_feed.bench.turns import Listener, Make, Measured, ratios, spread, take_turns
from dali_feed.bench.work import cuda_index, transform
from dali_feed.compiler.host import compile_host
from dali_feed.engines.host.decode import decoded, new_decoder
from dali_feed.screen.screen import screen
from dali_feed.transforms.keys import Key
from dali_feed.transforms.lower import lower

__all__ = ["FORMS", "SHOWN", "Images", "measure"]

FORMS = ("whole", "windows")
SHOWN = ("who", "form", "threads", "img/s", "least", "most", "img/s a thread", "MB/s", "of whole", "cpu us")
BATCHES = 16  # prepared
Window = list[int]  # y, x, height, width


class Images:
    """Encoded images in memory, and a window of each.

    payloads  encoded
    windows   int32 (n, 4): y, x, height, width; as RandomResizedCrop draws them
    """

    def __init__(self, payloads: Sequence[bytes], crop: int) -> None:
        self.payloads = [memoryview(payload) for payload in payloads]
        sizes, rows = screen(self.payloads).sizes, np.arange(len(payloads))
        drawn = compile_host(lower(transform(crop))).parameters(sizes, rows, 0, 0).arrays
        self.windows: NDArray[np.int32] = np.ascontiguousarray(drawn[Key("window")], np.int32)
        self.mean_bytes = sum(map(len, payloads)) / len(payloads)


def _host(images: Images, form: str, batch: int, threads: int) -> Make:
    """NvImageCodec on the CPU, as the host engine has it: a decoder for each thread."""
    windows: list[Window] | None = images.windows.tolist() if form == "windows" else None

    def task(decoder: Any, rows: NDArray[np.int64], _: int) -> Sized:
        for row in rows.tolist():
            decoded(decoder, images.payloads[row], None if windows is None else windows[row])
        return rows

    return pooled(task, new_decoder, len(images.payloads), batch, threads)


def _pillow(images: Images, batch: int, threads: int) -> Make:
    """Pillow, which decodes whole images alone."""
    from io import BytesIO

    from PIL import Image

    def task(_: None, rows: NDArray[np.int64], number: int) -> Sized:  # noqa: ARG001
        for row in rows.tolist():
            Image.open(BytesIO(images.payloads[row])).convert("RGB").load()
        return rows

    return pooled(task, lambda: None, len(images.payloads), batch, threads)


def _torchvision(images: Images, batch: int, threads: int) -> Make:
    """Torchvision's decode_image, of whole images alone."""
    from torchvision.io import ImageReadMode, decode_image

    raw = [torch.frombuffer(bytearray(payload), dtype=torch.uint8) for payload in images.payloads]

    def task(_: None, rows: NDArray[np.int64], number: int) -> Sized:  # noqa: ARG001
        for row in rows.tolist():
            decode_image(raw[row], mode=ImageReadMode.RGB)
        return rows

    make = pooled(task, lambda: None, len(raw), batch, threads)

    @contextmanager
    def quietly() -> Iterator[Steps]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The image decoding", category=DeprecationWarning)  # to come
            with make() as steps:
                yield steps

    return quietly


class _Dali(Steps):
    def __init__(self, pipe: Any, device: torch.device) -> None:
        self._pipe, self._device = pipe, device

    def __next__(self) -> int:
        (out,) = self._pipe.run()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return len(out)


def _dali(images: Images, form: str, batch: int, threads: int, device: torch.device) -> Make:
    """DALI's decoder, on the CPU or mixed."""

    @contextmanager
    def make() -> Iterator[Steps]:
        from nvidia.dali import Pipeline, fn, types

        raw = [np.frombuffer(payload, np.uint8) for payload in images.payloads]
        dealt = np.random.default_rng(0).integers(0, len(raw), (BATCHES, batch))
        batches = [([raw[k] for k in rows], images.windows[rows]) for rows in dealt]
        pipe = Pipeline(batch, threads, cuda_index(device), exec_dynamic=True, prefetch_queue_depth=2)
        with pipe:
            fed: dict[str, Any] = {"cycle": "quiet", "no_copy": True}
            payload = fn.external_source([rows for rows, _ in batches], dtype=types.UINT8, ndim=1, **fed)
            how: dict[str, Any] = {"device": "cpu" if device.type == "cpu" else "mixed", "adjust_orientation": False}
            if form == "windows":
                window = fn.external_source([rows for _, rows in batches], dtype=types.INT32, ndim=1, **fed)
                how |= {"start": window[0:2], "shape": window[2:4], "axis_names": "HW"}
            decode = fn.decoders.image_slice if form == "windows" else fn.decoders.image
            image = decode(payload, **how)
            pipe.set_outputs(image)
        pipe.build()
        yield _Dali(pipe, device)

    return make


def _contestants(images: Images, batch: int, threads: int, device: torch.device) -> dict[tuple[str, str], Make]:
    made: dict[tuple[str, str], Make] = {}
    whole: dict[str, Callable[[Images, int, int], Make]] = {"pillow": _pillow, "torchvision": _torchvision}
    for form in FORMS:
        made["host", form] = _host(images, form, batch, threads)
        made["dali", form] = _dali(images, form, batch, threads, device)
    for who, how in whole.items():
        made[who, "whole"] = how(images, batch, threads)
    return made


def measure(
    images: Images,
    outcome: Outcome,
    *,
    batch: int,
    threads: Sequence[int],
    device: torch.device,
    repeats: int,
    seconds: float,
    listener: Listener | None = None,
) -> None:
    """Every decoder with every number of threads, in turns; `outcome` holds what was found, interrupted or not."""
    makers: dict[str, tuple[str, str, int]] = {}
    chosen: dict[str, dict[str, Make]] = {}
    for count in threads:
        for (who, form), make in _contestants(images, batch, count, device).items():
            name = f"{who} {form} x{count}"
            makers[name], chosen[name] = (who, form, count), {"": make}
    if device.type == "cuda":
        outcome.missing["dali windows"] = "a GPU's decoder may end the process on windows of JPEGs"
        chosen = {name: ways for name, ways in chosen.items() if makers[name][:2] != ("dali", "windows")}
    found = Measured()
    try:
        take_turns(chosen, found, repeats=repeats, seconds=seconds, listener=listener)
    finally:
        outcome.missing |= found.missing
        outcome.rows += [_row(*makers[name], images, found) for name in found.turns]


def _row(who: str, form: str, threads: int, images: Images, found: Measured) -> dict[str, Any]:
    turns = found.turns[f"{who} {form} x{threads}"]
    whole = found.turns.get(f"{who} whole x{threads}")
    rate, least, most = spread(turn.rate for turn in turns)
    return {
        "who": who,
        "form": form,
        "threads": threads,
        "img/s": round(rate),
        "least": round(least),
        "most": round(most),
        "img/s a thread": round(rate / threads),
        "MB/s": round(rate * images.mean_bytes / 1e6, 1),
        "of whole": round(ratios(turns, whole)[0], 3) if whole else None,
        "cpu us": round(1e6 * spread(turn.cpu / turn.images for turn in turns)[0]),
    }
