"""Reporters: where numbers of a run go that belong beside the loss, a class for each kind of place.

Anything with `report(step, values)` is one. None of these imports what it writes to: it is given the writer.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dali_feed.errors import ConfigError

__all__ = ["JsonLines", "Logging", "Reporter", "TensorBoard", "Wandb"]


@runtime_checkable
class Reporter(Protocol):
    """Takes numbers. It is called in the training loop's thread, between two batches."""

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers by name, as they are at that step."""
        ...


class TensorBoard:
    """To a SummaryWriter of TensorBoard, or anything with its `add_scalar(tag, value, step)`.

    Args:
        writer: of `torch.utils.tensorboard`, tensorboardX or Lightning (`logger.experiment`).
        prefix: what stands before each name.
    """

    def __init__(self, writer: Any, prefix: str = "dali_feed/") -> None:
        self._writer, self._prefix = _having(writer, "add_scalar"), prefix

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar for each number."""
        for name, value in values.items():
            self._writer.add_scalar(self._prefix + name, value, step)


class Wandb:
    """To a run of Weights & Biases, or anything with its `log(values, step=...)`.

    Args:
        run: what `wandb.init()` gave.
        prefix: what stands before each name.
    """

    def __init__(self, run: Any, prefix: str = "dali_feed/") -> None:
        self._run, self._prefix = _having(run, "log"), prefix

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """All of them as one row."""
        self._run.log({self._prefix + name: value for name, value in values.items()}, step=step)


class JsonLines:
    """To a file: a JSON object per report, with `step` and `time` (Unix seconds); a file that is there grows.

    Args:
        path: of the file, in a folder that is there.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir() or self._path.is_dir():
            msg = f"JsonLines: must be a file in a folder that exists; found {str(path)!r}; make the folder first"
            raise ConfigError(msg)

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """A line, which a reader of the file sees at once."""
        line = json.dumps({"step": step, "time": time.time(), **values})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


class Logging:
    """To a log: one line per report.

    Args:
        logger: of Python's logging; None for `dali_feed`.
        level: of the lines.
        names: those that are shown; None: what a person wants to see first.
    """

    FIRST = ("samples_per_second", "step_wait_p50_seconds", "step_wait_p99_seconds", "bad_records")

    def __init__(
        self, logger: logging.Logger | None = None, level: int = logging.INFO, names: tuple[str, ...] | None = None
    ) -> None:
        self._log, self._level = logger or logging.getLogger("dali_feed"), level
        self._names = self.FIRST if names is None else names

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Those of the names that are known."""
        told = ", ".join(f"{name} {values[name]:.4g}" for name in self._names if name in values)
        self._log.log(self._level, "step %d: %s", step, told)


def _having(thing: Any, method: str) -> Any:
    if not callable(getattr(thing, method, None)):
        msg = f"reporter: must write to something that has {method}(); found {type(thing).__name__}"
        raise ConfigError(msg)
    return thing
