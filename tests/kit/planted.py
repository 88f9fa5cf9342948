"""Faults planted above and in the seam of a GPU: each is put into a copy of the product, and the twin's tests run.

    .venv/bin/python tests/kit/planted.py [fault...]      # all of them, unless said

The table says which test sees it first. A fault that no test sees is named as such. A patch that no longer applies is
an error: who changes the code says here what the fault has become.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torchvision.transforms.v2
from nvidia.dali import fn

__all__ = ["FAULTS", "ROOT", "Fault"]

_LIBRARIES = torch, torchvision, fn  # imported once, for all children

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    *("tests/engines/test_twin_lives.py", "tests/engines/test_twin.py", "tests/engines/test_device.py"),
    "tests/feed/test_next_gpu.py",
)


@dataclass(frozen=True)
class Fault:
    """What stands in a file of the product, and what is there instead; `tests` see it, as `pytest -k` takes them."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def there(self, root: Path) -> bool:
        """Whether it can be planted in that copy: what it changes is there, and once."""
        return (root / self.file).read_text().count(self.old) == 1

    def plant(self, root: Path) -> None:
        """Put it into that copy."""
        assert self.there(root), f"{self.name}: {self.file} must have it, and once"
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


SEAM, DALI = "dali_feed/engines/device/cuda.py", "dali_feed/engines/dali/images.py"
FINISH, KEPT = "dali_feed/engines/finish.py", "dali_feed/engines/device_cache.py"
BATCH, ENGINE, PARCEL = "dali_feed/feed/batch.py", "dali_feed/engines/engine.py", "dali_feed/engines/device/parcel.py"

FAULTS = (
    Fault(
        "hold keeps nothing",
        SEAM,
        "                self.in_use.keep(objects, done)\n",
        "",
        "any_order",
    ),
    Fault(
        "hold records on the default stream",
        SEAM,
        ("done.record(stream)\n                except"),
        ("done.record(torch.cuda.default_stream(self._place))\n                except"),
        "own_stream",
    ),
    Fault(
        "no wait before a batch is handed over",
        BATCH,
        "            self.device.wait()\n",
        "",
        "any_order",
    ),
    Fault(
        "the wait is for another stream",
        SEAM,
        "            arrived.record(stream)\n",
        "            arrived.record(torch.cuda.default_stream(self._place))\n",
        "any_order",
    ),
    Fault(
        "outputs of DALI are bound to no stream",
        DALI,
        "pipe.outputs(cuda_stream=stream)",
        "pipe.outputs()",
        "counts",
    ),
    Fault(
        "outputs of DALI are bound to the thread's stream",
        DALI,
        (
            "                    with self._gpu.sending() as stream:\n"
            "                        ticket.outputs = pipe.outputs(cuda_stream=stream)"
        ),
        ("                    ticket.outputs = pipe.outputs(cuda_stream=torch.cuda.current_stream())"),
        "any_order or counts",
    ),
    Fault(
        "a kernel is launched on the default stream",
        SEAM,
        "stream=torch.cuda.current_stream())",
        "stream=torch.cuda.default_stream(self._place))",
        "own_stream",
    ),
    Fault(
        "a kernel is launched on the copy stream",
        SEAM,
        "stream=torch.cuda.current_stream())",
        "stream=_copy_stream(self.number))",
        "any_order",
    ),
    Fault(
        "what leaves is what was sent",
        SEAM,
        "            return self.view(there).clone()\n",
        "            return self.view(there)\n",
        "any_order or torchs_memory",
    ),
    Fault(
        "page-locked memory of the thread's GPU",
        SEAM,
        (
            "        with torch.cuda.device(self.number):\n"
            "            return torch.empty(shape, dtype=dtype, pin_memory=True)"
        ),
        "        return torch.empty(shape, dtype=dtype, pin_memory=True)",
        "begins_with or another_device",
    ),
    Fault(
        "memory of the thread's GPU",
        SEAM,
        "            return torch.empty(shape, dtype=dtype, device=self._place)",
        '            return torch.empty(shape, dtype=dtype, device="cuda:0")',
        "another_device",
    ),
    Fault(
        "the loop works under its own GPU",
        SEAM,
        ("        with torch.cuda.device(self.number):\n            _refuse_capture(self.number)"),
        ("        if True:\n            _refuse_capture(self.number)"),
        "another_device",
    ),
    Fault(
        "a thread enters no GPU",
        SEAM,
        "        torch.cuda.set_device(self.number)\n",
        "",
        "for_good",
    ),
    Fault(
        "a thread does not relax captures",
        SEAM,
        ("        torch.cuda.set_device(self.number)\n        _relax()"),
        "        torch.cuda.set_device(self.number)",
        "capture",
    ),
    Fault(
        "memory to send is not page-locked",
        SEAM,
        "dtype=dtype, pin_memory=True)",
        "dtype=dtype)",
        "counts",
    ),
    Fault(
        "to send waits",
        SEAM,
        "non_blocking=True)",
        "non_blocking=False)",
        "counts",
    ),
    Fault(
        "a batch is sent on the thread's stream",
        SEAM,
        ("        with self.sending():\n            return here.to("),
        ("        with torch.cuda.device(self.number):\n            return here.to("),
        "any_order",
    ),
    Fault(
        "next() waits",
        SEAM,
        "                self.in_use.keep(objects, done)\n",
        ("                self.in_use.keep(objects, done)\n                done.synchronize()\n"),
        "counts",
    ),
    Fault(
        "a capture is not refused",
        SEAM,
        ("            _refuse_capture(self.number)\n            stream"),
        "            stream",
        "capture",
    ),
    Fault(
        "what is held is let go too early",
        SEAM,
        ("            self._in_use = [*((each, done) for each, done in before if not done.query()), (what, until)]\n"),
        "            self._in_use = [(what, until)]\n",
        "own_stream or any_order",
    ),
    Fault(
        "close does not wait",
        ENGINE,
        "(self.device.drain,)",
        "(self.device.free_memory,)",
        "dropped_on",
    ),
    Fault(
        "nothing bounds what is held",
        ENGINE,
        "            self.device.bound(self.depth + _BEHIND)\n",
        "            pass\n",
        "ahead",
    ),
    Fault(
        "flips are swapped",
        FINISH,
        ("            flip_x=tail.flip_x,\n            flip_y=tail.flip_y,"),
        ("            flip_x=tail.flip_y,\n            flip_y=tail.flip_x,"),
        "runs_on",
    ),
    Fault(
        "flips before operations are done at the end",
        "dali_feed/transforms/auto_augment.py",
        "        rows[:, :, 0, FLIPPED] = fold.turn_back()[:, None]\n",
        "",
        "operations_on",
    ),
    Fault(
        "operations are written over their input",
        FINISH,
        "    out = device.empty(tuple(pixels.shape), torch.uint8)\n    device.launch(augment",
        "    out = pixels\n    device.launch(augment",
        "any_order and operations",
    ),
    Fault(
        "colour is written over its input",
        FINISH,
        "            adjusted = device.empty(tuple(pixels.shape), torch.uint8)\n",
        "            adjusted = pixels\n",
        "any_order",
    ),
    Fault(
        "kernels are loaded by the loop",
        BATCH,
        "            rehearse(pixels.images, pixels.tail, device, mixed=mixed)\n",
        "",
        "counts",
    ),
    Fault(
        "kept images are taken on the thread's stream",
        KEPT,
        "with self._gpu.sending(), self._gpu.hold(*read)",
        "with self._gpu.hold(*read)",
        "any_order",
    ),
    Fault(
        "kept images do not hold what they read",
        KEPT,
        "self._gpu.hold(*read)",
        "self._gpu.hold()",
        "memory_may and kept",
    ),
    Fault(
        "images are read before they are held",
        ENGINE,
        "nullcontext() if self.device is None else self.device.hold(self)",
        "nullcontext() if self.device is None else self.device.hold()",
        "any_order",
    ),
    Fault(
        "a block is sent before it is packed",
        PARCEL,
        (
            "        for start, values in zip(starts, rest.values(), strict=True):\n"
            "            _part(block, start, values).numpy()[...] = values\n"
            "        one = self._device.send(block)\n"
        ),
        (
            "        one = self._device.send(block)\n"
            "        for start, values in zip(starts, rest.values(), strict=True):\n"
            "            _part(block, start, values).numpy()[...] = values\n"
        ),
        "any_order",
    ),
    Fault(
        "a failed batch blames its records at once",
        DALI,
        "            if self._fails(alone) and (failure := self._fails(alone)):",
        '            if failure := EngineError("x"):',
        "fails_once",
    ),
)


def _copied(folder: Path) -> None:
    for name in ("dali_feed", "external_sources", "kernels", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def _seen(folder: Path, tests: str) -> str:
    """The first test that fails, and by what. In a child, which has the libraries that are imported here."""
    printed = folder / "printed"
    child = os.fork()
    if not child:
        try:
            os.chdir(folder)
            sys.path[:0] = [str(folder), str(folder / "tests")]
            with printed.open("w") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            words = ["-qx", "-m", "not long", "-k", tests, "-o", f"cache_dir={ROOT}/.pytest_cache", *TESTS]
            code = int(pytest.main(words))
            sys.stdout.flush()
            os._exit(code)
        finally:
            traceback.print_exc()
            os._exit(99)  # never up from here, where the folder would be taken away
    _, status = os.waitpid(child, 0)
    text = printed.read_text()
    if not status:
        return ""
    test = re.search(r"^(?:FAILED|ERROR) \S*/(\S+?::[^\n]*?)(?: - .*)?$", text, re.MULTILINE)
    why = re.search(r"^E +(.*)$", text, re.MULTILINE)
    return f"{test[1] if test else text[-300:]}: {why[1][:150] if why else ''}"


def main(arguments: Sequence[str]) -> int:
    """Print the table; how many faults nobody sees."""
    unseen = 0
    for fault in FAULTS:
        if arguments and fault.name not in arguments:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _copied(folder)
            fault.plant(folder)
            seen = _seen(folder, fault.tests)
        unseen += not seen
        print(f"{fault.name:50} {seen or 'NOBODY SEES IT'}", flush=True)  # noqa: T201  the table
    return unseen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
