"""Payloads decoded whole, as uncompressed files of the same pixels: what a cache of pixels keeps.

The law: the pixels are the host engine's, turned as its program turns them; so an engine that is given the file makes
of it what it makes of the payload. Only what the feed can use is decoded: a record that is bad stays as it was read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dali_feed.compiler.outline import unfit
from dali_feed.compiler.turning import turns
from dali_feed.engines.pictures import Compiled
from dali_feed.errors import ConfigError
from dali_feed.options import Decode, Tuning
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import screen
from dali_feed.screen.screen import turned as with_ways

__all__ = ["WholePixels"]

_UPRIGHT = (0, 0, 0)


class WholePixels:
    """Decodes with as many threads as the engine has; they are started by the first call.

    Raises ConfigError where what the host engine decodes is not what the feed's engine would.
    """

    def __init__(self, made: Compiled, decode: Decode, tuning: Tuning) -> None:
        views = made.program.views[:1] if made.columns else made.program.views
        subject, engine = "Cache(pixels=True)", made.columns[0].engine if made.columns else made.engine
        if not views:
            msg = f"{subject}: keeps decoded images, but no column is an Image. Leave pixels out"
            raise ConfigError(msg)
        if engine != "host":
            msg = (
                f"{subject}: keeps what the host engine decodes; found the {engine} engine, whose decoder gives other"
                ' pixels. Give Decode(engine="host"), or leave pixels out'
            )
            raise ConfigError(msg)
        self._recipes, self._exif = [view.recipe for view in views], views[0].recipe.exif
        self._decode, self._tuning = decode, tuning
        self._local = threading.local()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def told(self) -> tuple[object, ...]:
        """All that decides what the pixels of a payload are, and whether it has any."""
        from dali_feed.engines.codec import nvimgcodec

        return ("pixels", nvimgcodec.__version__, self._exif, self._decode.max_pixels, self._decode.max_work)

    def __call__(
        self, payloads: list[memoryview], has_room: Callable[[int], bool], stop: threading.Event | None
    ) -> list[memoryview | None]:
        """The file of each payload's pixels; None for what is no image, or has no room. For any thread."""
        found = screen(payloads, self._decode.max_pixels, self._decode.max_work)
        if self._exif:
            found = with_ways(found, payloads)
        bad = dict(found.reasons)
        for recipe in self._recipes:
            bad |= unfit(recipe, found.sizes)
        ways = turns(found.sizes)
        tasks: list[tuple[int, memoryview, int, int, Any]] = []
        room = 0
        for row, (height, width) in enumerate(found.sizes[:, :2].tolist()):
            size = height * width * 3 + 32
            if row in bad or not has_room(room + size):
                continue
            room += size
            way = _UPRIGHT if ways is None else ways[row, :3].tolist()
            tasks.append((row, found.plain.get(row, payloads[row]), height, width, way))
        out: list[memoryview | None] = [None] * len(payloads)
        if tasks:
            every = self._threads().map(lambda task: self._one(task, stop), tasks)
            for (row, *_), made in zip(tasks, every, strict=True):
                out[row] = made
        return out

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._tuning.cpu_threads, "dali_feed-pixels")
            return self._pool

    def _one(self, task: tuple[int, memoryview, int, int, Any], stop: threading.Event | None) -> memoryview | None:
        from dali_feed.engines.host.decode import decoded, new_decoder, turned

        if stop is not None and stop.is_set():
            return None
        _, payload, height, width, way = task
        if not hasattr(self._local, "decoder"):
            self._local.decoder = new_decoder()
        try:
            pixels = turned(decoded(self._local.decoder, payload, None), way)
        except UnusableError:
            return None  # the engine says so, too
        if pixels.shape != (height, width, 3):
            return None
        head = b"P6 %d %d 255\n" % (width, height)
        file = bytearray(len(head) + pixels.nbytes)
        file[: len(head)] = head
        np.frombuffer(file, np.uint8, pixels.nbytes, len(head)).reshape(pixels.shape)[:] = pixels
        return memoryview(file)
