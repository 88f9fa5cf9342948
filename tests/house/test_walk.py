"""The way of a record: who follows one from a list of files to the loop's tensors opens few files of ours."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from pathlib import Path
from types import FrameType

import torch
from kit.images import jpeg
from torchvision.transforms import v2

from dali_feed import DataLoader, FileList

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("dali_feed", "external_sources", "kernels")
MOST = 45


class Walk:
    """The product's files whose functions are entered, by any thread that begins within; imports do not count."""

    def __init__(self) -> None:
        self.files = set[str]()

    def __enter__(self) -> set[str]:
        threading.setprofile(self._heard)
        sys.setprofile(self._heard)
        return self.files

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _heard(self, frame: FrameType, event: str, _: object) -> None:
        name, a_function = frame.f_code.co_filename, frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and a_function and name not in self.files and not _imports(frame):
            path = Path(name)
            if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PRODUCT:
                self.files.add(name)


def _imports(frame: FrameType | None) -> bool:
    """Whether it is called by a module that is being imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def test_a_record_goes_through_few_files(tmp_path: Path) -> None:
    """An epoch of images from files on the host engine, cropped and normalized: the batches that the loop asks for."""
    paths = [tmp_path / f"{n}.jpg" for n in range(32)]
    for n, path in enumerate(paths):
        path.write_bytes(jpeg(n, 40, 60 + n))
    ends = v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)
    transform = v2.Compose([v2.RandomResizedCrop(32), *ends])
    files = FileList(paths, range(32))
    gc.collect()  # what ends a loader of another test is none of its way
    with DataLoader(files, 8, shuffle=True, transform=transform, device="cpu") as loader, Walk() as walked:
        assert sum(len(labels) for _, labels in loader) == len(paths)
    assert len(walked) <= MOST, sorted(walked)
