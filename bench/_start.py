"""One start of a program, for bench_start.py: imports, a loader, its first batches; prints a line of JSON.

Its arguments: "ours" or "torch", a folder of images, the batch size, and the number of torch's workers.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

STAGES: dict[str, tuple[float, float, int]] = {}  # name -> wall and CPU seconds, modules that it brought


class _Clock:
    def __init__(self) -> None:
        self._wall, self._cpu, self._modules = time.perf_counter(), time.process_time(), len(sys.modules)

    def stage(self, name: str) -> None:
        """What has passed since the last one is this one's."""
        was = self._wall, self._cpu, self._modules
        self.__init__()  # type: ignore[misc]
        STAGES[name] = self._wall - was[0], self._cpu - was[1], self._modules - was[2]


def _transform() -> Any:
    import torch
    from torchvision.transforms import v2

    pixels = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    return v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])


def main() -> None:
    """Run it."""
    who, folder, batch, workers = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    clock = _Clock()
    import torch  # noqa: F401
    from torchvision.transforms import v2

    clock.stage("torch")
    options: dict[str, Any] = {"batch_size": batch, "shuffle": True}
    if who == "ours":
        from dali_feed import DataLoader
        from dali_feed.external_sources import FileList

        clock.stage("import")
        dataset: Any = FileList.from_folder(folder)
        loader: Any = DataLoader(dataset, transform=_transform(), device="cpu", **options)
    else:
        from torch.utils.data import DataLoader as TorchLoader
        from torchvision.datasets import ImageFolder

        clock.stage("import")
        dataset = ImageFolder(folder, v2.Compose([v2.PILToTensor(), *_transform().transforms]))
        loader = TorchLoader(dataset, num_workers=workers, **options)
    clock.stage("made")
    batches = iter(loader)
    clock.stage("iter")
    next(batches)
    clock.stage("first")
    next(batches)
    clock.stage("second")
    print(json.dumps(STAGES))


if __name__ == "__main__":
    main()
