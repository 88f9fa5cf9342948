"""Packages: names of ours that are imported at their first use, and packages of others that are not installed.

For the latter the user gets one line with the command that installs them, instead of a traceback.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dali_feed.errors import MissingPackageError

_PACKAGES = {  # module: how people call it, its package for pip, and a further hint
    "nvidia.dali": ("NVIDIA DALI", "nvidia-dali-cuda120", "nvidia-dali-cuda130 where the driver's CUDA is 13"),
    "nvidia.nvimgcodec": ("nvImageCodec", "nvidia-nvimgcodec-cu12", "it comes with DALI, nvidia-dali-cuda120"),
    "cupy": ("CuPy", "cupy-cuda12x", "cupy-cuda13x where the driver's CUDA is 13"),
    "confluent_kafka": ("confluent-kafka", "'confluent-kafka>=2.13.2'", ""),
    "torch": ("PyTorch", "torch", ""),
    "torchvision": ("torchvision", "torchvision", ""),
    "pyarrow": ("pyarrow", "pyarrow", ""),
    "tokenizers": ("tokenizers", "tokenizers", "or dali-feed[text]"),
    "zstandard": ("zstandard", "zstandard", "or dali-feed[zstd]"),
    "PIL": ("Pillow", "pillow", ""),
    "fastavro": ("fastavro", "fastavro", "or dali-feed[formats]"),
    "msgpack": ("MessagePack", "msgpack", "or dali-feed[formats]"),
    "google.protobuf": ("Protocol Buffers", "protobuf", "or dali-feed[formats]"),
    "google_crc32c": ("google-crc32c", "google-crc32c", "or dali-feed[tfrecord]"),
    "rich": ("rich", "rich", ""),
    "ray": ("Ray", "ray", "or dali-feed[ray]"),
    "aiohttp": ("aiohttp", "aiohttp", "or dali-feed[remote]"),
    "obstore": ("obstore", "obstore", "or dali-feed[remote]"),
    "prometheus_client": ("prometheus-client", "prometheus-client", "or dali-feed[watch]"),
    "opentelemetry": ("OpenTelemetry", "opentelemetry-api", "or dali-feed[watch]"),
}


@contextmanager
def needed() -> Iterator[None]:
    """Around an import: a missing package of the table is a MissingPackageError; any other error stays as it is."""
    try:
        yield
    except ImportError as error:
        module = _missing(error)
        if module is None:
            raise
        name, package, more = _PACKAGES[module]
        msg = f"{name}: this needs it, and it is not installed; pip install {package}{f' ({more})' if more else ''}"
        raise MissingPackageError(msg, name=module) from None


class LazyModule:
    """A module of others that is imported when one of its names is first used; a missing one is as in `needed`."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what looks at objects of any kind must import nothing
            raise AttributeError(name)
        with needed():
            value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def _missing(error: ImportError) -> str | None:
    """The module of the table that is missing; None where something else is wrong."""
    if isinstance(error, ModuleNotFoundError):
        name = error.name or ""
        return next((module for module in _PACKAGES if module == name or module.startswith(f"{name}.")), None)
    names = re.match(r"cannot import name '(\w+)' from '(\w+)'", str(error))  # of a shared namespace
    module = f"{names[2]}.{names[1]}" if names else ""
    return module if module in _PACKAGES else None


def lazily(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that gives the names of `home`, each from its module, imported at its first use.

    A module must not be called what a name here is called: importing it would put the module in the name's place.
    """

    def get(name: str) -> Any:
        if name in home:
            with needed():
                return getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
