"""Faults planted above and in the seam of a GPU: each is put into a copy of the product, and the twin's tests run.

    .venv/bin/python tests/kit/planted.py [fault...]      # all of them, unless said

The table says which test sees it first. A fault that no test sees is named as such. A patch that no longer applies is
an error: who changes the code says here what the fault has become.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FAULTS", "ROOT", "Fault"]

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/engines/test_twin_lives.py", "tests/feed/test_next_gpu.py")


@dataclass(frozen=True)
class Fault:
    """What stands in a file of the product, and what is there instead."""

    name: str
    file: str
    old: str
    new: str

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
    Fault("hold keeps nothing", SEAM, "                self.in_use.keep(objects, done)\n", ""),
    Fault(
        "hold records on the default stream",
        SEAM,
        ("done.record(stream)\n                except"),
        ("done.record(torch.cuda.default_stream(self._place))\n                except"),
    ),
    Fault("no wait before a batch is handed over", BATCH, "            self._device.wait()\n", ""),
    Fault(
        "the wait is for another stream",
        SEAM,
        "            arrived.record(stream)\n",
        "            arrived.record(torch.cuda.default_stream(self._place))\n",
    ),
    Fault("outputs of DALI are bound to no stream", DALI, "pipe.outputs(cuda_stream=stream)", "pipe.outputs()"),
    Fault(
        "outputs of DALI are bound to the thread's stream",
        DALI,
        (
            "                    with self._gpu.sending() as stream:\n"
            "                        ticket.outputs = pipe.outputs(cuda_stream=stream)"
        ),
        ("                    ticket.outputs = pipe.outputs(cuda_stream=torch.cuda.current_stream())"),
    ),
    Fault(
        "a kernel is launched on the default stream",
        SEAM,
        "stream=torch.cuda.current_stream())",
        "stream=torch.cuda.default_stream(self._place))",
    ),
    Fault(
        "a kernel is launched on the copy stream",
        SEAM,
        "stream=torch.cuda.current_stream())",
        "stream=_copy_stream(self.number))",
    ),
    Fault(
        "what leaves is what was sent",
        SEAM,
        "            return self.view(there).clone()\n",
        "            return self.view(there)\n",
    ),
    Fault(
        "page-locked memory of the thread's GPU",
        SEAM,
        (
            "        with torch.cuda.device(self.number):\n"
            "            return torch.empty(shape, dtype=dtype, pin_memory=True)"
        ),
        "        return torch.empty(shape, dtype=dtype, pin_memory=True)",
    ),
    Fault(
        "memory of the thread's GPU",
        SEAM,
        "            return torch.empty(shape, dtype=dtype, device=self._place)",
        '            return torch.empty(shape, dtype=dtype, device="cuda:0")',
    ),
    Fault(
        "the loop works under its own GPU",
        SEAM,
        ("        with torch.cuda.device(self.number):\n            _refuse_capture(self.number)"),
        ("        if True:\n            _refuse_capture(self.number)"),
    ),
    Fault("a thread enters no GPU", SEAM, "        torch.cuda.set_device(self.number)\n", ""),
    Fault(
        "a thread does not relax captures",
        SEAM,
        ("        torch.cuda.set_device(self.number)\n        _relax()"),
        "        torch.cuda.set_device(self.number)",
    ),
    Fault("memory to send is not page-locked", SEAM, "dtype=dtype, pin_memory=True)", "dtype=dtype)"),
    Fault("to send waits", SEAM, "non_blocking=True)", "non_blocking=False)"),
    Fault(
        "a batch is sent on the thread's stream",
        SEAM,
        ("        with self.sending():\n            return here.to("),
        ("        with torch.cuda.device(self.number):\n            return here.to("),
    ),
    Fault(
        "next() waits",
        SEAM,
        "                self.in_use.keep(objects, done)\n",
        ("                self.in_use.keep(objects, done)\n                done.synchronize()\n"),
    ),
    Fault(
        "a capture is not refused",
        SEAM,
        ("            _refuse_capture(self.number)\n            stream"),
        "            stream",
    ),
    Fault(
        "what is held is let go too early",
        SEAM,
        ("            self._in_use = [*((each, done) for each, done in before if not done.query()), (what, until)]\n"),
        "            self._in_use = [(what, until)]\n",
    ),
    Fault("close does not wait", ENGINE, "(self.device.drain,)", "(self.device.free_memory,)"),
    Fault(
        "nothing bounds what is held",
        ENGINE,
        "            self.device.bound(self.depth + _BEHIND)\n",
        "            pass\n",
    ),
    Fault(
        "flips are swapped",
        FINISH,
        ("            flip_x=tail.flip_x,\n            flip_y=tail.flip_y,"),
        ("            flip_x=tail.flip_y,\n            flip_y=tail.flip_x,"),
    ),
    Fault(
        "colour is written over its input",
        FINISH,
        "            adjusted = device.empty(tuple(pixels.shape), torch.uint8)\n",
        "            adjusted = pixels\n",
    ),
    Fault(
        "kernels are loaded by the loop",
        BATCH,
        "            rehearse(pixels.images, pixels.tail, device, mixed=mixed)\n",
        "",
    ),
    Fault(
        "kept images are taken on the thread's stream",
        KEPT,
        "with self._gpu.sending(), self._gpu.hold(*read)",
        "with self._gpu.hold(*read)",
    ),
    Fault("kept images do not hold what they read", KEPT, "self._gpu.hold(*read)", "self._gpu.hold()"),
    Fault(
        "images are read before they are held",
        ENGINE,
        "nullcontext() if self.device is None else self.device.hold(self)",
        "nullcontext() if self.device is None else self.device.hold()",
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
    ),
    Fault(
        "a failed batch blames its records at once",
        DALI,
        "            if self._fails(alone) and (failure := self._fails(alone)):",
        '            if failure := EngineError("x"):',
    ),
)


def _copied(folder: Path) -> None:
    for name in ("dali_feed", "external_sources", "kernels", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def _seen(folder: Path) -> str:
    """The first test that fails, and by what."""
    paths = os.pathsep.join(map(str, (folder, folder / "tests")))
    runs = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    words = ["-qx", "-m", "not long and not gpu", "-o", f"cache_dir={ROOT}/.pytest_cache", *TESTS]
    command = [sys.executable, "-P", "-c", runs, paths, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    if not done.returncode:
        return ""
    test = re.search(r"^(?:FAILED|ERROR) \S*/(\S+?::[^\n]*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    why = re.search(r"^E +(.*)$", done.stdout, re.MULTILINE)
    return f"{test[1] if test else done.stdout[-300:]}: {why[1][:150] if why else ''}"


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
            seen = _seen(folder)
        unseen += not seen
        print(f"{fault.name:50} {seen or 'NOBODY SEES IT'}", flush=True)  # noqa: T201  the table
    return unseen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
