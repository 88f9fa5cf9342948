"""Where the rows of this folder's benchmarks are kept, and the rows of a run that adds them one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dali_feed.bench.facts import jpeg_engine
from dali_feed.bench.rows import append, table

__all__ = ["RESULTS", "Rows"]

RESULTS = Path(__file__).parent / "results"


class Rows:
    """The rows of one run, each added to results/NAME.csv as it is made; a case that fails costs its own row alone."""

    def __init__(self, name: str, about: Mapping[str, object], results: Path) -> None:
        self.rows: list[Mapping[str, object]] = []
        self._name, self._about, self._results, self._failed = name, about, results, 0

    def measure(self, case: str, make: Callable[[], Mapping[str, object]], *, told: bool = True) -> None:
        """Add the row that `make` gives, and print it where `told`; or say that the case failed, and why."""
        try:
            row = make()
        except Exception as error:  # noqa: BLE001  whatever one contestant fails on, the others are measured
            self._failed += 1
            print(f"{case}: FAILED: {type(error).__name__}: {error}", flush=True)
            return
        self.rows.append(row)
        append(self._name, [{**self._about, "jpeg engine": jpeg_engine(), **row}], self._results)
        if told:
            print(table([row], list(row)), flush=True)

    def end(self) -> int:
        """Print all and where they are; 1 where a case failed."""
        if self.rows:
            print(table(self.rows, list(self.rows[0])))
        failed = f"; {self._failed} cases FAILED" if self._failed else ""
        print(f"\nadded {len(self.rows)} rows to {self._results / self._name}.csv{failed}")
        return 1 if self._failed else 0
