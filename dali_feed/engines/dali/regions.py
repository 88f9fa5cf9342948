"""`decode="region"` on a GPU: windows are decoded alone, if the decoder there has passed a test.

nvImageCodec 0.9.0 fails on ordinary windows of JPEGs, with an error on some GPUs and a segmentation fault on others
(NVIDIA/nvImageCodec issue 55). So the decoder is tested in a process of its own, on the same device and with the same
options, and where it fails or its windows are not those of the whole image, whole images are decoded.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.dali import DaliProgram
from dali_feed.compiler.steps import Decode as DecodeStep
from dali_feed.compiler.tail_colour import compile_dali
from dali_feed.engines.dali.region_probes import Decode, Window, disagreement
from dali_feed.options import Tuning
from dali_feed.transforms.recipe import Recipe

__all__ = ["answer", "compile_regions", "dali_decode", "trouble"]

_PATIENCE = 300.0  # seconds: a first use of a GPU may load and compile for a minute
_ANSWER = "dali_feed answers: "
_USER = 8  # frames from here up to who called DataLoader
_OPTIONS = ("image_hint", "device_memory_padding", "host_memory_padding")


def compile_regions(recipe: Recipe, found: Callable[[], str | None]) -> DaliProgram:
    """A program that decodes windows alone; of whole images, and a warning, where `found` says what is wrong."""
    program = compile_dali(recipe, on_gpu=True, region_decode=True)
    if program.window:
        wrong = found()
        if wrong is None:
            return program
        msg = f"the decoder on this GPU failed its test, so whole images are decoded; {wrong}"
    else:
        msg = "the transform does not begin with a crop of the image, so whole images are decoded"
    warnings.warn(f'decode="region": {msg}', UserWarning, stacklevel=_USER)
    return compile_dali(replace(recipe, decode="exact"), on_gpu=True, region_decode=False)


def trouble(device: int | None, tuning: Tuning, hw_decoder_load: float = 0.0) -> str | None:
    """What is wrong with windows decoded on that device, or None; tested once in a process for equal options."""
    return _asked(device, hw_decoder_load, tuple((name, getattr(tuning, name)) for name in _OPTIONS))


@functools.cache
def _asked(device: int | None, hw_decoder_load: float, options: tuple[tuple[str, Any], ...]) -> str | None:
    return answer([sys.executable, "-P", "-m", __name__, json.dumps([device, hw_decoder_load, dict(options)])])


def answer(command: Sequence[str]) -> str | None:
    """The answer that `command` prints after a mark: JSON, a string or null. How the process ended, where it failed."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    try:
        done = subprocess.run(  # noqa: S603  this module, by this interpreter
            list(command),
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except OSError as error:
        return f"the test could not be started; {error}"
    except subprocess.TimeoutExpired:
        return f"the test was not finished after {_PATIENCE:.0f} seconds"
    if done.returncode < 0:
        return f"the test was ended by {signal.Signals(-done.returncode).name}"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"the test ended with status {done.returncode}: {last[:400]}"
    told = [line.removeprefix(_ANSWER) for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    try:
        found: str | None = json.loads(told[-1])
    except (IndexError, ValueError):
        return f"the test gave no answer; it printed {done.stdout[-400:]!r}"
    return found


def dali_decode(device: int | None, tuning: Tuning, hw_decoder_load: float = 0.0) -> Decode:
    """The decoder node of a program's graph, in pipelines of its own."""
    from nvidia.dali import Pipeline

    from dali_feed.engines.dali.graph import PAYLOAD, build_graph

    @functools.cache
    def pipeline(batch_size: int, *, window: bool) -> Any:
        pipe = Pipeline(batch_size, 4, device, prefetch_queue_depth=1, exec_dynamic=True)
        with pipe:
            program = DaliProgram(Recipe(hw_decoder_load=hw_decoder_load), [DecodeStep(window)])
            pipe.set_outputs(*build_graph(program, gpu=device is not None, tuning=tuning))
        pipe.build()
        return pipe

    def decode(payloads: Sequence[bytes], windows: Sequence[Window] | None) -> list[NDArray[np.uint8]]:
        pipe = pipeline(len(payloads), window=windows is not None)
        pipe.feed_input(PAYLOAD, [np.frombuffer(payload, np.uint8) for payload in payloads])
        if windows is not None:
            pipe.feed_input("window", np.array(windows, np.int32))
        (images,) = pipe.run()
        images = images if device is None else images.as_cpu()
        return [np.array(images.at(n)) for n in range(len(payloads))]

    return decode


def _main() -> None:
    device, load, options = json.loads(sys.argv[1])
    hint = options["image_hint"]
    tuning = Tuning(**{**options, "image_hint": None if hint is None else tuple(hint)})
    try:
        found = disagreement(dali_decode(device, tuning, load))
    except Exception as error:  # noqa: BLE001  whatever DALI raises is the answer
        from dali_feed.engines.failures import reason

        found = f"DALI fails; {reason(error)}"
    print(f"\n{_ANSWER}{json.dumps(found)}")  # noqa: T201  on a line of its own, whatever libraries print


if __name__ == "__main__":
    _main()
