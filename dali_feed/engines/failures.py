"""DALI's errors in one line: which operator failed and why, and whether anything can run after it.

The law: a CUDA error that stays, exhausted memory and the capture of a CUDA graph are no record's fault. They are
reported so, at once; no sample is tried by itself first.
"""

from __future__ import annotations

import re

from dali_feed.engines.device.cuda import free_and_total
from dali_feed.errors import EngineError

_NOT_TELLING = ("Stacktrace", "[frame", "Current pipeline object", "C++ context")
_NO_MEMORY = re.compile(r"out of memory|badalloc|can't allocate|allocation failed|memoryallocation|outofmemory")
# By CUDA's names, of the runtime and of the driver alike (underscores left out), or by its words: after one of them
# every call in the process gives the same again.
_STAYS = re.compile(
    r"illegaladdress|illegal memory access"
    r"|launchfail|unspecified launch failure|launchtimeout|launch timed out"
    r"|hardwarestackerror|illegalinstruction|illegal instruction|misalignedaddress|misaligned address"
    r"|invalidaddressspace|invalidpc|cudaerrorassert|device-side assert"
    r"|eccuncorrectable|uncorrectable ecc|nvlinkuncorrectable|contextisdestroyed"
)

_CAPTURED = re.compile(r"streamcapture|stream is capturing")  # errors 900 to 908


def reason(error: Exception) -> str:
    """The lines of a DALI message that matter: which operator, where it is in the user's code, and why."""
    before, user_lines, why = str(error).rpartition("encountered:")
    lines = [line.strip() for line in (why if user_lines else str(error)).splitlines() if line.strip()]
    text = [line for line in lines if not line.startswith(_NOT_TELLING)]
    operators, places = re.findall(r"operator `([^`]+)`", before), re.findall(r'File "([^"]+)", line (\d+)', before)
    if operators:
        place = f" at {places[-1][0]}:{places[-1][1]}" if places else ""
        text.insert(0, f"{operators[-1].removeprefix('nvidia.dali.')}{place}:")
    return " ".join(text)[:400] or type(error).__name__


def _why(error: BaseException) -> str:
    """The message without the lines about the user's graph, in small letters and without underscores."""
    return str(error).rpartition("encountered:")[2].lower().replace("_", "")


def out_of_memory(error: BaseException) -> bool:
    """Whether there was not enough memory, the GPU's or the machine's."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(_why(error)) is not None


def stays(error: BaseException, device: int | None) -> bool:
    """Whether it is a CUDA error after which nothing runs in this process: by its name, or by asking the GPU."""
    if _STAYS.search(_why(error)):
        return True
    try:
        free_and_total(device)
    except RuntimeError:
        return True
    return False


def captured(error: BaseException) -> bool:
    """Whether it is one only because a CUDA graph is captured meanwhile, which forbids all threads to take memory."""
    return _CAPTURED.search(_why(error)) is not None


def ends_all(error: BaseException, device: int | None) -> bool:
    """Whether no sample is to blame, so that trying them one by one is useless."""
    return out_of_memory(error) or captured(error) or stays(error, device)


def engine_error(subject: str, what: str, error: Exception, device: int | None, *, short: bool = False) -> EngineError:
    """The error to raise from `error`: `what` went wrong with `subject`, why, and the cure where there is one.

    `short`: there is too little memory, though `error` does not say so.
    """
    text, where = reason(error), "the CPU" if device is None else f"cuda:{device}"
    if stays(error, device):
        text = (
            f"a CUDA error on {where} after which nothing more can run there in this process: {text}. Any kernel of"
            " the process may have caused it, one of the model too: CUDA_LAUNCH_BLOCKING=1 shows which. Start again"
            " from the checkpoint"
        )
    elif captured(error):
        text = (
            f"a CUDA graph is captured on {where} meanwhile, during which no thread may take memory: {text}. Capture it"
            " with torch.cuda.graph(..., capture_error_mode='thread_local'), or before the first batch"
        )
    elif short or out_of_memory(error):
        text = (
            f"out of memory on {where}{_free(device)}: {text}. Use a smaller batch_size, or fewer batches in flight,"
            " Tuning(prefetch=1); DALI and torch each keep the memory that they have taken"
        )
    return EngineError(f"{subject}: {what}; {text}")


def _free(device: int | None) -> str:
    """How much memory a GPU has left, where torch is at work there. Raises RuntimeError where it says nothing more."""
    known = free_and_total(device)
    if known is None:
        return ""
    free, size = known
    return f" ({free // 1_000_000:,} of {size // 1_000_000:,} MB free)"
