"""Reporting: a loader whose numbers go to reporters every so many batches.

The law: the loader's batches pass through as they are. A reporter that raises is warned about once and left out;
between two reports a step costs the adding of one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from dali_feed.checks import whole
from dali_feed.errors import ConfigError
from dali_feed.watching.figures import PREFIX, figures
from dali_feed.watching.reporters import Reporter
from dali_feed.watching.watched import Look, Watched

__all__ = ["Reporting", "scalars"]

log = logging.getLogger("dali_feed")


class _Batches(Protocol):
    """A loader: batches, and stats about them."""

    def __iter__(self) -> Iterator[Any]: ...

    def stats(self) -> Any:
        """Counts and waits since it was made."""
        ...


class Reporting(Iterable[Any]):
    """Batches of a loader; every so many of them its numbers go to reporters: `for x, y in Reporting(loader, ...)`.

    The loader is still yours: save and load its state, set its epoch and close it as before.

    Args:
        loader: a `DataLoader`, a `Feed` or a `LiveFeed`.
        reporter: a `Reporter`, or several.
        every: how many batches are between two reports.
        step: where the count of batches begins, as after a resume.

    Attributes:
        step: batches that the loop was given, through all its epochs, and what it began with.

    Raises:
        ConfigError: what is given is no loader or no reporter.
    """

    def __init__(
        self, loader: _Batches, reporter: Reporter | Sequence[Reporter], every: int = 50, *, step: int = 0
    ) -> None:
        self._watched, self._loader = Watched(loader), loader
        self._reporters = list(reporter) if isinstance(reporter, Sequence) else [reporter]
        for each in self._reporters:
            if not isinstance(each, Reporter):
                msg = f"reporter: must have report(step, values); found {type(each).__name__}"
                raise ConfigError(msg)
        whole("Reporting(every=...)", every, 1)
        self._every, self.step = every, step
        self._before = Look("", "", 0, time.monotonic())

    def __len__(self) -> int:
        """As the loader's."""
        return len(self._loader)  # type: ignore[arg-type]  # a TypeError of a loader that has none

    def __iter__(self) -> Iterator[Any]:
        """One pass, as the loader's own."""
        for batch in self._loader:
            self.step += 1
            if self.step % self._every == 0:
                self.report()
            yield batch

    def report(self) -> None:
        """Tell the reporters now."""
        look = self._watched.look()
        values, self._before = scalars(look, self._before), look
        for each in list(self._reporters):
            try:
                each.report(self.step, values)
            except Exception as error:  # noqa: BLE001  who writes numbers down must not end a training
                said = f"{type(error).__name__}: {error}"  # a record in a log must not keep the frames alive
                self._reporters.remove(each)
                log.warning("%s: %s. It gets no more reports; the run goes on", type(each).__name__, said)


def scalars(look: Look, before: Look) -> dict[str, float]:
    """Figures as flat numbers: gauges by their names, counters with how much they grew per second since `before`.

    What has a label has its values behind its name, `storage_read_p99_seconds/local`; of single partitions and brokers
    nothing is told, which would be thousands.
    """
    grown, seconds = dict(_counters(before)), look.at - before.at
    values: dict[str, float] = {}
    for figure in look.figures():
        metric = figure.metric
        if metric.classes or {"partition", "broker"} & set(metric.labels) or metric.name.endswith("_info"):
            continue
        name = "/".join((metric.name.removeprefix(PREFIX), *figure.values))
        if metric.form.sort == "gauge":
            values[name] = figure.value
            continue
        plain = name.replace("_total", "", 1)
        values[plain] = figure.value
        if seconds > 0:
            rate = "/".join((metric.name.removeprefix(PREFIX).removesuffix("_total") + "_per_second", *figure.values))
            values[rate] = (figure.value - grown.get((metric.name, figure.values), 0.0)) / seconds
    return values


def _counters(look: Look) -> Iterator[tuple[tuple[str, tuple[str, ...]], float]]:
    if look.stats is not None:
        for figure in figures(look.stats):
            if figure.metric.form.sort == "counter":
                yield (figure.metric.name, figure.values), figure.value
