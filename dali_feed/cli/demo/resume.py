"""Killed in the middle of an epoch, resumed in a new process, compared with the run that was not.

`python -m dali_feed.cli.demo.resume ROLE FOLDER JOB` is what runs in the two processes: "doomed" trains until it has
taken `after` batches of an epoch, saves what a checkpoint holds, and kills itself while batches are in flight;
"resumed" loads it and finishes that epoch, writing down what it got.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from dali_feed.cli.demo.train import Job, Trace, Training
from dali_feed.errors import EngineError

__all__ = ["Verdict", "compare", "doomed", "resumed"]

MODEL, LOADER, TRACE = "model.pt", "loader.json", "trace.json"
PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """batches: how many were compared; differs: the first of the epoch that is not the same, or None."""

    batches: int
    samples: int
    differs: int | None
    weights: bool

    def __str__(self) -> str:
        if self.differs is not None:
            return f"resumed: DIFFERENT at batch {self.differs}"
        weights = ", and the weights after them" if self.weights else ""
        return f"resumed: identical ({self.batches} batches, ids and pixels of {self.samples} samples{weights})"


def compare(whole: Trace, rest: Trace, after: int) -> Verdict:
    """Hold the resumed rest of an epoch against the uninterrupted one, from batch `after` on."""
    wanted = list(zip(whole.ids, whole.pixels, strict=True))[after:]
    found = list(zip(rest.ids, rest.pixels, strict=True))
    pairs = enumerate(zip(wanted, found, strict=False), after)
    differs = next((n for n, (one, other) in pairs if one != other), None)
    if differs is None and len(wanted) != len(found):
        differs = after + min(len(wanted), len(found))
    return Verdict(len(wanted), sum(map(len, whole.ids[after:])), differs, whole.weights == rest.weights)


def doomed(job: Job, folder: Path, epoch: int, after: int) -> None:
    """Train in a new process that kills itself after `after` batches of `epoch`; its checkpoint lies in `folder`.

    Raises:
        EngineError: it ended in another way.
    """
    with _process("doomed", job, folder, str(epoch), str(after)) as process:
        said = _last_words(process)
        if process.returncode != -signal.SIGKILL or not (folder / LOADER).exists():
            raise _failure(process.returncode, said)


def resumed(job: Job, folder: Path) -> Trace:
    """Go on from the checkpoint in `folder` in a new process; the rest of the epoch, as it saw it.

    Raises:
        EngineError: it failed.
    """
    with _process("resumed", job, folder) as process:
        said = _last_words(process)
        if process.returncode:
            raise _failure(process.returncode, said)
    return Trace(**json.loads((folder / TRACE).read_text()))


@contextmanager
def _process(role: str, job: Job, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    # -P keeps the working folder off the path. A group of its own: Ctrl-C is this process's to handle.
    command = [sys.executable, "-P", "-m", __spec__.name, role, str(folder), json.dumps(dataclasses.asdict(job)), *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as process:  # noqa: S603
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _last_words(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired as error:
        msg = f"demo: a process of it must end within {PATIENCE:.0f} s; it did not"
        raise EngineError(msg) from error


def _failure(code: int, said: str) -> EngineError:
    last = [line for line in said.splitlines() if line.strip()][-1:]
    return EngineError(
        f"demo: its processes must end as planned; one ended with {code}: {' '.join(last) or 'no message'}"
    )


def _be_doomed(job: Job, folder: Path, epoch: int, after: int) -> None:
    with Training(job) as training:
        for _ in range(epoch):
            for _ in training.epoch():
                pass
        for taken, _ in enumerate(training.epoch(), 1):
            if taken == after:
                torch.save(training.state_dict(), folder / MODEL)
                (folder / LOADER).write_text(json.dumps(training.loader.state_dict()))
                os.kill(os.getpid(), signal.SIGKILL)


def _be_resumed(job: Job, folder: Path) -> None:
    with Training(job) as training:
        training.load_state_dict(torch.load(folder / MODEL, weights_only=True))
        training.loader.load_state_dict(json.loads((folder / LOADER).read_text()))
        trace = Trace()
        for _ in training.epoch(trace):
            pass
        (folder / TRACE).write_text(json.dumps(dataclasses.asdict(trace)))


def _main(role: str, folder: str, job: str, *more: str) -> None:
    logging.getLogger("dali_feed").addHandler(logging.NullHandler())  # the parent reports the bad records
    if role == "doomed":
        _be_doomed(Job(**json.loads(job)), Path(folder), *map(int, more))
    else:
        _be_resumed(Job(**json.loads(job)), Path(folder))


if __name__ == "__main__":
    _main(*sys.argv[1:])
