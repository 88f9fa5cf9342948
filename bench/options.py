"""Our loader with options A, B, C in turns, over photographs in tar shards in the page cache.

    python bench/options.py [watched cached readers threads]

watched   by nobody, with an endpoint that nobody asks, asked each 1 s, and each 0.1 s: images and CPU time per image
cached    later epochs without a cache, with bytes in memory, with pixels in memory
readers   of a topic: 1, 2, 4 and "auto"; the broker on this machine unless KAFKA_BOOTSTRAP names another
threads   of the decoder
"""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from _common import Heat, Options, broker, main, new_topic

from dali_feed import Cache, Tuning, metrics
from dali_feed.bench.data import photos
from dali_feed.bench.ours import loader, ours, transform
from dali_feed.bench.runner import Contestant, Opens, Steps
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.options import whole_cores
from dali_feed.testing import publish

BATCH = 64


def _shards(options: Options) -> list[str]:
    return [str(path) for path in photos(max(BATCH * 4, int(options.scale * 600))).linked]


def _with(shards: list[str], **more: Any) -> Opens:
    return ours(lambda: loader(ShardSet(shards), BATCH, transform=transform(), **more))


def watched(options: Options) -> Iterator[Heat]:
    """Who asks takes CPU time of this process too, which is counted."""
    shards = _shards(options)

    def polled(every: float) -> Opens:
        @contextmanager
        def opens(_: str) -> Iterator[Steps]:
            over = threading.Event()
            feeding = loader(ShardSet(shards), BATCH, transform=transform())
            with ours(lambda: feeding)("") as steps, metrics.serve(feeding) as at:

                def ask() -> None:
                    while every and not over.wait(every):
                        with urllib.request.urlopen(f"{at.url}/metrics") as answer:  # noqa: S310  our own
                            answer.read()

                thread = threading.Thread(target=ask)
                thread.start()
                try:
                    yield steps
                finally:
                    over.set()
                    thread.join()

        return opens

    ways = {"endpoint": 0.0, "asked each 1 s": 1.0, "asked each 0.1 s": 0.1}
    chosen = [Contestant("nobody", _with(shards), role="top")]
    chosen += [Contestant(who, polled(every), role="ours", beside="nobody") for who, every in ways.items()]
    yield Heat("watched by", chosen, seconds=options.seconds)


def cached(options: Options) -> Iterator[Heat]:
    """A turn's warm-up is an epoch and more, so later epochs are what is counted."""
    shards = [str(path) for path in photos(BATCH * 4).shards]
    caches = {"bytes": Cache("64GB"), "pixels": Cache("64GB", pixels=True)}
    chosen = [Contestant("no cache", _with(shards, engine="host"), role="top")]
    for who, cache in caches.items():
        opens = _with(shards, engine="host", tuning=Tuning(cache=cache))
        chosen.append(Contestant(who, opens, role="ours", beside="no cache"))
    yield Heat("cache", chosen, seconds=options.seconds)


def readers(options: Options) -> Iterator[Heat]:
    """Of a topic of photographs."""
    data = photos(max(BATCH * 4, int(options.scale * 3000)))
    with broker() as cluster, new_topic(cluster) as name:
        publish(cluster.servers, name, data.records())
        chosen = []
        for count in (1, 2, 4, "auto"):
            how: dict[str, Any] = {"transform": transform(), "tuning": Tuning(readers=count)}
            opens = ours(partial(loader, KafkaTopic(name, cluster.servers), BATCH, **how))
            chosen.append(Contestant(f"{count} readers", opens, role="ours", beside="2 readers"))
        yield Heat("readers of a topic", chosen, seconds=options.seconds, server=getattr(cluster, "pid", None))


def threads(options: Options) -> Iterator[Heat]:
    """1, 2, 4, ... up to the cores."""
    shards, chosen = _shards(options), []
    for n in sorted({min(1 << k, whole_cores()) for k in range(whole_cores().bit_length() + 1)}):
        opens = _with(shards, engine="host", tuning=Tuning(threads=n))
        chosen.append(Contestant(f"x{n}", opens, role="ours", beside="x1"))
    yield Heat("decoder threads", chosen, seconds=options.seconds)


CASES = {"watched": watched, "cached": cached, "readers": readers, "threads": threads}
if __name__ == "__main__":
    sys.exit(main(__doc__, "options", CASES, ["server us", "feed us"]))
