"""The images of a bench: photographs that are made, or the user's own from any source."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dali_feed.bench.contract import Data
from dali_feed.bench.forms import touch
from dali_feed.bench.own import own
from dali_feed.bench.photos import cache_folder, photos
from dali_feed.cli.inspect import blocks, spread
from dali_feed.cli.targets import Access, source_of
from dali_feed.records.source import LABEL, Snapshot, Source

__all__ = ["data_for", "scratch_in"]


@contextmanager
def scratch_in(folder: Path | None) -> Iterator[Path]:
    """A folder for the run, gone at its end; in `folder` or the user's cache, for images of one's own may be many."""
    home = folder or cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=home, ignore_cleanup_errors=True) as made:
        yield Path(made)


def data_for(
    targets: Sequence[str],
    images: int,
    scratch: Path,
    kept: Path | None,
    *,
    config: Sequence[str] = (),
    timeout: float = 10.0,
) -> Data:
    """Images in the page cache: those of the source that `targets` name, copied into `scratch`, or photographs.

    Args:
        targets: of one source; () for photographs, which are kept in `kept` or the user's cache.
        images: how many at most.
        scratch: where copies go.
        kept: where photographs are kept.
        config: options of librdkafka.
        timeout: for a broker.
    """
    if targets:
        source = source_of(targets, Access.of(config, timeout))
        snapshot = source.snapshot()
        data = own(_records(source, snapshot, images), snapshot.source, scratch / "own")
    else:
        data = photos(images, cache=kept).data
    touch(data)
    return data


def _records(source: Source, snapshot: Snapshot, count: int) -> Iterator[tuple[memoryview, int]]:
    """(payload, label) of `count` records, spread evenly."""
    for block in blocks(source, snapshot, spread(snapshot, count)):
        found = block.fields.get(LABEL)
        labels = found.tolist() if isinstance(found, np.ndarray) else [0] * len(block.payloads)
        for row, payload in enumerate(block.payloads):
            if payload is not None and row not in block.faults:
                yield payload, labels[row]
