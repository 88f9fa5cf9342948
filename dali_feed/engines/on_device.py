"""What the engines of one feed keep on the loader's device: of each image column a part of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dali_feed.compiler.drawless import Drawless, drawless
from dali_feed.compiler.program import Program
from dali_feed.engines.choose import Compiled
from dali_feed.engines.engine import Engine
from dali_feed.options import Tuning

if TYPE_CHECKING:
    from dali_feed.engines.device_cache import DeviceRows

__all__ = ["OnDevice"]


class OnDevice:
    """Up to `limit` bytes of a CUDA device, or of this process's memory (`device` None).

    ConfigError where images change from epoch to epoch before a part of the program that can run behind the cache.
    """

    def __init__(self, made: Compiled, limit: int, device: int | None) -> None:
        programs: list[tuple[str, Program]] = [(each.engine, each.picture.view) for each in made.columns]
        programs = programs or [(made.engine, made.program)]
        self.parts: Sequence[Drawless] = [drawless(engine, program, device) for engine, program in programs]
        self.limit, self._device = limit, device
        self._rows: list[DeviceRows] = []
        self._of: tuple[str, int] = "", 0

    def begin(self, fingerprint: str, records: int) -> None:
        """A pass over that snapshot begins, while no other is under way: what was kept of another one is dropped."""
        if self._of != (fingerprint, records):
            self._of = fingerprint, records
            for rows in self._rows:
                rows.forget(records)

    def before(self, number: int, engine: Engine, tuning: Tuning) -> Engine:
        """That engine, which runs the head of part `number`, with a cache before it."""
        import torch

        from dali_feed.engines.device_cache import CachingEngine, DeviceRows

        place = torch.device("cpu") if self._device is None else torch.device("cuda", self._device)
        rows = DeviceRows(self.limit // len(self.parts), place)
        rows.forget(self._of[1])
        self._rows.append(rows)
        return CachingEngine(engine, self.parts[number], rows, device=self._device, tuning=tuning)

    @property
    def counted(self) -> tuple[int, int, int, int]:
        """Images that were there, and that were not; how many are kept, and the bytes that they take. Any thread."""
        rows = self._rows
        hits, misses = sum(each.hits for each in rows), sum(each.misses for each in rows)
        return hits, misses, sum(map(len, rows)), sum(each.held for each in rows)
