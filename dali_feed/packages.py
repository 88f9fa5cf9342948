"""Packages of others that are not there: one line with the command that installs them, instead of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dali_feed.errors import MissingPackageError

__all__ = ["needed"]

_PACKAGES = {  # module: how people call it, its package for pip, and what else there is to say
    "nvidia.dali": ("NVIDIA DALI", "nvidia-dali-cuda120", "nvidia-dali-cuda130 where the driver's CUDA is 13"),
    "nvidia.nvimgcodec": ("nvImageCodec", "nvidia-nvimgcodec-cu12", "it comes with DALI, nvidia-dali-cuda120"),
    "cupy": ("CuPy", "cupy-cuda12x", "cupy-cuda13x where the driver's CUDA is 13"),
    "confluent_kafka": ("confluent-kafka", "'confluent-kafka>=2.13.2'", ""),
    "torch": ("PyTorch", "torch", ""),
    "torchvision": ("torchvision", "torchvision", ""),
    "pyarrow": ("pyarrow", "pyarrow", ""),
    "PIL": ("Pillow", "pillow", ""),
    "rich": ("rich", "rich", ""),
}


@contextmanager
def needed() -> Iterator[None]:
    """Around an import: a package of the table that is not installed is a MissingPackageError; the rest stays."""
    try:
        yield
    except ImportError as error:
        module = _missing(error)
        if module is None:
            raise
        name, package, more = _PACKAGES[module]
        msg = f"{name}: this needs it, and it is not installed; pip install {package}{f' ({more})' if more else ''}"
        raise MissingPackageError(msg, name=module) from None


def _missing(error: ImportError) -> str | None:
    """The module of the table that is not there; None where something else is wrong."""
    if isinstance(error, ModuleNotFoundError):
        name = error.name or ""
        return next((module for module in _PACKAGES if module == name or module.startswith(f"{name}.")), None)
    told = re.match(r"cannot import name '(\w+)' from '(\w+)'", str(error))  # of a namespace that others share
    module = f"{told[2]}.{told[1]}" if told else ""
    return module if module in _PACKAGES else None
