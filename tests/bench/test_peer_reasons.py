"""Why a peer takes no part: told with its name and the cure, and the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from dali_feed.bench.facts import version
from dali_feed.bench.peers._peer import Batches, Peer, version_of
from dali_feed.bench.turns import rate_of
from dali_feed.errors import EngineError


class Broken(Peer):
    """Its module raises when it is imported, as one does that is built for another version of torch."""

    name: ClassVar[str] = "broken"
    package: ClassVar[str] = "broken-loader"
    modules: ClassVar[tuple[str, ...]] = ("broken_loader",)


class Absent(Broken):
    """It is not installed."""

    modules: ClassVar[tuple[str, ...]] = ("no_such_module_anywhere",)


def test_a_peer_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed, or installed and broken: the reason of its own, and where it would work."""
    (tmp_path / "broken_loader.py").write_text("raise RuntimeError('undefined symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    job: Any = None
    assert "broken-loader  cannot be imported: RuntimeError: undefined symbol; pip install" in str(
        Broken().missing(job)
    )
    assert str(Absent().missing(job)).startswith(
        "no broken-loader: No module named 'no_such_module_anywhere'; pip inst"
    )
    assert (version_of("broken-loader"), version("broken-loader"), version("broken-loader", "torch")) == (
        "",
        "none",
        version_of("torch"),
    )


def test_an_epoch_without_a_batch_is_an_error() -> None:
    """Else a turn would begin one after another for ever."""

    def epochs() -> Iterator[Any]:
        return iter(held)

    held = [torch.zeros(2, 3)]
    steps = Batches(epochs, lambda batch: batch)
    assert [len(steps.take()) for _ in range(3)] == [2, 2, 2]
    held.clear()
    with pytest.raises(EngineError, match="an epoch must have a full batch; found none"):
        steps.take()


def test_a_rate_counts_images_and_not_batches() -> None:
    """Of batches that are tuples with the images in front."""

    def batches() -> Iterator[Any]:
        yield torch.zeros(3, 1), torch.zeros(3)
        yield torch.zeros(5, 1), torch.zeros(5)

    assert rate_of(batches()) > 0
    assert rate_of(iter([([], [])])) == 0
