"""What all peers share: their names, whether they are installed, and steps that never end."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import torch

from dali_feed.bench.contract import Job, Steps
from dali_feed.errors import EngineError

__all__ = ["Batches", "Peer", "by_count", "image_files", "version_of"]


class Batches(Steps):
    """Steps that take batches from an iterable, which is begun again when it ends.

    again  gives an iterator of batches each time it is called: an epoch, or what has no end
    made   of a batch, float32 (n, 3, crop, crop) on the job's device
    """

    def __init__(self, again: Callable[[], Iterator[Any]], made: Callable[[Any], torch.Tensor]) -> None:
        self._again, self._made = again, made
        self.epoch: Any = again()

    def take(self) -> torch.Tensor:
        """The next batch."""
        try:
            batch = next(self.epoch)
        except StopIteration:
            self.epoch = self._again()
            try:
                batch = next(self.epoch)
            except StopIteration:
                msg = "an epoch must have a full batch; found none, as there are too few images; make the batch smaller"
                raise EngineError(msg) from None
        return self._made(batch)

    def __next__(self) -> int:
        return self.kept(self.take())


class Peer:
    """A loader of others, a Contestant. Subclasses say how it is called and what it does.

    name     as a table says it
    package  as pip knows it
    modules  that it needs; it takes part where each can be imported
    install  what to do where one cannot
    slow     it takes tens of seconds to begin: a quick bench leaves it out
    """

    name: ClassVar[str]
    package: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    install: ClassVar[str] = "pip install 'dali-feed[peers]'"
    slow: ClassVar[bool] = False

    @property
    def version(self) -> str:
        """Of the package; "" where it is not installed."""
        return version_of(self.package)

    def missing(self, job: Job) -> str | None:
        """Why it cannot do this job here, with the cure; None: it can."""
        for module in self.modules:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    importlib.import_module(module)
            except ModuleNotFoundError as error:
                return f"no {self.package}: {error}; {self.install}"
            except Exception as error:  # noqa: BLE001  whatever it fails on, the others take part
                told = f"{type(error).__name__}: {error}"
                cure = f"{self.install} in an environment of its own"
                return f"{self.package} {self.version} cannot be imported: {told}; {cure}"
        return self.unable(job)

    def unable(self, job: Job) -> str | None:
        """The same, once it is installed."""
        return None

    def ways(self, job: Job) -> Sequence[str]:
        """Names of its settings."""
        raise NotImplementedError

    def turn(self, job: Job, way: str) -> AbstractContextManager[Batches]:
        """Make it afresh; leaving the context ends its threads and processes."""
        raise NotImplementedError


def version_of(package: str) -> str:
    """As pip tells it; "" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def image_files(folder: Path) -> list[str]:
    """The paths that torchvision's ImageFolder finds, in its order."""
    from torchvision.datasets import ImageFolder

    return [path for path, _ in ImageFolder(str(folder)).samples]


def by_count(what: str, counts: Iterable[int]) -> dict[str, int]:
    """Ways that differ in a number: {"2 threads": 2, ...}."""
    return {f"{count} {what}" if count > 1 else f"1 {what.removesuffix('s')}": count for count in sorted(set(counts))}
