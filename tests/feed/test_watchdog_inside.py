"""Insides that contract/feed/test_stages.py needs not: they go with what they test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kit.images import jpeg, labelled
from kit.watchdog import said_of

from dali_feed import BadRecords
from dali_feed.bad_records import Letter, LetterWriter
from dali_feed.engines.host import decode
from dali_feed.engines.host import images as host
from dali_feed.engines.host.images import HostImages, ImageSteps
from dali_feed.testing.scripted import Corrupt, Item, ScriptedSource


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What the stuck stage waits for; set at the end, so that no thread is left waiting."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("tells", [True, False])
def test_an_image_that_the_engine_hangs_on_is_named(
    go_on: threading.Event, monkeypatch: pytest.MonkeyPatch, *, tells: bool
) -> None:
    """By its coordinates, or by those of its batch where the engine cannot tell."""
    run = ImageSteps.run

    def slow(self: ImageSteps, pixels: Any, arrays: Any, slot: int, out: Any, **how: int) -> None:
        if pixels.shape[:2] == (16, 20):
            go_on.wait(60)
        run(self, pixels, arrays, slot, out, **how)

    monkeypatch.setattr(ImageSteps, "run", slow)
    if not tells:
        monkeypatch.setattr(HostImages, "at_work", lambda *_: ())
    items: list[Item] = [*labelled(32)]
    items[8:12] = [(jpeg(n, 16, 20), n) for n in range(8, 12)]
    line = said_of(ScriptedSource(items, extent=8), go_on, about="scripted[0]@8")[0]
    said = "is at scripted[0]@8;" if tells else "runs the batch of 4 from scripted[0]@8 to scripted[0]@11;"
    assert f"engine: host {said}" in line


def test_images_that_one_call_decodes_are_all_named(go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of them may be the one that the decoder hangs on."""
    decoded = decode.decoded_jpegs

    def slow(decoder: Any, streams: list[Any]) -> Any:
        go_on.wait(60)
        return decoded(decoder, streams)

    monkeypatch.setattr(host, "decoded_jpegs", slow)
    line = said_of(ScriptedSource(labelled(8), extent=8), go_on, samples=8, about="engine: host")[0]
    assert "is at scripted[0]@0, scripted[0]@1, scripted[0]@2, scripted[0]@3;" in line


class _Full:
    """A place for dead letters that takes none until it is told to."""

    def __init__(self, go_on: threading.Event) -> None:
        self._go_on = go_on

    def __str__(self) -> str:
        return "the full folder"

    def writer(self) -> LetterWriter:
        """Itself."""
        return self

    def read(self) -> Iterator[Letter]:
        """None."""
        return iter(())

    def write(self, letters: Sequence[Letter]) -> None:
        """Wait."""
        del letters
        self._go_on.wait(60)

    def close(self) -> None:
        """Nothing."""


def test_dead_letters_that_nobody_takes_are_named(go_on: threading.Event) -> None:
    """An epoch that waits for its letters at the end says for whose."""
    items: list[Item] = [*labelled(32)]
    items[3] = Corrupt()
    lines = said_of(ScriptedSource(items), go_on, bad=BadRecords(limit=None, dead_letter=_Full(go_on)))
    assert "dead letters: the full folder does not accept them" in lines[0]
