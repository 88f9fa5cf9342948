"""The demo: a network learns digits from a topic, is killed in the middle of an epoch, and goes on as if it were not.

Everything in it is real: a broker, records over TCP, two bad ones among them, a process ended by SIGKILL, another
that resumes from the saved state, and a comparison of every id and pixel with the run that was never interrupted.

`python -m dali_feed.cli.demo ROLE FOLDER JOB` is what runs in the two processes: "killed" trains until it has taken
some batches of an epoch, saves what a checkpoint holds, and kills itself while batches are in flight; "resumed" loads
it and finishes that epoch, writing down what it got. Both call the same `Training` as the story.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from dali_feed.cli.view import Report, progress, show
from dali_feed.errors import ConfigError, EngineError
from dali_feed.packages import needed

ENOUGH = 0.95  # of the held-out digits
SIDE, BATCH, PARTITIONS = 32, 32, 4
TRAIN, HELD_OUT = "digits", "digits-held-out"
MODEL, LOADER, TRACE = "model.pt", "loader.json", "trace.json"
PATIENCE = 300.0  # seconds for a process to end
_NEEDED = {"PIL": "pillow", "sklearn": "scikit-learn", "torchvision": "torchvision"}  # module -> package
Labelled = list[tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class DemoJob:
    """What each of the three processes must know; plain JSON.

    servers  the broker's address
    device   as torch names it; None: the loader's default
    """

    servers: str
    device: str | None
    epochs: int
    seed: int = 0


@dataclass(slots=True)
class Trace:
    """What an epoch's batches were: per batch the ids of its slots and the SHA-256 of its pixels; the weights after."""

    ids: list[list[int]] = field(default_factory=list)
    pixels: list[str] = field(default_factory=list)
    weights: str = ""


class Training:
    """A training loop as a user would write it, but for the trace. Use it in a `with`, so that loaders are closed."""

    def __init__(self, job: DemoJob) -> None:
        import torch
        from torch import nn
        from torchvision.transforms import v2

        from dali_feed.external_sources import KafkaTopic
        from dali_feed.loader import DataLoader

        finish = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
        augment = [
            v2.RandomResizedCrop(SIDE, scale=(0.8, 1.0), ratio=(0.9, 1.1)),
            v2.RandomRotation(10),
            v2.ColorJitter(brightness=0.2, contrast=0.2),
        ]
        self.loader = DataLoader(
            KafkaTopic(TRAIN, job.servers),
            BATCH,
            shuffle=True,
            device=job.device,
            seed=job.seed,
            transform=v2.Compose([*augment, *finish]),
            info=True,
        )
        self._held_out = DataLoader(
            KafkaTopic(HELD_OUT, job.servers),
            2 * BATCH,
            device=job.device,
            transform=v2.Compose([v2.Resize((SIDE, SIDE)), *finish]),
        )
        self.steps = len(self.loader)  # per epoch
        torch.manual_seed(job.seed)
        self.network = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 10)),
        ).to(self.loader.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=job.epochs * self.steps)
        self._saved: list[Any] = [self.network, self.optimizer, self.schedule]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loader.close()
        self._held_out.close()

    def epoch(self, trace: Trace | None = None) -> Iterator[int]:
        """Train on the next epoch, or on the rest of a restored one; gives the number of each step behind it."""
        from torch import nn

        self.network.train()
        for step, (images, labels, info) in enumerate(self.loader, 1):
            if trace is not None:
                trace.ids.append(info.ids.tolist())
                trace.pixels.append(_sha256(images))
            loss = nn.functional.cross_entropy(self.network(images), labels)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.schedule.step()
            yield step
        if trace is not None:
            trace.weights = _sha256(*self.network.state_dict().values())

    def save(self, folder: Path) -> None:
        """A checkpoint: the network's, the optimizer's and the schedule's state, and the loader's, which is JSON."""
        import torch

        torch.save([part.state_dict() for part in self._saved], folder / MODEL)
        (folder / LOADER).write_text(json.dumps(self.loader.state_dict()))

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        import torch

        for part, state in zip(self._saved, torch.load(folder / MODEL, weights_only=True), strict=True):
            part.load_state_dict(state)
        self.loader.load_state_dict(json.loads((folder / LOADER).read_text()))

    def accuracy(self) -> float:
        """The share of held-out digits that the network knows."""
        import torch

        self.network.eval()
        right = total = 0
        with torch.no_grad():
            for images, labels in self._held_out:
                right += int((self.network(images).argmax(1) == labels).sum())
                total += len(labels)
        return right / total


def check() -> None:
    """Raise ConfigError, before anything starts, where packages are missing."""
    missing = [package for module, package in _NEEDED.items() if not _is_there(module)]
    if missing:
        what = f"packages that are not installed: {', '.join(missing)}"
        raise ConfigError(f"demo: it needs {what}; pip install 'dali-feed[demo]'")


def run(device: str | None, epochs: int) -> bool:
    """Tell the story; whether the network learned and the resumed run was the same."""
    from dali_feed.testing import broker, publish

    traced = min(1, epochs - 1)  # the epoch in which the process dies
    with tempfile.TemporaryDirectory(prefix="dali-feed-") as folder, _quiet(), broker() as kafka, needed():
        train, held_out = records()
        with _stage(f"{len(train) + len(held_out):,} digits into a Kafka topic at {kafka.servers}"):
            publish(kafka.servers, TRAIN, train, partitions=PARTITIONS)
            publish(kafka.servers, HELD_OUT, held_out, partitions=PARTITIONS)
        job, whole, accuracy = DemoJob(kafka.servers, device, epochs), Trace(), list[float]()
        with _stage("train") as stage, Training(job) as training, progress(epochs * training.steps, "steps") as tell:
            seconds = 0.0
            for epoch in range(epochs):
                at = time.perf_counter()
                for step in training.epoch(whole if epoch == traced else None):
                    tell(epoch * training.steps + step)
                seconds += time.perf_counter() - at
                accuracy.append(training.accuracy())
            stats, steps, where = training.loader.stats(), training.steps, training.loader.device
            stage.append("accuracy after each epoch: " + ", ".join(f"{share:.1%}" for share in accuracy))
        after = steps // 2
        with _stage(f"again, killed in epoch {traced + 1} after batch {after} of {steps}"):
            process("killed", job, Path(folder), traced, after)
        with _stage("a new process continues from the checkpoint"):
            process("resumed", job, Path(folder))
        rest = Trace(**json.loads(Path(folder, TRACE).read_text()))
    same, learned = difference(whole, rest, after), accuracy[-1] >= ENOUGH
    report = Report(" ")
    text = f"{accuracy[-1]:.1%} of {len(held_out)} held-out digits (at least {ENOUGH:.0%} is wanted)"
    report.note(f"accuracy: {text}", "green" if learned else "red")
    report.note(f"resumed: {same}", "green" if same.startswith("identical") else "red")
    bad = sorted(set(stats.recent_bad))
    report.note(f"{len(bad)} bad records replaced: " + "; ".join(f"{place}: {reason}" for place, reason in bad))
    waits = f"wait per step p50 {stats.step_wait_p50 * 1e3:.2f} ms, p99 {stats.step_wait_p99 * 1e3:.2f} ms"
    report.note(f"speed: {stats.samples / seconds:,.0f} samples/s in the training loop on {where}; {waits}")
    report.note(f"who waits: {stats.verdict}")
    show(report)
    return learned and same.startswith("identical")


def difference(whole: Trace, rest: Trace, after: int) -> str:
    """The resumed rest of an epoch, held against the uninterrupted one from batch `after` on, in words."""
    wanted = list(zip(whole.ids, whole.pixels, strict=True))[after:]
    got = list(zip(rest.ids, rest.pixels, strict=True))
    pairs = enumerate(zip(wanted, got, strict=False), after)
    differs = next((n for n, (one, other) in pairs if one != other), None)
    if differs is None and len(wanted) != len(got):
        differs = after + min(len(wanted), len(got))
    if differs is not None:
        return f"DIFFERENT at batch {differs}"
    weights = ", and the weights after them" if whole.weights == rest.weights else "; the weights after them differ"
    return f"identical ({len(wanted)} batches, ids and pixels of {sum(map(len, whole.ids[after:]))} samples{weights})"


def process(role: str, job: DemoJob, folder: Path, *more: int) -> None:
    """Run a role in a process of its own, which must end as planned. Raises EngineError with its last words."""
    # -P keeps the working folder off the path. A group of its own: Ctrl-C is this process's to handle.
    facts = json.dumps(dataclasses.asdict(job))
    command = [sys.executable, "-P", "-m", "dali_feed.cli.demo", role, str(folder), facts, *map(str, more)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as child:  # noqa: S603
        try:
            errors = child.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"demo: a process of it must end within {PATIENCE:.0f} s; it did not") from error
        finally:
            if child.poll() is None:
                child.kill()
    if child.returncode != (-signal.SIGKILL if role == "killed" else 0) or not (folder / LOADER).exists():
        last = " ".join([line for line in errors.splitlines() if line.strip()][-1:]) or "no message"
        raise EngineError(f"demo: its processes must end as planned; one ended with {child.returncode}: {last}")


def records() -> tuple[Labelled, Labelled]:
    """(JPEG, label) pairs to learn from, and every fifth digit to be judged by.

    Of the first, one is cut off in its header and one is a web server's error page.
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    every: Labelled = []
    digits = load_digits()
    for digit, label in zip(digits.images, digits.target, strict=True):  # 8 x 8, 0..16
        small, file = Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8)), io.BytesIO()
        small.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB").save(file, "JPEG", quality=95)
        every.append((file.getvalue(), int(label)))
    train = [record for n, record in enumerate(every) if n % 5]
    train.insert(69, (train[0][0][:300], train[0][1]))  # digits[1]@17
    train.insert(207, (b"<html><body>404 Not Found</body></html>\n", 0))  # digits[3]@51
    return train, every[::5]


@contextmanager
def _stage(what: str) -> Iterator[list[str]]:
    """A line once a stage is done, with its time and what was noted."""
    begun, notes = time.perf_counter(), list[str]()
    yield notes
    show(Report(notes=[(f"{time.perf_counter() - begun:5.1f} s  {': '.join([what, *notes])}", "")]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Bad records are listed at the end, not as log lines between the progress."""
    log, handler = logging.getLogger("dali_feed"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the package that it is in; one that is barred
        return False


def _sha256(*tensors: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main(role: str, path: str, job: str, *more: str) -> None:
    """What a process of the demo does; the one that tells the story reports the bad records."""
    folder = Path(path)
    with _quiet(), Training(DemoJob(**json.loads(job))) as training:
        if role == "killed":
            epoch, after = map(int, more)
            for _ in range(epoch):
                deque(training.epoch(), 0)
            for step in training.epoch():
                if step == after:
                    training.save(folder)
                    os.kill(os.getpid(), signal.SIGKILL)
        training.load(folder)
        trace = Trace()
        deque(training.epoch(trace), 0)
        (folder / TRACE).write_text(json.dumps(dataclasses.asdict(trace)))


if __name__ == "__main__":
    main(*sys.argv[1:])
