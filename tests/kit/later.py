"""Libraries that take long to import: not while files are collected, which each worker does with all of them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest

__all__ = ["Later"]


class Later:
    """A module that is imported where it is first used; where it is not installed, the file is skipped."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec(name.partition(".")[0]) is None:  # of "a.b" that would import a
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks at all that stands in a file
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
