"""The demo from beginning to end, and the texts that it prints."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from dali_feed.errors import ConfigError
from dali_feed.feed.stats import Stats
from dali_feed.native.library import used

if TYPE_CHECKING:  # what these need may be missing, which is said in words
    from dali_feed.cli.demo.contact_sheet import Sheet
    from dali_feed.cli.demo.resume import Verdict
    from dali_feed.cli.demo.train import Job, Trace

__all__ = ["ENOUGH", "run"]

ENOUGH = 0.95
# module -> (package, extra of ours that brings it)
_NEEDED = {
    "PIL": ("pillow", "demo"),
    "matplotlib": ("matplotlib", "demo"),
    "skimage": ("scikit-image", "demo"),
    "sklearn": ("scikit-learn", "demo"),
    "torchvision": ("torchvision", "vision"),
    "nvidia.dali": ("nvidia-dali", "cuda12"),
}


@dataclass(frozen=True, slots=True)
class _Trained:
    accuracy: float
    judged: int
    stats: Stats
    seconds: float
    trace: Trace
    steps: int
    device: str


def run(*, device: str | None, epochs: int, source: str, out: Path, quick: bool = False) -> bool:
    """Run the demo and tell its story; True where the network learned and the resumed run was the same.

    `quick` takes a quarter of the digits and does not judge the network.

    Raises:
        ConfigError: packages are missing, or an argument is not allowed.
        DaliFeedError: whatever else goes wrong.
    """
    _check(out)
    from dali_feed.cli.demo import contact_sheet, digits
    from dali_feed.cli.demo.resume import compare, doomed, resumed
    from dali_feed.cli.demo.train import Job

    console = Console(highlight=False)
    begun = time.perf_counter()
    epoch = min(1, epochs - 1)  # the one in which the process dies
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dali-feed-")))
        at = _broker(stack) if source == "kafka" else str(folder)
        stages = _Stages(console)
        train, held_out = digits.records(quick)
        with stages.stage(f"{len(train) + len(held_out):,} digits into {_place(source, at)}"):
            digits.place(source, at, digits.TRAIN, train)
            digits.place(source, at, digits.HELD_OUT, held_out)
        job = Job(source, at, device, epochs)
        whole = _train(stages, job, epoch, len(held_out))
        after = whole.steps // 2
        with stages.stage(f"again, killed in epoch {epoch + 1} after batch {after} of {whole.steps}"):
            doomed(job, folder, epoch, after)
        with stages.stage("a new process continues from the checkpoint"):
            verdict = compare(whole.trace, resumed(job, folder), after)
        with stages.stage(f"a batch of photographs to {out}"):
            sheet = contact_sheet.make(out, device)
    learned = quick or whole.accuracy >= ENOUGH
    console.print()
    _tell(console, whole, verdict, sheet, out, quick=quick)
    _line(console, "time", f"{time.perf_counter() - begun:.0f} s; {_versions(source)}")
    return learned and verdict.differs is None


def _check(out: Path) -> None:
    """Say what is missing before anything starts."""
    missing = {name: extra for name, extra in _NEEDED.items() if not _found(name)}
    if missing:
        names = ", ".join(_NEEDED[name][0] for name in missing)
        extras = ",".join(sorted({extra for _, extra in missing.values()}))
        msg = f"demo: it needs packages that are not installed: {names}; pip install 'dali-feed[{extras}]'"
        raise ConfigError(msg)
    if not out.parent.is_dir():
        msg = f"--out: must be a file in a folder that exists; found {str(out)!r}; make its folder first"
        raise ConfigError(msg)


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


@contextmanager
def _quiet() -> Iterator[None]:
    """Bad records are listed at the end, not as log lines between the progress."""
    log, handler = logging.getLogger("dali_feed"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _broker(stack: ExitStack) -> str:
    from dali_feed.testing import broker

    return stack.enter_context(broker()).servers


def _place(source: str, at: str) -> str:
    return f"a Kafka topic at {at}" if source == "kafka" else "tar shards"


class _Stages:
    """A line per stage once it is done; while it runs, at a terminal, a bar or a spinner."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, what: str, steps: int | None = None) -> Iterator[_Stage]:
        """Run a stage of so many steps (None: nobody counts)."""
        begun = time.perf_counter()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        shown = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        with shown:
            task = shown.add_task(what, total=steps)
            stage = _Stage(lambda: shown.advance(task))
            yield stage
        took = f"{time.perf_counter() - begun:5.1f} s  "
        note = f": {stage.note}" if stage.note else ""
        self._console.print(Text.assemble((took, "dim"), what, note), soft_wrap=True)


@dataclass(slots=True)
class _Stage:
    advance: Callable[[], None]
    note: str = ""


def _train(stages: _Stages, job: Job, traced: int, judged: int) -> _Trained:
    """The uninterrupted run; notes down the batches of the epoch `traced`."""
    from dali_feed.cli.demo.train import Trace, Training

    trace, seconds, accuracy = Trace(), 0.0, []
    with Training(job) as training, stages.stage("train", job.epochs * training.steps) as stage:
        for epoch in range(job.epochs):
            begun = time.perf_counter()
            for _ in training.epoch(trace if epoch == traced else None):
                stage.advance()
            seconds += time.perf_counter() - begun
            accuracy.append(training.accuracy())
        stage.note = "accuracy after each epoch: " + ", ".join(f"{a:.1%}" for a in accuracy)
        stats, device = training.loader.stats(), str(training.loader.device)
    return _Trained(accuracy[-1], judged, stats, seconds, trace, training.steps, device)


def _line(console: Console, name: str, text: str, style: str = "") -> None:
    console.print(Text.assemble((f"{name}: ", "bold"), (text, style)), soft_wrap=True)


def _tell(console: Console, whole: _Trained, verdict: Verdict, sheet: Sheet, out: Path, *, quick: bool) -> None:
    stats = whole.stats
    bad = sorted(set(stats.recent_bad))
    learned = whole.accuracy >= ENOUGH
    rule = "not judged in a quick run" if quick else f"at least {ENOUGH:.0%} is wanted"
    mark = "" if quick else "green" if learned else "red"
    _line(console, "accuracy", f"{whole.accuracy:.1%} of {whole.judged} held-out digits ({rule})", mark)
    name, _, text = str(verdict).partition(": ")
    _line(console, name, text, "green" if verdict.differs is None else "red")
    _line(console, f"{len(bad)} bad records replaced", "; ".join(f"{where}: {reason}" for where, reason in bad))
    _line(console, "speed", f"{stats.samples / whole.seconds:,.0f} samples/s in the training loop on {whole.device}")
    waits = f"p50 {stats.step_wait_p50 * 1e3:.2f} ms, p99 {stats.step_wait_p99 * 1e3:.2f} ms"
    _line(console, "wait per step", waits)
    waited = (("source", stats.read_wait), ("engine", stats.engine_wait), ("trainer", stats.trainer_wait))
    shares = ", ".join(f"{seconds:.1f} s for the {who}" for who, seconds in waited)
    _line(console, "bottleneck", f"{stats.bottleneck} (the loader waited {shares})")
    _line(console, "verdict", stats.verdict)
    replaced = "; ".join(f"{where}: {reason}" for where, reason in sheet.bad)
    _line(console, "contact sheet", f"{out}, a batch of {sheet.slots}, {sheet.replaced} replaced ({replaced})")


def _versions(source: str) -> str:
    """Of what ran; DALI comes under a name per CUDA version."""
    asked = ["dali-feed", "torch", "nvidia-dali-cuda120", "nvidia-dali-cuda130"]
    asked += ["confluent-kafka"] if source == "kafka" else []
    named = {"Python": platform.python_version()}
    for name in asked:
        with suppress(importlib.metadata.PackageNotFoundError):
            named[name] = importlib.metadata.version(name)
    return f"{', '.join(f'{name} {version}' for name, version in named.items())}; loops in C: {used()}"
